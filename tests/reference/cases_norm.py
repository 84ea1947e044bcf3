"""Cases of norms and sums fused for one library's layers."""

from __future__ import annotations

from typing import Any

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


def expect_shifted(x: Tensor, weight: Tensor, eps: float, shift: float, scaled: bool) -> Tensor:
    factor = wide(weight) + shift if scaled else 1.0
    return (normed(x, eps) * factor).to(x.dtype)


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


def expect_head_norms(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, offset: float = 1.0
) -> tuple[Tensor, ...]:
    pairs = ((q, q_weight), (k, k_weight))
    return tuple((normed(x, eps) * (wide(w) + offset)).to(x.dtype) for x, w in pairs)


def expect_gemma_heads(q: Tensor, k: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *rest, dim = rest
    heads = [
        torch.stack([x[t, h : h + dim] for t in range(len(x)) for h in range(0, x.shape[1], dim)])
        for x in (q, k)
    ]
    return expect_head_norms(*heads, *rest)


def expect_gated_heads(q_gate: Tensor, k: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    dim = rest[-1]
    parts = [x for row in q_gate for x in row.split(dim)]
    gate = torch.stack(parts[1::2])
    q = torch.cat(parts[::2]).view(len(q_gate), -1)
    return *expect_gemma_heads(q, k, *rest), gate


def expect_joined(
    embeds: Tensor,
    hidden: Tensor,
    first: Tensor,
    second: Tensor,
    eps: float,
    positions: Tensor | None,
) -> Tensor:
    out = []
    for t in range(len(embeds)):
        known = embeds[t] * (0 if positions is not None and positions[t] == 0 else 1)
        out.append(
            torch.cat((normed(known, eps) * wide(first), normed(hidden[t], eps) * wide(second)))
        )
    return torch.stack(out).to(hidden.dtype)


def expect_sigmoid_gated(x: Tensor, gate: Tensor) -> Tensor:
    flat = gate.flatten(1)
    gates = flat.expand_as(x) if flat.shape[1] == 1 else flat
    return (wide(x) / (1 + torch.exp(-wide(gates)))).to(x.dtype)


def expect_projected(hidden: Tensor, weight: Tensor, x: Tensor, residual: Tensor | None) -> Tensor:
    score = (wide(hidden) * wide(weight)).sum(-1, keepdim=True)
    total = wide(x) / (1 + torch.exp(-score))
    return (total if residual is None else total + wide(residual)).to(x.dtype)


CASES = [
    Case(norm.qk_rms_norm, expect_head_norms),
    Case(norm.gemma_norm_of_heads, expect_gemma_heads),
    Case(norm.gemma_norm_of_gated_heads, expect_gated_heads),
    Case(norm.joined_norms, expect_joined),
    Case(activation.sigmoid_gated, expect_sigmoid_gated),
    Case(activation.gated_by_projection, expect_projected),
    Case(norm.fused_add_add_rms_norm, expect_add_add_norm, exact=True),
    Case(norm.dual_residual_rms_norm, expect_dual_residual),
    Case(norm.shifted_rms_norm, expect_shifted),
    Case(norm.layer_norm_of_sum, expect_norm_of_sum),
    Case(norm.head_layer_norm_clamped, expect_head_norm),
    Case(activation.residual_add_bias, expect_block_sum, exact=True),
    Case(activation.swigluoai_halves_and_mul, expect_halves),
]
