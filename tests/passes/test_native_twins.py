"""A kernel in a layer that owns a ``forward_native``: that one runs where a gradient is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest
from verbs import becomes, findings, fix, stays

from trainify.engine import Options, fix_text
from trainify.facts import Project

HEAD = """\
import torch
import torch.nn.functional as F
from vllm.model_executor.custom_op import CustomOp


"""
LAYER = (
    HEAD
    + '''\
class GeluAndMul(CustomOp):
    def __init__(self, approximate="none"):
        super().__init__()
        if approximate == "none":
            self.op = torch.ops._C.gelu_and_mul
        else:
            self.op = torch.ops._C.gelu_tanh_and_mul
        self.approximate = approximate

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        d = x.shape[-1] // 2
        return F.gelu(x[..., :d], approximate=self.approximate) * x[..., d:]

    def forward_cuda(self, x: torch.Tensor) -> torch.Tensor:
        """By the kernel."""
        # half as wide
        d = x.shape[-1] // 2
        out = torch.empty(x.shape[:-1] + (d,), dtype=x.dtype, device=x.device)
        self.op(out, x)
        return out
'''
)
CALL = """\
        if torch.is_grad_enabled() and x.requires_grad:
            return self.forward_native(x)
"""


def test_which_of_two_kernels_it_is_makes_no_difference() -> None:
    becomes(LAYER, LAYER.replace("        # half", CALL + "        # half"))


@pytest.mark.parametrize("strategy", ["flag", "replace", "attach"])
def test_every_strategy_calls_it(strategy: str) -> None:
    assert CALL in fix(LAYER, strategy=strategy)


def test_replace_leaves_nothing_else_where_no_comment_is_lost() -> None:
    text = LAYER.replace("        # half as wide\n", "")
    head, _, _ = text.partition("        d = x.shape[-1] // 2\n        out = ")
    becomes(text, head + "        return self.forward_native(x)\n", strategy="replace")


def test_the_training_flag() -> None:
    assert CALL.replace("torch.is_grad_enabled() and x.requires_grad", "self.training") in fix(
        LAYER, flag="training"
    )


def test_positions_have_no_gradient() -> None:
    arguments = "self, x: torch.Tensor"
    text = LAYER.replace(arguments, f"{arguments}, positions: torch.Tensor")
    call = CALL.replace("forward_native(x)", "forward_native(x, positions)")
    assert call in fix(text)


def test_a_layer_with_weights_asks_the_grad_mode() -> None:
    text = LAYER.replace(
        "self.approximate = ", "self.w = torch.nn.Parameter(w)\n        self.approximate = "
    )
    assert "        if torch.is_grad_enabled():\n            return self.forward_native(x)" in fix(
        text
    )


def test_a_class_that_nobody_picks_a_forward_of() -> None:
    (finding,) = findings(LAYER.replace("(CustomOp)", "(torch.nn.Module)"))
    assert "must compute the same as `forward_cuda`" in finding.fixes["flag"].look_at


def test_a_kernel_that_was_not_looked_at() -> None:
    text = LAYER.replace("self.op(out, x)", "torch.ops.vllm.fused_mla_dual_rms_norm(out, x)")
    assert [f.rule for f in findings(text)] == ["TRN108"]
    assert CALL in fix(text)


STATIC = """\
    @staticmethod
    def act(x, approximate):
        d = x.shape[-1] // 2
        return F.gelu(x[..., :d], approximate=approximate) * x[..., d:]

