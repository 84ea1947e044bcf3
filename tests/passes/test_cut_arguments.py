"""TRN113: weights that callers cut off before a function around a kernel gets them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import findings, fix, stays

from trainify.engine import Options, check_paths, fix_paths

_NUMBERS = itertools.count()

# -- in one file ----------------------------------------------------------------------------------

WRAPPER = """\
import torch
import torch.nn.functional as F
from vllm import _custom_ops as ops


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps):
    out = torch.empty_like(x)
    ops.rms_norm(out, x, weight, eps)
    return out


def pick(plain):
    if plain:
        return F.rms_norm
    return rms_norm


class Norm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        norm = pick(False)
        return CALLED(x, self.weight.data, 1e-6)
"""


@pytest.mark.parametrize("called", ["rms_norm", "norm"])
def test_a_weight_that_is_cut_off_before_the_function_gets_it(called: str) -> None:
    text = WRAPPER.replace("CALLED", called)
    messages = [f.message for f in findings(text)]
    assert any("`self.weight.data` is cut off before `rms_norm` gets it" in m for m in messages)
    for strategy in ("flag", "replace", "attach"):
        assert f"return {called}(x, self.weight, 1e-6)" in fix(text, strategy=strategy)


def test_decorators_and_defaults_are_calls_too() -> None:
    more = "\n\ndef register(x=mark(1)):\n    @mark(0)\n    def inner(y=mark(2)):\n        pass\n"
    assert len(findings(WRAPPER.replace("CALLED", "rms_norm") + more, select=("TRN1",))) == 2


OPERATOR = """\
import torch
from torch import nn


@torch.library.custom_op("mine::mixed", mutates_args=())
def mixed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * BODY) + bias


class Mixed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return mixed(x, self.weight.data, self.bias.data)
"""
FORMULA = """

def setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, grad):
    x, weight, bias = ctx.saved_tensors
    inner = grad * (1 - torch.tanh(x * weight) ** 2)
    return inner * weight, (inner * x).sum(0), None


mixed.register_autograd(backward, setup_context=setup_context)
"""


def _gradients(text: str) -> list[torch.Tensor | None]:
    name = f"mine{next(_NUMBERS)}"
    scope: dict[str, Any] = {}
    exec(compile(text.replace("mine::", f"{name}::"), "m.py", "exec"), scope)
    model, x = scope["Mixed"](4), torch.arange(8.0).view(2, 4) / 8
    model(x).square().sum().backward()
    return [p.grad for p in model.parameters()]


def test_an_operator_that_gets_a_formula_gets_the_weights_too() -> None:
    """Without, a backward that raises becomes one that leaves the weights as they are."""
    text = OPERATOR.replace("BODY", "weight")
    fixed = fix(text)
    assert ".data" not in fixed
    stays(fixed)
    x = torch.arange(8.0).view(2, 4) / 8
    weight, bias = torch.ones(4, requires_grad=True), torch.zeros(4, requires_grad=True)
    (torch.tanh(x * weight) + bias).square().sum().backward()
    torch.testing.assert_close(_gradients(fixed), [weight.grad, bias.grad])


def test_an_operator_with_a_formula_for_one_of_two_weights() -> None:
    text = OPERATOR.replace("BODY", "weight") + FORMULA
    (found,) = findings(text, select=("TRN113",))
    assert "`self.weight.data`" in found.message
    assert [r.message for r in found.related] == ["`mixed` is an operator that reads it."]


def test_an_operator_without_a_formula_and_without_a_fix() -> None:
    """Whatever it is handed, no gradient comes back."""
    text = OPERATOR.replace("BODY", "weight.detach()")
    assert all(f.rule != "TRN113" for f in findings(text))


@pytest.mark.parametrize("called", ["self.rms_norm", "F.rms_norm", "other.rms_norm"])
def test_other_functions_take_what_they_take(called: str) -> None:
    assert len(findings(WRAPPER.replace("CALLED", called), select=("TRN1",))) == 1


# -- from another file ----------------------------------------------------------------------------

OPS = """\
import torch
from vllm import _custom_ops as ops


def my_norm(x: torch.Tensor, w: torch.Tensor, eps):
    out = torch.empty_like(x)
    ops.rms_norm(out, x, w, eps)
    return out
"""
LAUNCHES = """\
import torch
import triton
import triton.language as tl


