"""Kernels that a class, a property, a default or ``getattr`` holds, and launches by ``run``."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from verbs import findings, fix, rules, stays

from tests.each import in_turn
from trainify.engine import Options, check_paths
from trainify.findings import STRATEGIES

PROGRAM = """\
import functools
import torch
import sgl_kernel
from torch import nn


def native(x):
    gate, up = x.chunk(2, dim=-1)
    return nn.functional.gelu(gate) * up


class Model(nn.Module):
    {}
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 8)
        {}

    def forward(self, x{}):
        return {}(self.up(x))
"""
KEPT = {
    "staticmethod": ("op = staticmethod(sgl_kernel.gelu_and_mul)", "pass", "", "self.op"),
    "of its class": ("op = staticmethod(sgl_kernel.gelu_and_mul)", "pass", "", "Model.op"),
    "property": (
        "@property\n    def op(self):\n        return sgl_kernel.gelu_and_mul\n",
        *("pass", "", "self.op"),
    ),
    "cached property": (
        "@functools.cached_property\n    def op(self):\n        return sgl_kernel.gelu_and_mul\n",
        *("pass", "", "self.op"),
    ),
    "getattr": ("", 'self.op = getattr(sgl_kernel, "gelu_and_mul", native)', "", "self.op"),
}
LEFT_OPEN = {
    "default": ("", "pass", ", op=sgl_kernel.gelu_and_mul", "op"),
    "getattr": (
        *("", 'self.op = getattr(nn.functional, "gelu_and_mul", sgl_kernel.gelu_and_mul)', ""),
        "self.op",
    ),
    "one of two": (
        "@property\n    def op(self):\n        if self.training:\n"
        "            return sgl_kernel.gelu_and_mul\n        return sgl_kernel.silu_and_mul\n",
        *("pass", "", "self.op"),
    ),
}
OTHERS = {
    "staticmethod": ("op = staticmethod(native)", "pass", "", "self.op"),
    "property": ("@property\n    def op(self):\n        return native\n", "pass", "", "self.op"),
    "default": ("", "pass", ", op=native", "op"),
    "a kernel or not": (
        "@property\n    def op(self):\n        if self.training:\n"
        "            return native\n        return sgl_kernel.gelu_and_mul\n",
        *("pass", "", "self.op"),
    ),
}


def gelu_and_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate) * up


def run(monkeypatch: pytest.MonkeyPatch, text: str, kernel: Any) -> list[Any]:
    module = ModuleType("sgl_kernel")
    module.gelu_and_mul = kernel  # type: ignore[attr-defined]
    return of_module(monkeypatch, text, module)


def of_module(monkeypatch: pytest.MonkeyPatch, text: str, module: ModuleType) -> list[Any]:
    """What a model gives, and its gradients, with a library of kernels."""
    monkeypatch.setitem(sys.modules, "sgl_kernel", module)
    scope: dict[str, Any] = {"__name__": "kept"}
    exec(text, scope)
    torch.manual_seed(0)
    model: nn.Module = scope["Model"]()
    out = model(torch.randn(3, 4))
    out.sin().sum().backward()
    return [out.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize(("name", "strategy"), in_turn(list(KEPT), STRATEGIES))
def test_a_kernel_that_is_kept(monkeypatch: pytest.MonkeyPatch, name: str, strategy: str) -> None:
    text = PROGRAM.format(*KEPT[name])
    fixed = fix(text, strategy=strategy)
    assert fixed != text and fix(fixed, strategy=strategy) == fixed
    got = run(monkeypatch, fixed, torch.no_grad()(gelu_and_mul))
    for a, b in zip(got, run(monkeypatch, text, gelu_and_mul), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", LEFT_OPEN)
def test_what_may_be_one(name: str) -> None:
    (finding,) = findings(PROGRAM.format(*LEFT_OPEN[name]))
    assert finding.rule == "TRN103" and not finding.fixes
    assert "it may be `sgl_kernel.gelu_and_mul` or" in finding.message


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_none(name: str) -> None:
    stays(PROGRAM.format(*OTHERS[name]))


@pytest.mark.parametrize(
    "more",
    [
        "class Other(Model):\n    op = staticmethod(native)\n",
        "class Other(Model):\n    @property\n    def op(self):\n        return native\n",
        "Model.op = staticmethod(native)\n",
    ],
)
@pytest.mark.parametrize("name", ["staticmethod", "property"])
def test_one_that_others_replace(name: str, more: str) -> None:
    assert rules(f"{PROGRAM.format(*KEPT[name])}\n\n{more}") == ["TRN103"]


LAUNCH = """\
import torch
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, y_ptr, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y_ptr + i, tl.load(x_ptr + i) * 2.0)