"""


@pytest.mark.parametrize(("cut", "fixed"), [("", True), (".detach()", False)])
def test_a_twin_that_calls_a_method_of_its_own(cut: str, fixed: bool) -> None:
    before, _, after = LAYER.partition("        d = x.shape[-1] // 2\n        return F.gelu")
    call = "        return self.act(x, self.approximate)" + after[after.index("\n") :]
    static = STATIC.replace("* x[..., d:]", f"* x[..., d:]{cut}")
    text = (before + call).replace("    def forward_native", static + "    def forward_native")
    assert (CALL in fix(text)) == fixed


@pytest.mark.parametrize(("cut", "fixed"), [("", True), (".detach()", False)])
def test_a_twin_that_calls_a_method_of_another_file(tmp_path: Path, cut: str, fixed: bool) -> None:
    before, _, after = LAYER.partition("        d = x.shape[-1] // 2\n        return F.gelu")
    call = "        return Common.act(x, self.approximate)" + after[after.index("\n") :]
    static = STATIC.replace("* x[..., d:]", f"* x[..., d:]{cut}")
    (tmp_path / "common.py").write_text(
        f"import torch.nn.functional as F\n\n\nclass Common:\n{static}"
    )
    text = f"from common import Common\n{before}{call}"
    project = Project((str(tmp_path),))
    result = fix_text(text, str(tmp_path / "layer.py"), Options(), project)
    assert (CALL in result.text) == fixed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def forward_native(self, x:", "def forward_native(self, x: torch.Tensor, y:"),
        ("def forward_native", "def forward_plain"),
        ("return F.gelu(x[..., :d]", "return kernel(x[..., :d]"),
        ("return F.gelu(x[..., :d]", "return F.gelu(x.data[..., :d]"),
        ("def forward_cuda", "def apply_cuda"),
    ],
)
def test_what_is_no_twin(old: str, new: str) -> None:
    assert old in LAYER
    text = LAYER.replace(old, new)
    (finding,) = findings(text)
    assert finding.rule == "TRN103" and not finding.fixes


# -- classes that are picked ----------------------------------------------------------------------


@pytest.mark.parametrize("other", ["torch.nn.LayerNorm", "vllm.attention.Attention"])
def test_a_call_that_builds_one_of_two_layers(other: str) -> None:
    stays(
        f"import torch\nimport vllm.attention\n"
        f"from vllm.model_executor.layers.layernorm import RMSNorm\n\n\ndef build(config):\n"
        f"    cls = RMSNorm if config.rms else {other}\n    return cls(config.width, config.eps)\n"
    )


# -- callers of a function of the same name -------------------------------------------------------


def test_a_kernel_s_name_is_not_a_call_of_the_function_around_it() -> None:
    text = """\
import torch
from vllm import _custom_ops as ops


def fused_add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float):
    ops.fused_add_rms_norm(x, residual, weight, eps)
    return x, residual
"""
    assert "        residual = x + residual\n" in fix(text)
    more = "\n\ndef step(x, r, w):\n    fused_add_rms_norm(x, r, w, 1e-6)\n    return x\n"
    assert "copy_(" in fix(text + more, unsafe=True)


# -- names and imports ----------------------------------------------------------------------------


def test_two_kernels_of_one_name_get_names_of_their_library() -> None:
    text = """\
import torch
import aiter
from vllm import _custom_ops as ops


def a(x, w):
    out = torch.empty_like(x)
    ops.rms_norm(out, x, w, 1e-6)
    return out


def b(x, w):
    return aiter.rms_norm(x, w, 1e-6)
"""
    fixed = fix(text, strategy="attach")
    assert "class RMSNorm(torch" in fixed and "class RMSNormFunction(torch" in fixed
    taken = fix(text + "\n\nclass RMSNorm:\n    pass\n", strategy="attach")
    assert "class RMSNormFunction(torch" in taken and "class AiterRMSNorm(torch" in taken


def test_imports_from_outside_come_before_the_package_s_own() -> None:
    text = "{}from .kernels import helper\n\nfrom vllm import _custom_ops as ops\n\n\n" + (
        "def f(out, x):\n    ops.silu_and_mul(out, x)\n"
    )
    assert fix(text.format("")).startswith(
        "import torch\nimport torch.nn.functional as F\n\nfrom .kernels import helper\n"
    )
    assert fix(text.format("import math\n")).startswith("import math\n")


def test_it_is_surer_than_the_other_side_of_a_test() -> None:
    text = LAYER.replace("        self.op(out, x)\n", "").replace(
        "        # half as wide\n",
        "        if x.is_cpu:\n            return torch.ops.sgl_kernel.fused_qk_norm_cpu(x)\n",
    )
    assert CALL in fix(text)


def test_it_does_not_go_round_a_kernel_that_a_comment_keeps() -> None:
    other = "self.op(out, x)\n        out = torch.ops.vllm.fused_mla_dual_rms_norm(out, x)"
    text = LAYER.replace("self.op(out, x)", other)
    assert CALL in fix(text, unsafe=True)
    silenced = text.replace(other, f"{other}  # trainify: ignore[TRN108]")
    assert fix(silenced, unsafe=True) == silenced


@pytest.mark.parametrize("body", ["pass", "...", "raise NotImplementedError"])
def test_a_twin_that_is_only_announced(body: str) -> None:
    before, _, after = LAYER.partition("        d = x.shape[-1] // 2\n        return F.gelu")
    text = f"{before}        {body}\n{after[after.index(chr(10)) + 1 :]}"
    assert fix(text) == text