@triton.jit
def norm_kernel(y_ptr, x_ptr, w_ptr, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y_ptr + i, tl.load(x_ptr + i) * tl.load(w_ptr + i))


def my_norm(x, w, eps):
    y = torch.empty_like(x)
    w = w.contiguous()
    norm_kernel[(1,)](y, x, w, x.numel())
    return y
"""
HANDS_ON = (
    OPS.replace("def my_norm(", "def _norm(")
    + """\


def my_norm(x, w, eps):
    return _norm(x, w.view(-1), eps=eps)
"""
)
LAYER = """\
import torch
from torch import nn

from .ops import my_norm


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return my_norm(x, self.w.data, 1e-6)
"""


def package(folder: Path, **files: str) -> Path:
    (folder / "__init__.py").write_text("")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def cut(folder: Path, file: str = "layer.py") -> list[str]:
    """What is said of cut weights in a file; other files are only reached from it."""
    reports = check_paths([str(folder / file)], Options(select=("TRN113",)))
    return [finding.message for report in reports for finding in report.findings]


@pytest.mark.parametrize("ops", [OPS, LAUNCHES, HANDS_ON], ids=["op", "launch", "handed on"])
def test_a_function_of_another_file(tmp_path: Path, ops: str) -> None:
    (message,) = cut(package(tmp_path, ops=ops, layer=LAYER))
    assert (
        message
        == "`self.w.data` is cut off before `my_norm` gets it: no gradient reaches `self.w`."
    )


def test_a_file_between_them(tmp_path: Path) -> None:
    package(tmp_path, kernels=OPS, ops="from .kernels import my_norm\n", layer=LAYER)
    assert len(cut(tmp_path)) == 1


@pytest.mark.parametrize("strategy", ["flag", "replace", "attach"])
def test_the_function_is_fixed_where_it_is_and_the_caller_too(
    tmp_path: Path, strategy: str
) -> None:
    package(tmp_path, ops=OPS, layer=LAYER)
    fixed = {Path(r.path).name: r for r in fix_paths([str(tmp_path)], Options(strategy=strategy))}
    assert fixed["ops.py"].applied
    assert fixed["layer.py"].text == LAYER.replace("self.w.data", "self.w")


@pytest.mark.parametrize("strategy", ["flag", "attach"])
def test_the_function_has_a_backward_already(tmp_path: Path, strategy: str) -> None:
    package(tmp_path, ops=fix(OPS, strategy=strategy), layer=LAYER)
    assert len(cut(tmp_path)) == 1


def test_where_it_is_read_is_shown(tmp_path: Path) -> None:
    package(tmp_path, ops=HANDS_ON, layer=LAYER)
    (report,) = check_paths([str(tmp_path / "layer.py")], Options())
    (related,) = report.findings[0].related
    assert (Path(related.path).name, related.line) == ("ops.py", 7)


WRITES = LAUNCHES.replace("kernel[(1,)](y, x, w,", "kernel[(1,)](w, x, y,")


@pytest.mark.parametrize(
    ("ops", "layer"),
    [
        (OPS, LAYER.replace("self.w = nn.Parameter(", 'self.register_buffer("w", ')),
        (OPS, LAYER.replace("def forward", "@torch.no_grad()\n    def generate")),
        (OPS, LAYER.replace("def forward", "def load_weights")),
        (OPS, LAYER.replace("self.w.data", "self.w")),
        (OPS, LAYER.replace("self.w.data", "self.w_scale.data")),
        (OPS, LAYER.replace("my_norm(x, self.w.data, 1e-6)", "my_norm(x, x, self.w.data)")),
        (OPS.replace("def my_norm", "@torch.no_grad()\ndef my_norm"), LAYER),
        (OPS.replace("def my_norm", "@torch.library.custom_op('a::b')\ndef my_norm"), LAYER),
        (OPS.replace("rms_norm(out, x, w,", "rms_norm(out, x, x,"), LAYER),
        (OPS.replace("    ops.", "    w = x.mean(0)\n    ops."), LAYER),
        (WRITES, LAYER),
    ],
    ids="buffer generate load whole scale eps no_grad operator other rebound written".split(),
)
def test_what_loses_nothing(tmp_path: Path, ops: str, layer: str) -> None:
    assert cut(package(tmp_path, ops=ops, layer=layer)) == []
