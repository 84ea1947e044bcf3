"""What a comment silences, or nobody selected, is not rewritten along with what stands next to it."""

from __future__ import annotations

import pytest
from verbs import findings, fix, stays

from tests.each import in_turn
from trainify.engine import Options, fix_text
from trainify.findings import STRATEGIES

HEAD = "import torch\nfrom torch import nn\n"
NORMS = """\
import torch
from flashinfer import rmsnorm
from vllm import _custom_ops as ops


def returning(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor):
    a = rmsnorm(x, w, 1e-6)
    b = rmsnorm(t, w, 1e-6)  # SILENT
    c = rmsnorm(t, w, 1e-5)
    return a + b + c


def writing(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor):
    a = torch.empty_like(x)
    b = torch.empty_like(t)
    ops.rms_norm(a, x, w, 1e-6)
    ops.rms_norm(b, t, w, 1e-6)  # SILENT
    return a + b


def in_one(x: torch.Tensor, w: torch.Tensor):
    return rmsnorm(
        rmsnorm(x, w, 1e-6),  # SILENT
        w,
        1e-5,
    )
"""
QUIET = ["trainify: ignore", "trainify: ignore[TRN101]", "trainify: stop-grad"]


@pytest.mark.parametrize(("comment", "strategy"), in_turn(QUIET, STRATEGIES))
def test_a_silenced_kernel_stays_alone(comment: str, strategy: str) -> None:
    text = NORMS.replace("SILENT", comment)
    fixed = fix(text, strategy=strategy, unsafe=True)
    for line in text.splitlines():
        if "#" in line and "rmsnorm(x" not in line:
            assert f"\n{line}\n" in fixed, fixed
    inner = fixed.partition("def in_one")[2]
    assert inner == text.partition("def in_one")[2]
    assert not findings(fixed, strategy=strategy)


@pytest.mark.parametrize("strategy", ["flag", "replace", "attach"])
def test_what_is_not_selected_stays(strategy: str) -> None:
    text = """\
import torch
from vllm import _custom_ops as ops


def add_norm(x: torch.Tensor, h: torch.Tensor, r: torch.Tensor, w: torch.Tensor):
    out = torch.empty_like(x)
    ops.rms_norm(out, x, w, 1e-6)
    ops.fused_add_rms_norm(h, r, w, 1e-6)
    return out, h, r
"""
    options = Options(strategy=strategy, unsafe=True, ignore=("TRN102",))
    fixed = fix_text(text, "m.py", options).text
    assert fixed != text
    assert "\n    ops.fused_add_rms_norm(h, r, w, 1e-6)\n" in fixed


@pytest.mark.parametrize("strategy", ["flag", "replace"])
@pytest.mark.parametrize("silent", [0, 1])
def test_writes_in_place(silent: int, strategy: str) -> None:
    lines = ["a.mul_(2)", "b.mul_(2)"]
    lines[silent] += "  # trainify: ignore"
    text = HEAD + (
        "\n\nclass M(nn.Module):\n    def forward(self, x, y):\n"
        "        a = self.lin(x).sigmoid()\n        b = self.lin(y).sigmoid()\n"
        f"        {lines[0]}\n        {lines[1]}\n        return a + b\n"
    )
    fixed = fix(text, strategy=strategy, unsafe=True)
    assert fixed != text
    assert f"\n        {lines[silent]}\n" in fixed


def test_fused_layers() -> None:
    text = """\
import torch
from torch import nn
from vllm.model_executor.layers.activation import SiluAndMul


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = SiluAndMul()

    def forward(self, x, y):
        a = self.act(x)
        b = self.act(y)  # trainify: ignore
        return a + b
"""
    fixed = fix(text, unsafe=True)
    assert "a = self.act.forward_native(x)" in fixed
    assert "\n        b = self.act(y)  # trainify: ignore\n" in fixed
    assert "forward_native(y)" not in fixed


@pytest.mark.parametrize(
    "call", ["rmsnorm(x, w, 1e-6)", "torch.ops.vllm.fused_mla_dual_rms_norm(x, w)"]
)
def test_a_gradient_is_not_to_pass_a_kernel(call: str) -> None:
    text = f"import torch\nfrom flashinfer import rmsnorm\n\n\ndef f(x, w):\n    return {call}\n"
    assert findings(text)
    stays(text.replace(f"{call}\n", f"{call}  # trainify: stop-grad\n"))
