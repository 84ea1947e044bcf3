"""Cases of routers, of products per expert or adapter, and of what surrounds them."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.reference.cases import (
    Case,
    Draw,
    Tensor,
    draw_gating,
    expect_grouped_topk,
    expect_rows,
    expect_sigmoid_topk,
    expect_softmax,
    expect_topk,
    packed,
    wide,
)
from trainify.reference import embedding, lora, moe, softmax


def draw_sigmoid_rows(draw: Draw) -> tuple[Any, ...]:
    bias = draw.tensor(4, scale=0.01) if draw.flag() else None
    return draw_gating(draw), 2, draw.flag(), bias, 2.5


def expect_sigmoid_rows(
    gating: Tensor, k: int, renormalize: bool, bias: Tensor | None, scale: float
) -> tuple[Tensor, ...]:
    weights, ids = expect_sigmoid_topk(gating, k, renormalize, bias)
    return expect_rows((weights * scale, ids))


def expect_rounded_rows(gating: Tensor, k: int, _: bool, dtype: torch.dtype) -> tuple[Tensor, ...]:
    scores = expect_softmax(wide(gating))
    weights, ids, rows = expect_rows(expect_topk(scores, scores, k, False))
    return weights.to(dtype), ids, rows


def draw_best(draw: Draw) -> tuple[Any, ...]:
    bias = draw.tensor(6, scale=0.001) if draw.flag() else None
    return draw_gating(draw, 6), 2, draw.flag(), 3, 2, "sigmoid", 1.0, bias, 2


def expect_best(*args: Any) -> tuple[Tensor, Tensor]:
    *common, bias, _ = args
    none = torch.zeros(6, dtype=wide(args[0]).dtype)
    return expect_grouped_topk(*common, none if bias is None else bias)


def draw_of_scores(draw: Draw) -> tuple[Any, ...]:
    scores = torch.sigmoid(draw_gating(draw, 6))
    return scores, scores + draw.tensor(6, scale=0.001), 2, draw.flag(), 3, 2, 2.5


def expect_of_scores(
    scores: Tensor,
    biased: Tensor,
    k: int,
    renormalize: bool,
    groups: int,
    kept: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    size = scores.shape[1] // groups
    choice = wide(biased).detach().clone()
    for row in choice:
        parts = [row[i * size : (i + 1) * size] for i in range(groups)]
        worth = [float(p.sort(descending=True).values[:2].sum()) for p in parts]
        for i in sorted(range(groups), key=lambda i: worth[i])[: groups - kept]:
            parts[i][:] = -torch.inf
    weights, ids = expect_topk(wide(scores), choice, k, renormalize)
    return (weights * scale).to(biased.dtype), ids


def expect_scores(
    gating: Tensor, k: int, renormalize: bool, groups: int, kept: int, _: str, scale: float,
    bias: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    scores = wide(gating)
    return expect_of_scores(scores, scores + wide(bias), k, renormalize, groups, kept, scale)


def draw_grouped_linear(draw: Draw) -> tuple[Any, ...]:
    lengths = [draw.size(0, 2), draw.size(1, 3)]
    return draw.tensor(sum(lengths), 3), draw.tensor(2, 4, 3), packed(lengths), draw.dtype


def expect_grouped_linear(x: Tensor, weights: Tensor, starts: Tensor, dtype: torch.dtype) -> Tensor:
    owner = [e for e, n in enumerate(starts.diff().tolist()) for _ in range(n)]
    rows = [wide(weights[e]) @ wide(row) for e, row in zip(owner, x, strict=True)]
    return torch.stack(rows).to(dtype)


def draw_adapters(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    weights = draw.tensor(3, 2, 4)
    weights = weights.unsqueeze(1) if draw.flag() else weights
    return draw.tensor(5, 4 + draw.size(0, 1)), weights, draw.integers(3, 5)


def products(x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
    rows = [
        wide(weights.reshape(3, 2, 4)[int(i)]) @ wide(row[:4])
        for i, row in zip(indices, x.expand(len(indices), -1), strict=True)
    ]
    return torch.stack(rows)


def draw_shrink(draw: Draw) -> tuple[Any, ...]:
    x, weights, indices = draw_adapters(draw)
    return x, weights, draw.tensor(5, 2 + draw.size(0, 1)), indices, 0.5


def expect_shrink(x: Tensor, weights: Tensor, out: Tensor, indices: Tensor, scale: float) -> Tensor:
    out = out.clone()
    out[:, :2] = products(x, weights, indices) * scale
    return out


def draw_expand(draw: Draw) -> tuple[Any, ...]:
    x, weights, indices = draw_adapters(draw)
    x = x[:1] if draw.flag() else x
    return x, weights, draw.tensor(5, 4), indices, draw.size(0, 2), draw.flag()


def expect_expand(
    x: Tensor, weights: Tensor, out: Tensor, indices: Tensor, offset: int, add: bool
) -> Tensor:
    out = out.clone()
    fresh = products(x, weights, indices).to(out.dtype)
    kept = out[:, offset : offset + 2].clone()
    out[:, offset : offset + 2] = kept + fresh if add else fresh
    return out


def draw_timesteps(draw: Draw) -> tuple[Any, ...]:
    t = draw.tensor(draw.size(), scale=9)
    return (
        t,
        draw.random.choice((4, 7)),
        draw.flag(),
        draw.random.choice((0, 1)),
        0.7,
        100.0,
        t.dtype,
    )


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


def draw_stretches(draw: Draw) -> tuple[Any, ...]:
    lengths = torch.tensor([draw.size(1, 3), draw.size(1, 3)])
    starts = torch.tensor([1, 1 + int(lengths[0])])
    return draw.tensor(2, int(lengths.sum()) + 2), starts, lengths


def expect_stretches(logits: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    out = torch.zeros_like(logits)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        part = wide(logits[:, start : start + length])
        out[:, start : start + length] = expect_softmax(part).to(logits.dtype)
    return out


CASES = [
    Case(moe.sigmoid_topk_rows, draw_sigmoid_rows, expect_sigmoid_rows),
    Case(
        moe.softmax_topk_rows,
        lambda draw: (draw_gating(draw), 2, False, draw.dtype),
        expect_rounded_rows,
        name="rounded",
    ),
    Case(moe.grouped_topk, draw_best, expect_best, name="best-two"),
    Case(
        moe.grouped_topk,
        lambda draw: (*draw_best(draw)[:5], "scores", 2.5, draw.tensor(6, scale=0.001)),
        expect_scores,
        name="scores",
    ),
    Case(moe.grouped_topk_of_scores, draw_of_scores, expect_of_scores),
    Case(moe.grouped_linear, draw_grouped_linear, expect_grouped_linear),
    Case(lora.lora_shrink, draw_shrink, expect_shrink),
    Case(lora.lora_expand, draw_expand, expect_expand),
    Case(embedding.timestep_embedding, draw_timesteps, expect_timesteps),
    Case(softmax.softmax_packed, draw_stretches, expect_stretches),
]
