"""Cases of attention with its projections, and in the layouts of one library each."""

from __future__ import annotations

from typing import Any

import torch

from tests.reference.cases import EPS, Case, Draw, Tensor, expect_layer_norm, expect_softmax, wide
from trainify.reference import attention


def draw_split(draw: Draw) -> tuple[Any, ...]:
    return draw.tensor(2, draw.size(1, 3), 12), draw.tensor(12), 2


def expect_split(qkv: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, ...]:
    total = qkv + bias
    out = []
    for part in (total[..., :4], total[..., 4:8], total[..., 8:]):
        out.append(torch.stack((part[..., :2], part[..., 2:]), dim=1))
    return out[0] * 2**-0.5, out[1], out[2]


def draw_projections(draw: Draw) -> tuple[Any, ...]:
    shapes = ((12, 4), (12,), (4, 4), (4,))
    return 2, *(draw.tensor(*shape, scale=0.5) for shape in shapes)


def draw_self(draw: Draw) -> tuple[Any, ...]:
    return draw.tensor(2, draw.size(2, 3), 4), *draw_projections(draw)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (wide(x) @ wide(weight).T + wide(bias)).to(x.dtype)


def expect_heads(
    query: Tensor, key: Tensor, value: Tensor, heads: int, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """What the heads give, side by side, and their weights [B, heads, Sq, Sk]."""
    q, k, v = (
        affine(x, weight[4 * i : 4 * i + 4], bias[4 * i : 4 * i + 4])
        for i, x in enumerate((query, key, value))
    )
    out, weights = [], []
    for h in range(heads):
        own = slice(2 * h, 2 * h + 2)
        scores = wide(q[..., own]) @ wide(k[..., own]).mT / 2**0.5
        weights.append(expect_softmax(scores))
        out.append((weights[-1] @ wide(v[..., own])).to(query.dtype))
    return torch.cat(out, -1), torch.stack(weights, 1)


def expect_self(x: Tensor, heads: int, w: Tensor, b: Tensor, p: Tensor, c: Tensor) -> Tensor:
    return affine(expect_heads(x, x, x, heads, w, b)[0], p, c)


def draw_multi_head(draw: Draw) -> tuple[Any, ...]:
    tensors = [draw.tensor(2, n, 4) for n in (draw.size(1, 3), 3, 3)]
    return *tensors, *draw_projections(draw), draw.flag(), draw.flag()


def expect_multi_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    w: Tensor,
    b: Tensor,
    p: Tensor,
    c: Tensor,
    need: bool,
    average: bool,
) -> tuple[Tensor, Tensor | None]:
    out, weights = expect_heads(query, key, value, heads, w, b)
    shown = (weights.sum(1) / heads if average else weights).to(query.dtype)
    return affine(out, p, c), shown if need else None


def draw_layer(draw: Draw) -> tuple[Any, ...]:
    norms = [draw.tensor(4) for _ in range(4)]
    ffn = [draw.tensor(*shape, scale=0.5) for shape in ((6, 4), (6,), (4, 6), (4,))]
    return *draw_self(draw), draw.flag(), draw.flag(), EPS, *norms, *ffn


def expect_layer(
    src: Tensor,
    heads: int,
    w: Tensor,
    b: Tensor,
    p: Tensor,
    c: Tensor,
    gelu: bool,
    norm_first: bool,
    eps: float,
    n1: Tensor,
    m1: Tensor,
    n2: Tensor,
    m2: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
) -> Tensor:
    def fed(x: Tensor) -> Tensor:
        hidden = wide(affine(x, w1, b1))
        active = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5)) if gelu else hidden.clip(min=0)
        return affine(active.to(x.dtype), w2, b2)

    if norm_first:
        x = src + expect_self(expect_layer_norm(src, n1, m1, eps), heads, w, b, p, c)
        return x + fed(expect_layer_norm(x, n2, m2, eps))
    x = expect_layer_norm(src + expect_self(src, heads, w, b, p, c), n1, m1, eps)
    return expect_layer_norm(x + fed(x), n2, m2, eps)


CASES = [
    Case(attention.split_and_scale, draw_split, expect_split),
    Case(attention.self_attention, draw_self, expect_self),
    Case(attention.multi_head_attention, draw_multi_head, expect_multi_head),
    Case(attention.transformer_encoder_layer, draw_layer, expect_layer),
]