def twice(x):
    y = torch.empty_like(x)
    double.run(x, y, n=x.numel(), grid=(1,), warmup=False)
    return y
"""


def test_a_launch_by_run() -> None:
    (finding,) = findings(LAUNCH)
    assert finding.rule == "TRN104"
    assert finding.message.startswith("`double` fills `y` below autograd")
    imported = LAUNCH[LAUNCH.index("def twice") :].replace("double.run", "double_kernel.run")
    assert rules(f"import torch\nfrom library import double_kernel\n\n\n{imported}") == ["TRN104"]


def test_what_else_is_run() -> None:
    stays(LAUNCH.replace("grid=(1,), warmup=False", "steps=1"))
    stays(LAUNCH.replace("def twice", "@torch.no_grad()\ndef twice"))


LAYER = """\
import sgl_kernel
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 0.5, 1.5]))
"""
CUT = (
    LAYER
    + """
    @property
    def w(self):
        return self.weight{}

    def forward(self, x):
        return sgl_kernel.rmsnorm(self.up(x), self.w, 1e-6)
"""
)


def learns_like(monkeypatch: pytest.MonkeyPatch, fixed: str, right: str) -> None:
    """Compare with a model whose norm has a backward of its own."""

    def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, eps)

    module = ModuleType("sgl_kernel")
    module.rmsnorm = torch.no_grad()(rmsnorm)  # type: ignore[attr-defined]
    got = of_module(monkeypatch, fixed, module)
    module.rmsnorm = rmsnorm  # type: ignore[attr-defined]
    for a, b in zip(got, of_module(monkeypatch, right, module), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("cut", "strategy"), in_turn([".data", ".detach()", ""], STRATEGIES))
def test_a_weight_that_a_property_cuts_off(
    monkeypatch: pytest.MonkeyPatch, cut: str, strategy: str
) -> None:
    text = CUT.format(cut)
    (finding,) = findings(text)
    assert ("`self.w` cuts the gradient a second time" in finding.message) == bool(cut)
    fixed = fix(text, strategy=strategy)
    learns_like(monkeypatch, fixed, CUT.format(""))


def test_a_property_that_a_subclass_has_otherwise() -> None:
    more = "\n\nclass Other(Model):\n    @property\n    def w(self):\n        return self.up.weight[0]\n"
    assert "F.rms_norm(x_, x_.shape[-1:], self.w, 1e-6)" in fix(CUT.format(".data") + more)


LOCAL = (
    LAYER
    + """
    def w(self):
        return self.weight.data

    def forward(self, x):
        x = self.up(x)
        {}
        return sgl_kernel.rmsnorm(x, w, 1e-6)
