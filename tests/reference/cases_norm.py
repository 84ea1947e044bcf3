"""Cases of norms and sums fused for one library's layers."""

from __future__ import annotations

import torch

from tests.reference.cases import (
    Case,
    Tensor,
    expect_rms_norm,
    normed,
    wide,
)
from trainify.reference import activation, norm


def expect_dual_residual(
    x: Tensor, residual: Tensor, weight1: Tensor, weight2: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    total = residual + expect_rms_norm(x, weight1, eps)
    return expect_rms_norm(total, weight2, eps), total


def expect_norm_of_sum(
    x: Tensor, x_bias: Tensor | None, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    total = wide(x) if x_bias is None else wide(x) + wide(x_bias)
    total = total + wide(residual)
    centred = wide(total.to(x.dtype)) - total.mean(-1, keepdim=True)
    normed = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)
    return (normed * wide(weight) + wide(bias)).to(x.dtype)


def expect_head_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    x_wide = wide(x).clip(-65504, 65504)
    centred = x_wide - x_wide.mean(-1, keepdim=True)
    normed = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)
    normed = (normed * wide(weight)).to(x.dtype)
    return normed if bias is None or bias.is_meta else normed + bias


def expect_block_sum(
    hidden: Tensor,
    residual: Tensor,
    attended: Tensor,
    attn_bias: Tensor,
    final_bias: Tensor,
    devices: int,
    mlp_after_attn: bool,
    add_attn_bias: bool,
    pre_attn_norm: bool,
) -> Tensor:
    shared = residual + final_bias
    if not mlp_after_attn:
        total = hidden + attended + shared / devices
        return total + attn_bias / devices if add_attn_bias else total
    if not pre_attn_norm:
        return hidden + residual + final_bias
    return hidden + (shared + attended + attn_bias) / devices


def expect_halves(x: Tensor, alpha: float, limit: float) -> Tensor:
    gate, up = (wide(t) for t in (x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]))
    gate, up = gate.clip(max=limit), up.clip(-limit, limit)
    return ((up + 1) * gate / (1 + torch.exp(-alpha * gate))).to(x.dtype)


def expect_add_add_norm(
    x: Tensor, other: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    total = wide(x + other) + wide(residual)
    return (normed(total, eps) * wide(weight)).to(x.dtype), total.to(x.dtype)


CASES = [
    Case(norm.fused_add_add_rms_norm, expect_add_add_norm, exact=True),
    Case(norm.dual_residual_rms_norm, expect_dual_residual),
    Case(norm.layer_norm_of_sum, expect_norm_of_sum),
    Case(norm.head_layer_norm_clamped, expect_head_norm),
    Case(activation.residual_add_bias, expect_block_sum, exact=True),
    Case(activation.swigluoai_halves_and_mul, expect_halves),
]
