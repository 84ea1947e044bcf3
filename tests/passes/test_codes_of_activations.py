"""Matmuls of codes that an activation was rounded to on the spot, as in layers that serve in fp8."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stand_in_kernels import stand_in
from verbs import findings, fix

from trainify.catalog import all_ops
from trainify.findings import Safety
from trainify.passes.fused_calls.rounded import ACTIVATION

LINEAR = """\
import torch
from torch import nn
from vllm import _custom_ops as ops


class Linear(nn.Module):
    def __init__(self, weight, scale):
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.a = nn.Parameter(torch.randn(2, weight.shape[1]))
        self.b = nn.Parameter(torch.randn(weight.shape[0], 2))

    def forward(self, x):
        x = torch.tanh(x)
        codes, scale = ops.scaled_fp8_quant(x, use_per_token_if_dynamic=True)
        out = ops.cutlass_scaled_mm(codes, self.weight.t(), scale, self.scale, x.dtype)
        return out + x @ self.a.t() @ self.b.t()
"""
BLOCKS = """\
import torch
from vllm.model_executor.layers.quantization.utils.fp8_utils import (
    per_token_group_quant_fp8,
    w8a8_block_fp8_matmul,
)


def linear(x, weight, scale):
    codes, x_scale = per_token_group_quant_fp8(x, 128)
    return w8a8_block_fp8_matmul(codes, weight, x_scale, scale, [128, 128], x.dtype)
"""


@torch.no_grad()
def scaled_fp8_quant(x: torch.Tensor, **others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float() / 8
    return (x.float() / scale).round(), scale


@torch.no_grad()
def cutlass_scaled_mm(
    a: torch.Tensor, b: torch.Tensor, scale_a: Any, scale_b: Any, dtype: torch.dtype
) -> torch.Tensor:
    return ((a @ b.float()) * scale_a * scale_b).to(dtype)


@pytest.mark.parametrize("strategy", ["flag", "replace"])
def test_the_activation_has_the_gradient_of_the_dequantized_weight(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = {"scaled_fp8_quant": scaled_fp8_quant, "cutlass_scaled_mm": cutlass_scaled_mm}
    stand_in(monkeypatch, "vllm._custom_ops", **kernels)
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    exec(compile(LINEAR, "m.py", "exec"), before)
    exec(compile(fix(LINEAR, strategy=strategy, unsafe=True), "m.py", "exec"), after)
    torch.manual_seed(0)
    weight, scale = torch.randint(-8, 9, (3, 4)).float(), torch.rand(1, 3)
    served, layer = before["Linear"](weight, scale), after["Linear"](weight, scale)
    layer.load_state_dict(served.state_dict())
    x = torch.randn(5, 4, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    layer(x).square().sum().backward()
    y = torch.tanh(other)
    a, b = (p.detach().clone().requires_grad_() for p in (layer.a, layer.b))
    (y @ (weight * scale.t()).t() + y @ a.t() @ b.t()).square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad)
    torch.testing.assert_close(layer.a.grad, a.grad)
    if strategy == "flag":
        with torch.no_grad():
            assert torch.equal(layer(x), served(x))


def test_it_is_said_once_and_no_more_after_the_fix() -> None:
    (found,) = findings(LINEAR)
    assert found.message.endswith("no gradient reaches `x`.")
    assert found.fixes["flag"].safety is Safety.UNSAFE
    assert "`ops.scaled_fp8_quant` no longer rounds it" in found.fixes["flag"].look_at
    assert "attach" not in found.fixes
    for strategy in ("flag", "replace"):
        assert not findings(fix(LINEAR, strategy=strategy, unsafe=True))


def test_scales_of_blocks() -> None:
    (found,) = findings(BLOCKS)
    assert "no gradient reaches `weight` and `x`" in found.message
    assert "return (x.float() @ (weight.float() * scale_b).t()).to(x.dtype)" in fix(
        BLOCKS, unsafe=True
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(x, use_per", "(x, num_token_padding=16, use_per"),
        ("True)\n", "True)\n        x = x * 2\n"),
        ("(x, use_per", "(self.norm(x), use_per"),
    ],
)
def test_what_is_not_the_activation_any_more_is_no_substitute(old: str, new: str) -> None:
    quantizer, matmul = findings(LINEAR.replace(old, new, 1))
    assert "gives codes" in quantizer.message and not quantizer.fixes
    assert "Not rewritten: its codes come from `ops.scaled_fp8_quant`" in matmul.message
    assert not matmul.fixes


def test_no_argument_of_an_op_is_called_like_the_activation() -> None:
    assert not [op.names for op in all_ops() if ACTIVATION in op.schema]


def test_codes_from_elsewhere_are_taken_as_they_are() -> None:
    text = LINEAR.replace(
        "codes, scale = ops.scaled_fp8_quant(x, use_per_token_if_dynamic=True)",
        "codes, scale = x, self.given",
    )
    (found,) = findings(text)
    assert "`codes`" in found.message and found.fixes["flag"].safety is Safety.SAFE


def test_integer_weights_are_not_said_to_lose_a_gradient() -> None:
    text = """\
    from lightllm.common.basemodel.triton_kernel.dequantize_gemm_int8 import (
        matmul_dequantize_int8,
    )


    def forward(x, qw, scale):
        return matmul_dequantize_int8(x, qw, scale)
    """
    (found,) = findings(text)
    assert "no gradient reaches `x`." in found.message
    assert "if torch.is_grad_enabled() and x.requires_grad:" in fix(text)