"""
)
CUT_BEFORE = {
    "data": "w = self.weight.data",
    "detach and cast": "w = self.weight.detach().to(x.dtype)",
    "of two": "w, eps = self.weight.data, 1e-6",
}
CUT_ELSEWHERE = {
    "a method": "w = self.w()",
    "a scope": "with torch.no_grad():\n            w = self.weight + 1.0",
}


@pytest.mark.parametrize(("name", "strategy"), in_turn(list(CUT_BEFORE), STRATEGIES))
def test_a_weight_that_is_cut_off_above(
    monkeypatch: pytest.MonkeyPatch, name: str, strategy: str
) -> None:
    text = LOCAL.format(CUT_BEFORE[name])
    fixed = fix(text, strategy=strategy)
    assert fix(fixed, strategy=strategy) == fixed
    learns_like(monkeypatch, fixed, LOCAL.format("w = self.weight"))


@pytest.mark.parametrize("name", CUT_ELSEWHERE)
def test_a_weight_that_is_cut_off_elsewhere(name: str) -> None:
    text = LOCAL.format(CUT_ELSEWHERE[name])
    (finding,) = findings(text)
    assert all("no gradient goes on from `w`" in f.look_at for f in finding.fixes.values())
    assert finding.fixes and fix(text) == text


def test_what_is_stopped_above_stays_so() -> None:
    text = LOCAL.format("w = self.weight\n        x = x.detach()")
    assert "F.rms_norm(x, x.shape[-1:], w, 1e-6)" in fix(text)


HELD = """
from dataclasses import dataclass
from types import SimpleNamespace

from vllm import _custom_ops as ops


@dataclass(frozen=True)
class Box:
    size: int
    norm: object = ops.rms_norm


class Kernels:
    norm = staticmethod(ops.rms_norm)

    def __init__(self):
        self.kept = ops.rms_norm


TABLE = {"norm": ops.rms_norm}
SPACE = SimpleNamespace(norm=ops.rms_norm)
BOX = Box(3)
BY_NAME = Box(size=3, norm=ops.rms_norm)
BY_PLACE = Box(3, ops.rms_norm)
KERNELS = Kernels()
"""
USE = """
def f(out, x, w):
    {call}(out, x, w, 1e-5)
    return out
"""
HOLDERS = (
    "TABLE['norm'] TABLE.get('norm') SPACE.norm BOX.norm BY_NAME.norm BY_PLACE.norm Kernels.norm "
    "KERNELS.norm KERNELS.kept"
).split()


@pytest.mark.parametrize("call", HOLDERS)
def test_a_kernel_in_an_object(tmp_path: Path, call: str) -> None:
    (found,) = findings(HELD + USE.format(call=call))
    assert found.rule == "TRN101" and "rms_norm" in (found.op or "") and found.fixes
    (tmp_path / "held.py").write_text(HELD)
    name = call.partition(".")[0].partition("[")[0]
    for imported, before in ((f"from held import {name}", ""), ("import held", "held.")):
        (tmp_path / "use.py").write_text(
            f"from vllm import _custom_ops\n{imported}\n{USE.format(call=before + call)}"
        )
        reports = check_paths([str(tmp_path / "use.py")], Options())
        there = [f for report in reports for f in report.findings]
        assert [f.rule for f in there] == ["TRN101"], imported


@pytest.mark.parametrize(
    "more",
    [
        "{owner}.norm = print",
        "setattr({owner}, 'norm', print)",
        "configure({owner})",
        "{owner} = other()",
        "for {owner} in all_of_them():\n    pass",
    ],
)
@pytest.mark.parametrize("owner", ["SPACE", "BOX", "BY_NAME", "BY_PLACE", "KERNELS"])
def test_an_object_that_may_hold_another(owner: str, more: str) -> None:
    text = HELD + f"\n\n{more.format(owner=owner)}\n" + USE.format(call=f"{owner}.norm")
    assert not any(f.fixes for f in findings(text))


def test_an_object_of_a_class_that_changes_it() -> None:
    text = HELD.replace(
        "    norm: object = ops.rms_norm\n",
        "    norm: object = ops.rms_norm\n\n    def fast(self):\n        self.norm = print\n",
    )
    assert not findings(text + USE.format(call="BY_NAME.norm"))
