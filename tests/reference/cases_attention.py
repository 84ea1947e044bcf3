"""Cases of attention with its projections, and in the layouts of one library each."""

from __future__ import annotations

from typing import Any

import torch

from tests.reference.cases import (
    Case,
    Tensor,
    expect_attention,
    expect_layer_norm,
    expect_softmax,
    packed,
    wide,
)
from trainify.reference import attention


def expect_split(qkv: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, ...]:
    total = qkv + bias
    out = []
    for part in (total[..., :4], total[..., 4:8], total[..., 8:]):
        out.append(torch.stack((part[..., :2], part[..., 2:]), dim=1))
    return out[0] * 2**-0.5, out[1], out[2]


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


def expect_pooled_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    index: Tensor,
    lengths: Tensor,
    cached: Tensor,
) -> Tensor:
    out, row = [], 0
    for b, length in enumerate(lengths.tolist()):
        rows = table[index[b], :length].long()
        for place in range(int(cached[b]), length):
            seen = rows[: place + 1]
            own = expect_attention(q[row][None, None], k[seen][None], v[seen][None])
            out.append(own[0, 0])
            row += 1
    return torch.stack(out)


def expect_indexed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    indices: Tensor,
    scale: float,
    cap: float,
    sinks: Tensor | None = None,
) -> Tensor:
    out, group = [], q.shape[1] // k.shape[1]
    for b in range(len(q)):
        rows = indices[int(starts[b]) : int(starts[b + 1])]
        heads = []
        for h in range(q.shape[1]):
            scores = wide(k[rows, h // group]) @ wide(q[b, h]) * scale
            scores = cap * torch.tanh(scores / cap) if cap else scores
            values = wide(v[rows, h // group])
            if sinks is not None:  # a key that is seen in addition, whose value is nothing
                scores = torch.cat((scores, wide(sinks)[h : h + 1]))
                values = torch.cat((values, torch.zeros_like(values[:1])))
            heads.append(expect_softmax(scores) @ values)
        out.append(torch.stack(heads))
    return torch.stack(out).to(q.dtype)


def expect_extended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    starts: Tensor,
    prefixes: Tensor,
    indices: Tensor,
    causal: bool,
    scale: float | None,
    cap: float,
    sinks: Tensor | None,
) -> Tensor:
    out = []
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    for b in range(2):
        first, end = int(starts[b]), int(starts[b + 1])
        rows = indices[int(prefixes[b]) : int(prefixes[b + 1])]
        for place in range(first, end):
            last = place + 1 if causal else end
            keys = torch.cat((k_pool[rows], k[first:last]))
            values = torch.cat((v_pool[rows], v[first:last]))
            ends = torch.tensor([0, len(keys)])
            alone = expect_indexed(
                q[place][None], keys, values, ends, torch.arange(len(keys)), scale, cap, sinks
            )
            out.append(alone[0])
    return torch.stack(out)


def expect_with_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: Tensor,
    lengths: Tensor,
    scale: float,
    page: int,
    cap: float,
) -> tuple[Tensor, Tensor]:
    rows = [
        int(tables[b, place // page]) * page + place % page
        for b, length in enumerate(lengths.tolist())
        for place in range(length)
    ]
    flat = [pool.reshape(-1, *pool.shape[-2:]) for pool in (k, v)]
    starts, indices = packed(lengths.tolist()), torch.tensor(rows)
    lse, group = [], q.shape[1] // k.shape[-2]
    for b in range(2):
        own = indices[int(starts[b]) : int(starts[b + 1])]
        for h in range(q.shape[1]):
            scores = wide(flat[0][own, h // group]) @ wide(q[b, h]) * scale
            scores = cap * torch.tanh(scores / cap) if cap else scores
            lse.append(torch.log(torch.exp(scores).sum()))
    out = expect_indexed(q, *flat, starts, indices, scale, cap)
    return out, torch.stack(lse).view(q.shape[:2])


def expect_blocks_joined(
    partial: Tensor, lse: Tensor, lengths: Tensor, block: int, dtype: torch.dtype
) -> Tensor:
    out = torch.empty(2, 3, 4, dtype=wide(partial).dtype)
    for b in range(2):
        count = -(-int(lengths[b]) // block)
        for h in range(3):
            shares = torch.exp(lse[b, h, :count])
            out[b, h] = (shares / shares.sum()) @ wide(partial[b, h, :count])
    return out.to(dtype)


def expect_token_scores(
    q: Tensor,
    k: Tensor,
    table: Tensor,
    index: Tensor,
    starts: Tensor,
    lengths: Tensor,
    out: Tensor,
) -> Tensor:
    out, group = out.clone(), q.shape[1] // k.shape[1]
    for b in range(2):
        for i in range(int(lengths[b])):
            row = int(table[index[b], i])
            for h in range(q.shape[1]):
                score = wide(q[b, h]) @ wide(k[row, h // group]) / 2
                out[h, int(starts[b]) + i] = score.to(out.dtype)
    return out


def expect_token_values(
    weights: Tensor,
    v: Tensor,
    table: Tensor,
    index: Tensor,
    starts: Tensor,
    lengths: Tensor,
    normalize: bool,
    dtype: torch.dtype,
) -> Tensor:
    group = len(weights) // v.shape[1]
    out = torch.empty(2, len(weights), v.shape[2], dtype=wide(v).dtype)
    for b in range(2):
        rows = table[index[b], : int(lengths[b])].long()
        for h in range(len(weights)):
            own = wide(weights[h, int(starts[b]) : int(starts[b]) + int(lengths[b])])
            out[b, h] = (expect_softmax(own) if normalize else own) @ wide(v[rows, h // group])
    return out.to(dtype)


def expect_quantized(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    causal: bool,
    scale: float | None,
) -> Tensor:
    def times(x: Tensor, by: Tensor | None) -> Tensor:
        return wide(x) if by is None else wide(x) * wide(by)[..., None, None]

    heads = []
    for h in range(q.shape[1]):
        of = h * k.shape[1] // q.shape[1]
        queries = times(q[:, h : h + 1], None if q_scale is None else q_scale[:, of : of + 1])
        keys = times(k[:, of : of + 1], None if k_scale is None else k_scale[:, of : of + 1])
        values = times(v[:, of : of + 1], None if v_scale is None else v_scale[:, of : of + 1])
        scores = queries @ keys.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        if causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        heads.append(expect_softmax(scores) @ values)
    return torch.cat(heads, 1).to(q.dtype)


def expect_quantized_flash(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return expect_quantized(q, k, v, *rest).transpose(1, 2)


def expect_sparse(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    scale: float,
    value_dim: int,
    sinks: Tensor | None,
    lengths: Tensor | None,
) -> tuple[Tensor, None, None]:
    out = torch.zeros(*q.shape[:2], value_dim, dtype=wide(q).dtype)
    for i in range(q.shape[0]):
        chosen = indices[i, 0].tolist()[: None if lengths is None else int(lengths[i])]
        keys = [wide(kv[row, 0]) for row in chosen if 0 <= row < len(kv)]
        for h in range(q.shape[1]):
            powers = [torch.exp((wide(q[i, h]) * key).sum() * scale) for key in keys]
            total = sum(powers) + (0 if sinks is None else torch.exp(wide(sinks[h])))
            for power, key in zip(powers, keys, strict=True):
                out[i, h] += power / total * key[:value_dim]
    return out.to(q.dtype), None, None


CASES = [
    Case(attention.sparse_latent_attention, expect_sparse),
    Case(attention.quantized_attention, expect_quantized),
    Case(attention.quantized_attention_results, expect_quantized),
    Case(attention.quantized_flash_attention, expect_quantized_flash),
    Case(attention.pooled_prefill, expect_pooled_prefill),
    Case(attention.indexed_decode, expect_indexed),
    Case(attention.extended_attention, expect_extended),
    Case(attention.pooled_attention_lse, expect_with_lse),
    Case(attention.join_blocks, expect_blocks_joined),
    Case(attention.token_scores, expect_token_scores),
    Case(attention.token_values, expect_token_values),
    Case(attention.split_and_scale, expect_split),
    Case(attention.self_attention, expect_self),
    Case(attention.multi_head_attention, expect_multi_head),
    Case(attention.transformer_encoder_layer, expect_layer),
]
