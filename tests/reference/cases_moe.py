"""Cases of routers, of products per expert or adapter, and of what surrounds them."""

from __future__ import annotations

import math

import torch

from tests.reference.cases import (
    Case,
    Tensor,
    expect_rows,
    expect_sigmoid_topk,
    expect_softmax,
    expect_topk,
    of_groups,
    wide,
)
from trainify.reference import embedding, lora, moe, softmax


def expect_sigmoid_rows(
    gating: Tensor, k: int, renormalize: bool, bias: Tensor | None, scale: float
) -> tuple[Tensor, ...]:
    weights, ids = expect_sigmoid_topk(gating, k, renormalize, bias)
    return expect_rows((weights * scale, ids))


def expect_of_scores(
    scores: Tensor,
    biased: Tensor,
    k: int,
    renormalize: bool,
    groups: int,
    kept: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    weights, ids = expect_topk(
        wide(scores), of_groups(wide(biased), groups, kept, 2), k, renormalize
    )
    return (weights * scale).to(biased.dtype), ids


def expect_grouped_linear(x: Tensor, weights: Tensor, starts: Tensor, dtype: torch.dtype) -> Tensor:
    owner = [e for e, n in enumerate(starts.diff().tolist()) for _ in range(n)]
    rows = [wide(weights[e]) @ wide(row) for e, row in zip(owner, x, strict=True)]
    return torch.stack(rows).to(dtype)


def products(x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
    rows = [
        wide(weights.reshape(3, 2, 4)[int(i)]) @ wide(row[:4])
        for i, row in zip(indices, x.expand(len(indices), -1), strict=True)
    ]
    return torch.stack(rows)


def expect_shrink(x: Tensor, weights: Tensor, out: Tensor, indices: Tensor, scale: float) -> Tensor:
    out = out.clone()
    out[:, :2] = products(x, weights, indices) * scale
    return out


def expect_expand(
    x: Tensor, weights: Tensor, out: Tensor, indices: Tensor, offset: int, add: bool
) -> Tensor:
    out = out.clone()
    fresh = products(x, weights, indices).to(out.dtype)
    kept = out[:, offset : offset + 2].clone()
    out[:, offset : offset + 2] = kept + fresh if add else fresh
    return out


def expect_timesteps(
    t: Tensor, dim: int, flip: bool, shift: float, scale: float, period: float, dtype: torch.dtype
) -> Tensor:
    out = torch.zeros(len(t), dim, dtype=wide(t).dtype)
    half = dim // 2
    for i in range(half):
        angle = scale * wide(t) * math.exp(-math.log(period) * i / (half - shift))
        out[:, i], out[:, half + i] = (
            (angle.cos(), angle.sin()) if flip else (angle.sin(), angle.cos())
        )
    return out.to(dtype)


def expect_stretches(logits: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    out = torch.zeros_like(logits)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        part = wide(logits[:, start : start + length])
        out[:, start : start + length] = expect_softmax(part).to(logits.dtype)
    return out


CASES = [
    Case(moe.sigmoid_topk_rows, expect_sigmoid_rows),
    Case(moe.grouped_topk_of_scores, expect_of_scores),
    Case(moe.grouped_linear, expect_grouped_linear),
    Case(lora.lora_shrink, expect_shrink),
    Case(lora.lora_expand, expect_expand),
    Case(embedding.timestep_embedding, expect_timesteps),
    Case(softmax.softmax_packed, expect_stretches),
]
