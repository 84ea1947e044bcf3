"""One case per reference function: what it should give, for arguments of :mod:`verify.samples`.

``expected`` is written from the definition, element by element where that helps, and shares no code
with the function under test.  ``exact`` says that the two agree bit for bit in bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from trainify.reference import (
    activation,
    attention,
    embedding,
    matmul,
    moe,
    norm,
    older_torch,
    rope,
    rope_style,
    softmax,
    state_space,
)
from trainify.verify.samples import Draw, sample

Tensor = torch.Tensor


@dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    expected: Callable[..., Any]
    exact: bool = False
    name: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def make(self, seed: int, dtype: torch.dtype) -> tuple[Any, ...]:
        """All arguments of the function, by position."""
        return tuple(sample(self.function, Draw(seed, dtype, fixed=self.fixed)).values())

    def __str__(self) -> str:
        module = self.function.__module__.rpartition(".")[2]
        return f"{module}.{self.function.__name__}" + (f"-{self.name}" if self.name else "")


def wide(x: Tensor) -> Tensor:
    """float32, or float64 as it is: the precision in which the definitions are evaluated."""
    return x if x.dtype == torch.float64 else x.to(torch.float32)


# Norms.


def normed(x: Tensor, eps: float, statistics: Tensor | None = None) -> Tensor:
    """x over its root mean square, in float32 and left there."""
    source = wide(x if statistics is None else statistics)
    return wide(x) * torch.rsqrt(source.pow(2).mean(-1, keepdim=True) + eps)


def standardized(x: Tensor, eps: float) -> Tensor:
    centred = wide(x) - wide(x).mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + eps)


def expect_layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    out = standardized(x, eps) * (1 if weight is None else wide(weight))
    return (out + (0 if bias is None else wide(bias))).to(x.dtype)


def expect_fp32_sum(
    weigh: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]:
    def expect(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = wide(x) + wide(residual)
        return weigh(normed(total, eps), weight).to(x.dtype), total.to(residual.dtype)

    return expect


def in_weight_dtype(x: Tensor, weight: Tensor | None) -> Tensor:
    return x if weight is None else x.to(weight.dtype) * weight


def expect_sum_in_weight_dtype(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, size: int | None
) -> tuple[Tensor, Tensor]:
    total = wide(x) + wide(residual)
    out = in_weight_dtype(normed(total, eps, total[..., :size]), weight)
    return out.to(x.dtype), total.to(x.dtype)


def expect_rounded_sum(
    norm_of: Callable[..., Tensor],
) -> Callable[..., tuple[Tensor, Tensor]]:
    def expect(x: Tensor, residual: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        total = x + residual
        return norm_of(total, *rest), total

    return expect


def expect_xformers(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = wide(x) + wide(y)
    stored = total.to(x.dtype)
    return (normed(stored, eps, statistics=total) * wide(weight)).to(x.dtype), stored


def expect_llama_unrounded(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    total = wide(x) + wide(residual)
    stored = total.to(x.dtype)
    return normed(stored, eps, statistics=total).to(x.dtype) * weight, stored


def expect_rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return (normed(x, eps) * (1 if weight is None else wide(weight))).to(x.dtype)


def expect_gated(x: Tensor, z: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    gate = 1 if z is None else wide(z) / (1 + torch.exp(-wide(z)))
    return (normed(x, eps) * wide(weight) * gate).to(x.dtype)


def expect_maybe_add(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None
) -> Tensor | tuple[Tensor, Tensor]:
    if residual is None:
        return expect_rms_norm(x, weight, eps)
    return expect_rms_norm(x + residual, weight, eps), x + residual


def expect_rms_norm_llama(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return normed(x, eps).to(x.dtype) * weight


def expect_add_norm_with_scale(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    total = x + residual
    scale = torch.rsqrt(wide(total).pow(2).mean(-1, keepdim=True) + eps)
    return expect_rms_norm(total, weight, eps), scale, total


def expect_dropout_add_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    residual_in_fp32: bool,
    is_rms_norm: bool,
) -> tuple[Tensor, Tensor]:
    total = wide(x) if residual is None else wide(x) + wide(residual)
    if is_rms_norm:
        out = normed(total, eps) * wide(weight)
    else:
        out = standardized(total, eps) * wide(weight) + (0 if bias is None else wide(bias))
    return out.to(x.dtype), total.to(x.dtype)


NORMS = [
    Case(norm.rms_norm, expect_rms_norm, exact=True),
    Case(older_torch.rms_norm_in_float32, expect_rms_norm, exact=True),
    Case(norm.rms_norm_llama, expect_rms_norm_llama, exact=True),
    Case(
        norm.rms_norm_weight_dtype,
        lambda x, w, eps, size: in_weight_dtype(normed(x, eps, x[..., :size]), w).to(x.dtype),
        exact=True,
    ),
    Case(norm.rms_norm_clamped, lambda x, w, eps, dtype: expect_rms_norm(x, w, eps), exact=True),
    Case(
        norm.gemma_rms_norm,
        lambda x, w, eps: (normed(x, eps) * (1 + wide(w))).to(x.dtype),
        exact=True,
    ),
    Case(norm.fused_add_rms_norm, expect_rounded_sum(expect_rms_norm), exact=True),
    Case(norm.fused_add_rms_norm_llama, expect_rounded_sum(expect_rms_norm_llama), exact=True),
    Case(norm.fused_add_rms_norm_llama_unrounded, expect_llama_unrounded, exact=True),
    Case(
        norm.fused_add_rms_norm_fp32,
        expect_fp32_sum(lambda n, w: n * wide(w)),
        exact=True,
    ),
    Case(norm.fused_add_rms_norm_weight_dtype, expect_sum_in_weight_dtype, exact=True),
    Case(
        norm.gemma_fused_add_rms_norm,
        expect_fp32_sum(lambda n, w: n * (1 + wide(w))),
        exact=True,
    ),
    Case(norm.fused_add_rms_norm_xformers, expect_xformers, exact=True),
    Case(norm.layer_norm, expect_layer_norm),
    Case(norm.layer_norm_fp32_weight, expect_layer_norm),
    Case(norm.fused_add_layer_norm, expect_rounded_sum(expect_layer_norm)),
    Case(
        norm.head_layer_norm,
        lambda x, w, eps: (standardized(x, eps) * wide(w)).to(x.dtype),
    ),
    Case(
        norm.l2_norm,
        lambda x, eps: (wide(x) / torch.sqrt(wide(x).pow(2).sum(-1, keepdim=True) + eps)).to(
            x.dtype
        ),
    ),
    Case(norm.gated_rms_norm, expect_gated),
    Case(
        norm.rms_norm_silu,
        lambda x, w, eps: torch.nn.functional.silu(normed(x, eps) * wide(w)).to(x.dtype),
        exact=True,
    ),
]

NORMS += [
    Case(norm.rms_norm_saturated, expect_rms_norm, exact=True),
    Case(
        norm.gated_rms_norm,
        lambda x, z, w, eps: expect_rms_norm(x, w, eps),
        exact=True,
        name="no-gate",
        fixed={"z": None},
    ),
    Case(norm.add_rms_norm_with_scale, expect_add_norm_with_scale, exact=True),
    Case(
        norm.gemma_rms_norm_with_scale,
        lambda x, w, eps: (
            (normed(x, eps) * (1 + wide(w))).to(x.dtype),
            torch.rsqrt(wide(x).pow(2).mean(-1, keepdim=True) + eps),
        ),
        exact=True,
    ),
    Case(norm.rms_norm_maybe_add, expect_maybe_add, exact=True),
    Case(norm.dropout_add_norm, expect_dropout_add_norm),
]


# Activations.


def silu(x: Tensor) -> Tensor:
    return (wide(x) / (1 + torch.exp(-wide(x)))).to(x.dtype)


def gelu(x: Tensor) -> Tensor:
    return (wide(x) * 0.5 * (1 + torch.erf(wide(x) * math.sqrt(0.5)))).to(x.dtype)


def gelu_tanh(x: Tensor) -> Tensor:
    inner = math.sqrt(2 / math.pi) * (wide(x) + 0.044715 * wide(x) ** 3)
    return (0.5 * wide(x) * (1 + torch.tanh(inner))).to(x.dtype)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    d = x.shape[-1] // 2
    return x[..., :d], x[..., d:]


def gated(act: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: act(halves(x)[0]) * halves(x)[1]


def gated_fp32(act: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: (act(wide(halves(x)[0])) * wide(halves(x)[1])).to(x.dtype)


def expect_swigluoai(x: Tensor, alpha: float, limit: float) -> Tensor:
    gate = torch.minimum(wide(x)[..., 0::2], torch.tensor(limit).to(wide(x)))
    up = wide(x)[..., 1::2].clip(-limit, limit)
    return ((up + 1) * gate / (1 + torch.exp(-alpha * gate))).to(x.dtype)


def expect_silu_and_mul_up_to(x: Tensor, limit: float) -> Tensor:
    gate, up = wide(x).chunk(2, -1)
    if limit:
        gate, up = (
            gate.minimum(gate * 0 + limit),
            up.maximum(up * 0 - limit).minimum(up * 0 + limit),
        )
    return (silu(gate) * up).to(x.dtype)


def expect_clamped_swiglu(x: Tensor, limit: float, alpha: float, beta: float) -> Tensor:
    """vLLM's kernel: the activated half is rounded, the other is not."""
    gate, up = halves(wide(x))
    gate, up = gate.clip(max=limit), up.clip(-limit, limit)
    act = (gate / (1 + torch.exp(-alpha * gate))).to(x.dtype)
    return (wide(act) * (up + beta)).to(x.dtype)


def expect_situ(x: Tensor, beta: float, linear_beta: float) -> Tensor:
    gate, up = halves(wide(x))
    gate = beta * torch.tanh(gate / beta) / (1 + torch.exp(-gate))
    if linear_beta > 0:
        up = linear_beta * torch.tanh(up / linear_beta)
    return (gate * up).to(x.dtype)


def expect_gelu_sparse(x: Tensor, multiplier: float, approximate: str) -> Tensor:
    gate, up = halves(x)
    mean = gate.mean(-1, keepdim=True)
    deviation = gate.std(-1, keepdim=True, unbiased=False)
    kept = (gate - (mean + deviation * multiplier)).clip(min=0)
    return (gelu if approximate == "none" else gelu_tanh)(kept) * up


def expect_gelu_new(x: Tensor) -> Tensor:
    """vLLM's kernel: T is the storage dtype, the constants are float."""
    dtype = x.dtype
    cube = wide((wide((wide(x) * wide(x)).to(dtype)) * wide(x)).to(dtype))
    inner = (wide(x) + wide((0.044715 * cube).to(dtype))).to(dtype)
    t = torch.tanh(wide((0.79788456 * wide(inner)).to(dtype))).to(dtype)
    return (wide((0.5 * wide(x)).to(dtype)) * wide((1 + wide(t)).to(dtype))).to(dtype)


def expect_gelu_fast(x: Tensor) -> Tensor:
    dtype = x.dtype
    square = (wide((0.044715 * wide(x)).to(dtype)) * wide(x)).to(dtype)
    factor = (1 + wide(square)).to(dtype)
    inner = (wide((wide(x) * 0.79788456).to(dtype)) * wide(factor)).to(dtype)
    t = torch.tanh(wide(inner)).to(dtype)
    return (wide((0.5 * wide(x)).to(dtype)) * wide((1 + wide(t)).to(dtype))).to(dtype)


ACTIVATIONS = [
    Case(activation.silu_and_mul, gated(silu), exact=True),
    Case(activation.silu_and_mul_fp32, gated_fp32(silu), exact=True),
    Case(activation.silu_and_mul_up_to, expect_silu_and_mul_up_to),
    Case(
        activation.mul_and_silu,
        lambda x: halves(x)[0] * silu(halves(x)[1]),
        exact=True,
    ),
    Case(activation.gelu_and_mul, gated(gelu)),
    Case(activation.gelu_and_mul_fp32, gated_fp32(gelu)),
    Case(activation.gelu_tanh_and_mul, gated(gelu_tanh)),
    Case(activation.gelu_tanh_and_mul_fp32, gated_fp32(gelu_tanh)),
    Case(
        activation.fatrelu_and_mul,
        lambda x, t: torch.where(halves(x)[0] > t, halves(x)[0], 0.0) * halves(x)[1],
        exact=True,
    ),
    Case(activation.swigluoai_and_mul, expect_swigluoai),
    Case(activation.clamped_swiglu, expect_clamped_swiglu),
    Case(
        activation.swiglustep_and_mul,
        lambda x, limit: (
            silu(wide(halves(x)[0])).clip(max=limit) * wide(halves(x)[1]).clip(-limit, limit)
        ).to(x.dtype),
    ),
    Case(activation.situ_and_mul, expect_situ),
    Case(
        activation.situ_and_mul,
        expect_situ,
        name="bounded",
        fixed={"linear_beta": 0.7},
    ),
    Case(activation.gelu_and_mul_sparse, expect_gelu_sparse),
    Case(activation.gelu_tanh, gelu_tanh),
    Case(activation.gelu_new, expect_gelu_new, exact=True),
    Case(activation.gelu_fast, expect_gelu_fast, exact=True),
    Case(
        activation.gelu_quick,
        lambda x: (wide(x) / (1 + torch.exp(-1.702 * wide(x)))).to(x.dtype),
    ),
    Case(
        activation.relu_squared,
        lambda x: wide(x).clip(min=0).pow(2).to(x.dtype),
        exact=True,
    ),
    Case(
        activation.soft_cap,
        lambda x, cap: (cap * torch.tanh(wide(x) / cap)).to(x.dtype),
        exact=True,
    ),
    Case(
        activation.scaled_soft_cap,
        lambda x, multiplier, cap: cap * torch.tanh(wide(x) * multiplier / cap),
        exact=True,
    ),
]


# Rotary embeddings.


def rotated(x: Tensor, cos: Tensor, sin: Tensor, is_neox: bool, *, rounded: bool) -> Tensor:
    """Rotate x [..., D], pair by pair; cos and sin are [..., R/2]."""
    if not rounded:
        cos, sin = wide(cos), wide(sin)
    pairs = cos.shape[-1]
    out = list(x.unbind(-1))
    for i in range(pairs):
        first, second = (i, i + pairs) if is_neox else (2 * i, 2 * i + 1)
        a, b = x[..., first], x[..., second]
        if not rounded:
            a, b = wide(a), wide(b)
        c, s = cos[..., i], sin[..., i]
        out[first] = (a * c - b * s).to(x.dtype)
        out[second] = (b * c + a * s).to(x.dtype)
    return torch.stack(out, dim=-1)


def expect_rotary_embedding(rounded: bool) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def expect(
        positions: Tensor,
        query: Tensor,
        key: Tensor | None,
        head_size: int,
        table: Tensor,
        is_neox: bool,
        offset: int = 0,
        inverse: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        row = table[positions.flatten()].unsqueeze(1)  # [tokens, 1, R]
        if rounded:
            row = row.to(query.dtype)
        cos, sin = halves(row)

        def turn(x: Tensor) -> Tensor:
            heads = x.reshape(positions.numel(), -1, head_size)
            front, turns = heads[..., :offset], heads[..., offset:]
            turns = rotated(turns, cos, -sin if inverse else sin, is_neox, rounded=rounded)
            return torch.cat((front, turns), -1).reshape(x.shape)

        return turn(query), None if key is None else turn(key)

    return expect


def expect_rope_at(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    rotary_dim: int | None,
    interleave: bool,
    rope_scale: float,
    rope_theta: float,
    *factors: float,
) -> tuple[Tensor, Tensor]:
    dim = rotary_dim or q.shape[-1]
    angles = torch.empty(len(positions), dim // 2, dtype=torch.float64)
    for i in range(dim // 2):
        frequency = rope_theta ** (-2 * i / dim)
        if factors:
            low, high, old = factors
            wavelength = 2 * math.pi / frequency
            if wavelength > old / low:
                frequency /= rope_scale
            elif wavelength > old / high:
                smooth = (old / wavelength - low) / (high - low)
                frequency = (1 - smooth) * frequency / rope_scale + smooth * frequency
        else:
            frequency /= rope_scale
        angles[:, i] = positions.double() * frequency
    cos, sin = angles.cos().unsqueeze(1).to(q.dtype), angles.sin().unsqueeze(1).to(q.dtype)
    if q.dtype == torch.bfloat16:
        cos, sin = angles.cos().unsqueeze(1).float(), angles.sin().unsqueeze(1).float()
    return (
        rotated(q, cos, sin, not interleave, rounded=False),
        rotated(k, cos, sin, not interleave, rounded=False),
    )


def positions_of(indptr: Tensor, offsets: Tensor) -> list[int]:
    return [
        int(offsets[i]) + j
        for i in range(len(offsets))
        for j in range(int(indptr[i + 1] - indptr[i]))
    ]


ROPES = [
    Case(
        rope.rotate_pairs,
        lambda x, c, s, n, first: torch.cat(
            (x[..., :first], rotated(x[..., first:], c, s, n, rounded=True)), -1
        ),
        exact=True,
    ),
    Case(rope.rotary_embedding, expect_rotary_embedding(rounded=False), exact=True),
    Case(
        rope.rotary_embedding,
        expect_rotary_embedding(rounded=False),
        exact=True,
        name="no-key",
        fixed={"key": None},
    ),
    Case(rope.rotary_embedding_rounded, expect_rotary_embedding(rounded=True), exact=True),
    Case(rope.rope_at, expect_rope_at),
    Case(rope.llama31_rope_at, expect_rope_at),
    Case(
        rope.ragged_positions,
        lambda *given: torch.tensor(positions_of(*given)),
        exact=True,
    ),
]


def expect_two_halves(
    x1: Tensor, x2: Tensor, cos: Tensor, sin: Tensor, conj: bool
) -> tuple[Tensor, Tensor]:
    both = torch.cat((x1, x2), -1)
    out = rotated(both, wide(cos), -wide(sin) if conj else wide(sin), True, rounded=False)
    return halves(out)


def expect_query_key(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, is_neox: bool
) -> tuple[Tensor, Tensor]:
    cos, sin = cos[:, None], sin[:, None]
    return (
        rotated(q, cos, sin, is_neox, rounded=True),
        rotated(k, cos, sin, is_neox, rounded=True),
    )


def expect_hugging_face(rounded: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    def expect(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        cos, sin = (halves(t)[0].unsqueeze(dim) for t in (cos, sin))
        return (
            rotated(q, cos, sin, True, rounded=rounded),
            rotated(k, cos, sin, True, rounded=rounded),
        )

    return expect


def expect_broadcast(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = halves(cos)[0], halves(sin)[0]
    return rotated(q, cos, sin, True, rounded=True), rotated(k, cos, sin, True, rounded=True)


def expect_tables(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    pairs = q.shape[-1] // 2
    cos, sin = cos[..., :pairs], sin[..., :pairs]
    return rotated(q, cos, sin, True, rounded=True), rotated(k, cos, sin, True, rounded=True)


def expect_apply_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, offsets: Any, interleaved: bool, conjugate: bool
) -> Tensor:
    out = []
    for b in range(len(x)):
        start = int(offsets[b]) if isinstance(offsets, Tensor) else offsets
        c, s = (wide(t[start : start + x.shape[1]])[:, None] for t in (cos, sin))
        out.append(rotated(x[b], c, -s if conjugate else s, not interleaved, rounded=False))
    return torch.stack(out)


def expect_qk_norm_rope(
    qkv: Tensor,
    nq: int,
    nk: int,
    nv: int,
    dim: int,
    eps: float,
    q_weight: Tensor,
    k_weight: Tensor,
    table: Tensor,
    is_neox: bool,
    positions: Tensor,
) -> Tensor:
    cos, sin = halves(table[positions])
    out = []
    for h in range(nq + nk + nv):
        head = qkv[:, h * dim : (h + 1) * dim]
        if h < nq + nk:
            weight = q_weight if h < nq else k_weight
            turned = normed(head, eps) * wide(weight)
            head = rotated(turned, cos, sin, is_neox, rounded=False).to(qkv.dtype)
        out.append(head)
    return torch.cat(out, -1)


def expect_ragged(
    q: Tensor, k: Tensor, indptr: Tensor, offsets: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    return expect_rope_at(q, k, torch.tensor(positions_of(indptr, offsets)), *rest)


ROPES += [
    Case(rope.rope_ragged, expect_ragged),
    Case(rope.llama31_rope_ragged, expect_ragged),
    Case(rope.rotate_query_key, expect_query_key, exact=True),
    Case(
        rope.rotate_query_key_or_pairs,
        lambda q, k, cos, sin, complex_mode: expect_query_key(
            q,
            k,
            *(t[:, : t.shape[-1] // (1 if complex_mode else 2)] for t in (cos, sin)),
            not complex_mode,
        ),
        exact=True,
    ),
    Case(rope.rotate_query_key_fp32, expect_hugging_face(rounded=False), exact=True),
    Case(
        rope.rotate_half,
        lambda x: torch.cat((-halves(x)[1], halves(x)[0]), -1),
        exact=True,
    ),
    Case(rope.apply_rotary_pos_emb, expect_broadcast, exact=True),
    Case(rope.rotate_by_tables, expect_tables, exact=True),
    Case(rope.rotate_two_halves, expect_two_halves, exact=True),
    Case(rope.apply_rotary, expect_apply_rotary, exact=True),
    Case(
        rope.apply_rotary,
        expect_apply_rotary,
        exact=True,
        name="later",
        fixed={"seqlen_offsets": 5},
    ),
    Case(rope.fused_qk_norm_rope, expect_qk_norm_rope, exact=True),
]


# Attention.


def expect_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """One query, one head at a time, in float32; queries are the last positions."""
    left, right = window or (-1, -1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    offset = k.shape[1] - q.shape[1]
    group = q.shape[2] // k.shape[2]
    out = []
    for b in range(q.shape[0]):
        for i in range(q.shape[1]):
            low = 0 if left < 0 else max(0, i + offset - left)
            high = i + offset if causal else k.shape[1] - 1 if right < 0 else i + offset + right
            keys = range(low, min(high, k.shape[1] - 1) + 1)
            for h in range(q.shape[2]):
                if not keys:
                    out.append(wide(q[b, i, h]) * 0)
                    continue
                seen_k = wide(k[b, list(keys), h // group])
                scores = (seen_k @ wide(q[b, i, h])) * scale
                if softcap:
                    scores = softcap * torch.tanh(scores / softcap)
                weights = torch.exp(scores - scores.amax())
                total = weights.sum()
                if sinks is not None:
                    total = total + torch.exp(wide(sinks)[h] - scores.amax())
                out.append(weights / total @ wide(v[b, list(keys), h // group]))
    return torch.stack(out).view(*q.shape[:3], v.shape[-1]).to(q.dtype)


def expect_bhsd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
    softcap: float,
) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return expect_attention(q, k, v, scale, causal or mask is not None, None, softcap).transpose(
        1, 2
    )


def expect_sink_bhsd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor,
    mask: Tensor | None,
    causal: bool,
    *options: Any,
) -> Tensor:
    """The mask that is drawn is the causal one."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scale, softcap = options
    out = expect_attention(q, k, v, scale, causal or mask is not None, None, softcap, sinks)
    return out.transpose(1, 2)


def packed(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def expect_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *options: Any
) -> Tensor:
    out = []
    for i in range(len(cu_q) - 1):
        rows, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        out.append(expect_attention(q[None, rows], k[None, keys], v[None, keys], *options)[0])
    return torch.cat(out)


def expect_cached(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Any, table: Tensor | None, *options: Any
) -> Tensor:
    out = []
    for b in range(len(q)):
        k, v = k_cache[b % len(k_cache)], v_cache[b % len(v_cache)]
        if table is not None:
            k, v = (torch.cat(list(cache[table[b]])) for cache in (k_cache, v_cache))
        length = len(k)
        if lengths is not None:
            length = int(lengths[b]) if isinstance(lengths, Tensor) else lengths
        out.append(expect_attention(q[b : b + 1], k[None, :length], v[None, :length], *options))
    return torch.cat(out)


def expect_paged(
    query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor, scale: float
) -> Tensor:
    block = keys.shape[3]
    out = []
    for n in range(len(query)):
        k, v = [], []
        for position in range(int(lengths[n])):
            page, slot = int(table[n, position // block]), position % block
            k.append(keys[page, :, :, slot].flatten(1))
            v.append(values[page, :, :, slot])
        out.append(
            expect_attention(
                query[n][None, None], torch.stack(k)[None], torch.stack(v)[None], scale
            )[0, 0]
        )
    return torch.stack(out)


def expect_single_prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: str,
    scale: float | None,
    causal: bool,
    window_left: int,
    softcap: float | None,
) -> Tensor:
    if layout == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    options = (scale, causal, (window_left, -1), softcap or 0.0)
    return expect_attention(q[None], k[None], v[None], *options)[0]


ATTENTIONS = [
    Case(attention.attention_bhsd, expect_bhsd),
    Case(older_torch.grouped_query_attention, lambda *args: expect_bhsd(*args, 0.0)),
    Case(
        attention.attention,
        lambda q, k, v, scale, causal, left, right, cap, sinks: expect_attention(
            q, k, v, scale, causal, (left, right), cap, sinks
        ),
    ),
    Case(attention.attention_with_sink_bhsd, expect_sink_bhsd),
    Case(attention.varlen_attention, expect_varlen),
    Case(attention.cached_attention, expect_cached),
    Case(attention.paged_attention, expect_paged),
    Case(attention.single_prefill, expect_single_prefill),
    Case(
        attention.single_decode,
        lambda q, k, v, layout, scale, left, cap: expect_single_prefill(
            q[None], k, v, layout, scale, True, left, cap
        )[0],
    ),
]


def expect_pooled(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, index: Tensor, lengths: Tensor
) -> Tensor:
    out = []
    for b in range(len(q)):
        rows = table[index[b], : lengths[b]]
        out.append(expect_attention(q[b][None, None], k[rows][None], v[rows][None])[0, 0])
    return torch.stack(out)


def expect_merge(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
    a, b = torch.pow(2, s_a), torch.pow(2, s_b)
    v = (a[..., None] * wide(v_a) + b[..., None] * wide(v_b)) / (a + b)[..., None]
    return v.to(v_a.dtype), torch.log2(a + b)


ATTENTIONS += [
    Case(
        attention.attention_fwd,
        lambda q, k, v, scale, causal, left, right, cap: expect_attention(
            q, k, v, scale, causal, (left, right), cap
        ),
    ),
    Case(
        attention.prefill_attention,
        lambda q, k, v, lengths, scale, causal, sinks: expect_varlen(
            *(q, k, v, packed(lengths.tolist()), packed(lengths.tolist())),
            *(scale, causal, None, 0.0, sinks),
        ),
    ),
    Case(attention.pooled_attention, expect_pooled),
    Case(attention.merge_state, expect_merge),
    Case(
        attention.merge_states,
        lambda v, s: expect_merge(v[:, 0], s[:, 0], v[:, 1], s[:, 1]),
    ),
    Case(
        attention.merge_attn_states,
        lambda v_a, s_a, v_b, s_b: expect_merge(
            v_a, s_a.mT / math.log(2), v_b, s_b.mT / math.log(2)
        )[0],
    ),
]


# State space models.


def expect_conv_update(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> tuple[Tensor, Tensor]:
    steps = x if x.dim() == 3 else x[..., None]
    window, out = wide(state), []
    for i in range(steps.shape[-1]):
        window = torch.cat((window, wide(steps[..., i : i + 1])), -1)
        total = (window[..., -weight.shape[-1] :] * wide(weight)).sum(-1)
        out.append(total if bias is None else total + wide(bias))
    result = torch.stack(out, -1)
    result = silu(result) if activation else result
    return result.to(x.dtype).view(x.shape), window[..., -state.shape[-1] :].to(state.dtype)


def expect_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
) -> tuple[Tensor, Tensor]:
    dt = wide(dt) + (0 if dt_bias is None else wide(dt_bias))
    dt = torch.log1p(torch.exp(dt)) if dt_softplus else dt
    shape = "bhpn" if state.dim() == 4 else "bdn"
    if state.dim() == 4:
        B, C = (t.expand(-1, state.shape[1], -1)[:, :, None] for t in (B, C))
    else:
        B, C = B[:, None], C[:, None]
    new = wide(state) * torch.exp(dt[..., None] * wide(A))
    new = new + dt[..., None] * wide(B) * wide(x)[..., None]
    y = torch.einsum(f"{shape},{shape}->{shape[:-1]}", new, wide(C).expand_as(new))
    y = y if D is None else y + wide(D) * wide(x)
    y = y if z is None else y * wide(z) / (1 + torch.exp(-wide(z)))
    return y.to(x.dtype), new.to(state.dtype)


STATE_SPACES = [
    Case(state_space.causal_conv1d_update, expect_conv_update),
    Case(state_space.selective_state_update, expect_state_update),
]


# Softmax.


def expect_softmax(x: Tensor) -> Tensor:
    weights = torch.exp(wide(x) - wide(x).amax(-1, keepdim=True))
    return (weights / weights.sum(-1, keepdim=True)).to(x.dtype)


def expect_softmax_temperature(x: Tensor, temperature: Tensor | float | None) -> Tensor:
    if isinstance(temperature, Tensor):
        temperature = wide(temperature)[..., None]
    return expect_softmax(wide(x) / (1 if temperature is None else temperature))


SOFTMAXES = [
    Case(softmax.softmax, expect_softmax),
    Case(softmax.softmax_temperature, expect_softmax_temperature),
]


# Quantizing norms.  Codes lie well within the range, so that the straight-through gradient is exact.


def to_codes(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to 8 bits; as it is in float64, where gradients are checked."""
    if x.dtype == torch.float64:
        return x
    return (x if dtype.is_floating_point else torch.round(x)).to(dtype).to(torch.float32)


def expect_rms_norm_fp8(x: Tensor, weight: Tensor, scale: Tensor, eps: float) -> Tensor:
    codes = normed(x, eps) * wide(weight) / wide(scale)
    return to_codes(codes.clamp(-448, 448), torch.float8_e4m3fn).to(x.dtype)


def expect_dynamic_quant(
    x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    y = normed(x, eps) * wide(weight)
    limit = 448 if dtype.is_floating_point else 127
    scale = y.abs().max(-1, keepdim=True).values / limit
    return to_codes(y / scale, dtype).to(x.dtype), scale


NORMS += [
    Case(norm.quantize_through, to_codes),
    Case(norm.rms_norm_fp8, expect_rms_norm_fp8),
    Case(
        norm.fused_add_rms_norm_fp8,
        lambda x, r, w, s, eps: (expect_rms_norm_fp8(x + r, w, s, eps), x + r),
    ),
    Case(
        norm.fused_add_rms_norm_fp32_fp8,
        lambda x, r, w, s, eps: (
            expect_rms_norm_fp8(wide(x) + wide(r), w, s, eps).to(x.dtype),
            (wide(x) + wide(r)).to(r.dtype),
        ),
    ),
    Case(norm.rms_norm_dynamic_quant, expect_dynamic_quant),
    Case(
        norm.group_norm,
        lambda x, groups, w, b, eps: (
            standardized(x.reshape(2, groups, -1), eps).view(x.shape) * wide(w)[:, None]
            + wide(b)[:, None]
        ).to(x.dtype),
    ),
]


# Products with quantized weights.


def expect_scaled(
    a: Tensor, b: Tensor, sa: Tensor, sb: Tensor, dtype: torch.dtype, bias: Tensor | None
) -> Tensor:
    left = wide(a) * wide(sa).flatten()[:, None]
    out = left @ (wide(b) * wide(sb).flatten()[None])
    return (out if bias is None else out + wide(bias)).to(dtype)


def expect_blocks(
    a: Tensor, b: Tensor, sa: Tensor, sb: Tensor, n: int, k: int, dtype: torch.dtype
) -> Tensor:
    out = torch.zeros(len(a), len(b), dtype=wide(a).dtype)
    for i in range(len(a)):
        for j in range(len(b)):
            for c in range(a.shape[1]):
                left = wide(a)[i, c] * wide(sa)[i, c // k]
                out[i, j] += left * wide(b)[j, c] * wide(sb)[j // n, c // k]
    return out.to(dtype)


def expect_awq(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    k, n = len(qweight), scales.shape[1]
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    out = torch.zeros(k, n, dtype=scales.dtype)
    for row in range(k):
        group = row // (k // len(scales))
        for column in range(n):
            shift = 4 * order.index(column % 8)
            code = int(qweight[row, column // 8]) >> shift & 15
            zero = int(qzeros[group, column // 8]) >> shift & 15
            out[row, column] = (code - zero) * scales[group, column]
    return out


def expect_bnb(
    packed: Tensor, shape: tuple[int, int], absmax: Tensor, code: Tensor, block: int
) -> Tensor:
    values = []
    for byte in packed.flatten().tolist():
        values += [code[byte // 16], code[byte % 16]]
    scaled = [v * absmax[i // block] for i, v in enumerate(values)]
    return torch.stack(scaled).view(shape)


MATMULS = [
    Case(matmul.scaled_mm, expect_scaled),
    Case(matmul.block_scaled_mm, expect_blocks),
    Case(matmul.awq_weight, expect_awq),
    Case(
        matmul.awq_matmul,
        lambda x, *w: (wide(x) @ wide(expect_awq(*w))).to(x.dtype),
    ),
    Case(matmul.bnb_4bit_weight, expect_bnb),
    Case(
        matmul.bnb_4bit_matmul,
        lambda x, *w: (wide(x) @ wide(expect_bnb(*w).to(x.dtype)).t()).to(x.dtype),
    ),
]


# Mixtures of experts.


def expect_topk(scores: Tensor, choice: Tensor, k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    ids = choice.argsort(dim=-1, descending=True)[:, :k]
    weights = torch.stack([row[chosen] for row, chosen in zip(scores, ids, strict=True)])
    return weights / weights.sum(-1, keepdim=True) if renormalize else weights, ids.int()


def expect_softmax_topk(gating: Tensor, k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    scores = expect_softmax(wide(gating))
    return expect_topk(scores, scores, k, renormalize)


def expect_sigmoid_topk(
    gating: Tensor, k: int, renormalize: bool, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    scores = 1 / (1 + torch.exp(-wide(gating)))
    return expect_topk(scores, scores if bias is None else scores + wide(bias), k, renormalize)


def expect_grouped_topk(
    gating: Tensor,
    k: int,
    renormalize: bool,
    groups: int,
    kept: int,
    scoring: str,
    scale: float,
    bias: Tensor | None,
    best: int | None,
) -> tuple[Tensor, Tensor]:
    scores = wide(gating)
    if scoring == "sigmoid":
        scores = 1 / (1 + torch.exp(-scores))
    elif scoring == "softmax":
        scores = expect_softmax(scores)
    choice = scores if bias is None else scores + wide(bias)
    best = best or (1 if bias is None else 2)
    weights, ids = expect_topk(scores, of_groups(choice, groups, kept, best), k, renormalize)
    return weights * scale, ids


def of_groups(choice: Tensor, groups: int, kept: int, best: int) -> Tensor:
    """Scores, with those of other than the best groups at minus infinity."""
    choice = choice.detach().clone()
    size = choice.shape[1] // groups
    for row in choice:
        parts = [row[i * size : (i + 1) * size] for i in range(groups)]
        worth = [float(p.sort(descending=True).values[:best].sum()) for p in parts]
        for i in sorted(range(groups), key=lambda i: worth[i])[: groups - kept]:
            parts[i][:] = -torch.inf
    return choice


def expect_experts(x: Tensor, w1: Tensor, w2: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    out = []
    for token, chosen, shares in zip(x, ids, weights, strict=True):
        total = torch.zeros(len(token), dtype=wide(x).dtype)
        for expert, share in zip(chosen.tolist(), shares, strict=True):
            hidden = (wide(w1[expert]) @ wide(token)).to(x.dtype)
            inner = silu(hidden[:3]) * hidden[3:]
            total = total + wide(share) * wide((wide(w2[expert]) @ wide(inner)).to(x.dtype))
        out.append(total)
    return torch.stack(out).to(x.dtype)


def expect_rows(weights_and_ids: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    weights, ids = weights_and_ids
    rows = [[j * len(ids) + t for j in range(ids.shape[1])] for t in range(len(ids))]
    return weights, ids, torch.tensor(rows).int()


def expect_softmax_rows(
    gating: Tensor, k: int, renormalize: bool, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    weights, ids, rows = expect_rows(expect_softmax_topk(gating, k, renormalize))
    return weights.to(dtype), ids, rows


EXPERTS = [
    Case(moe.softmax_topk, expect_softmax_topk),
    Case(moe.softmax_topk_rows, expect_softmax_rows),
    Case(moe.sigmoid_topk, expect_sigmoid_topk),
    Case(moe.grouped_topk, expect_grouped_topk),
    Case(moe.moe_experts, expect_experts),
    Case(
        moe.fused_moe,
        lambda x, w1, w2, gating, k, renormalize: expect_experts(
            x, w1, w2, *expect_softmax_topk(gating, k, renormalize)
        ),
    ),
]


# Embeddings.


def expect_shard(ids: Tensor, weight: Tensor, *ranges: tuple[int, int, int]) -> Tensor:
    """Each range is (first id, last id + 1, row of the first)."""
    out = torch.zeros(*ids.shape, weight.shape[1], dtype=weight.dtype)
    for place, number in enumerate(ids.tolist()):
        for start, end, row in ranges:
            if start <= number < end:
                out[place] = weight[row + number - start]
    return out


EMBEDDINGS = [
    Case(
        embedding.embedding_shard,
        lambda ids, w, start, end: expect_shard(ids, w, (start, end, 0)),
    ),
    Case(
        embedding.vocab_parallel_embedding,
        lambda ids, w, start, end, padding, a, b: expect_shard(
            ids, w, (start, end, 0), (a, b, end - start + padding)
        ),
    ),
]


# More attention.


def expect_natural(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
    v, s = expect_merge(v_a, s_a / math.log(2), v_b, s_b / math.log(2))
    return v, s * math.log(2)


def expect_paged_varlen(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cu_q: Tensor,
    k_lens: Tensor | None,
    table: Tensor | None,
    *options: Any,
) -> Tensor:
    out = []
    for i in range(len(cu_q) - 1):
        pages = [i] if table is None else table[i].tolist()
        k, v = (torch.cat([c[p] for p in pages]) for c in (k_cache, v_cache))
        length = len(k) if k_lens is None else int(k_lens[i])
        rows = q[None, cu_q[i] : cu_q[i + 1]]
        out.append(expect_attention(rows, k[None, :length], v[None, :length], *options)[0])
    return torch.cat(out)


def expect_varlen_or_paged(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor | None,
    k_lens: Tensor | None,
    table: Tensor | None,
    *options: Any,
) -> Tensor:
    out = []
    for i in range(len(cu_q) - 1):
        start, end = (0, 0) if cu_k is None else (int(cu_k[i]), int(cu_k[i + 1]))
        length = end - start if k_lens is None else int(k_lens[i])
        keys, values = k[start:], v[start:]
        if table is not None:
            keys, values = (torch.cat([c[p] for p in table[i].tolist()]) for c in (k, v))
        rows = q[None, cu_q[i] : cu_q[i + 1]]
        out.append(expect_attention(rows, keys[None, :length], values[None, :length], *options)[0])
    return torch.cat(out)


def expect_cached_or_packed(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Any,
    table: Tensor | None,
    cu_q: Tensor | None,
    *options: Any,
) -> Tensor:
    if cu_q is None:
        return expect_cached(q, k_cache, v_cache, lengths, table, *options)
    count = len(cu_q) - 1
    k_lens = None if lengths is None else torch.as_tensor(lengths).expand(count)
    return expect_paged_varlen(q, k_cache, v_cache, cu_q, k_lens, table, *options)


def expect_mla(
    q_nope: Tensor, q_pe: Tensor, cache: Tensor, lengths: Tensor, table: Tensor, scale: float
) -> Tensor:
    out = []
    for b in range(len(q_nope)):
        rows = torch.cat([cache[p] for p in table[b].tolist()])[: lengths[b]]
        heads = []
        for h in range(q_nope.shape[1]):
            query = wide(torch.cat((q_nope[b, h], q_pe[b, h])))
            weights = torch.softmax(wide(rows) @ query * scale, 0)
            heads.append(weights @ wide(rows[:, : q_nope.shape[2]]))
        out.append(torch.stack(heads))
    return torch.stack(out).to(q_nope.dtype)


def expect_sinks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor,
    scale: float,
    bandwidth: int | None,
    start: Tensor,
) -> Tensor:
    out = torch.zeros(q.shape, dtype=wide(q).dtype)
    for b in range(q.shape[0]):
        for i in range(q.shape[1]):
            at = i + int(start)
            first = max(0, at - bandwidth + 1) if bandwidth else 0
            seen = slice(first, at + 1)
            for h in range(q.shape[2]):
                for m in range(q.shape[3]):
                    scores = wide(k[b, seen, h]) @ wide(q[b, i, h, m]) * scale
                    power = torch.exp(scores)
                    total = power.sum() + torch.exp(wide(sinks)[h * q.shape[3] + m])
                    out[b, i, h, m] = power / total @ wide(v[b, seen, h])
    return out.flatten(2).to(q.dtype)


def expect_layout(
    q: Tensor, k: Tensor, v: Tensor, layout: str, causal: bool, scale: float
) -> Tensor:
    if layout == "HND":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out = expect_attention(q, k, v, scale, causal)
    return out.transpose(1, 2) if layout == "HND" else out


ATTENTIONS += [
    Case(attention.merge_natural, expect_natural),
    Case(
        attention.combine,
        lambda v, s: expect_natural(v[0], s[0], v[1], s[1]),
    ),
    Case(attention.attention_in_layout, expect_layout),
    Case(attention.paged_varlen_attention, expect_paged_varlen),
    Case(attention.varlen_or_paged_attention, expect_varlen_or_paged),
    Case(
        attention.varlen_attention_fwd,
        lambda q, k, v, cq, ck, scale, causal, left, right, cap, lens, table: (
            expect_varlen_or_paged(q, k, v, cq, ck, lens, table, scale, causal, (left, right), cap)
        ),
    ),
    Case(attention.cached_or_packed_attention, expect_cached_or_packed),
    Case(attention.mla_decode, expect_mla),
    Case(attention.attention_with_sinks, expect_sinks),
]


def expect_biased(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float | None
) -> Tensor:
    rows = []
    for i in range(q.shape[-2]):
        keys = slice(0, i + 1 if causal else None)
        scores = wide(q)[..., i : i + 1, :] @ wide(k)[..., keys, :].mT
        scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
        if bias is not None:
            scores = scores + wide(bias)[..., i : i + 1, keys]
        weights = torch.exp(scores) / torch.exp(scores).sum(-1, keepdim=True)
        rows.append(weights @ wide(v)[..., keys, :])
    return torch.cat(rows, -2).to(q.dtype)


ATTENTIONS += [
    Case(attention.biased_attention, expect_biased),
    Case(attention.biased_attention_results, expect_biased),
]


# aiter's rotations.


def expect_style(
    x: Tensor, cos: Tensor, sin: Tensor, style: int, reuse: bool, nope_first: bool
) -> Tensor:
    pairs = cos.shape[-1] if reuse else cos.shape[-1] // 2
    offset = x.shape[-1] - 2 * pairs if nope_first else 0
    out = wide(x).clone()
    for p in range(pairs):
        i, j = (p, p + pairs) if style == 0 else (2 * p, 2 * p + 1)
        ci, cj = (p, p) if reuse else (i, j)
        a, b = wide(x)[..., offset + i], wide(x)[..., offset + j]
        out[..., offset + i] = a * wide(cos)[..., ci] - b * wide(sin)[..., ci]
        out[..., offset + j] = b * wide(cos)[..., cj] + a * wide(sin)[..., cj]
    return out.to(x.dtype)


def at_positions(cos: Tensor, positions: Tensor) -> Tensor:
    rows = [[cos[int(p), 0, 0] for p in row] for row in positions]
    return torch.stack([torch.stack(row) for row in rows])[:, :, None]


ROPES += [
    Case(rope_style.rotate_by_style, expect_style),
    Case(
        rope_style.rotate_by_angles,
        lambda x, angles, *rest: expect_style(x, wide(angles).cos(), wide(angles).sin(), *rest),
    ),
    Case(
        rope_style.rotate_both_by_angles,
        lambda x, y, angles, *rest: tuple(
            expect_style(t, wide(angles).cos(), wide(angles).sin(), *rest) for t in (x, y)
        ),
    ),
    Case(
        rope_style.rotate_both_by_style,
        lambda x, y, *rest: (expect_style(x, *rest), expect_style(y, *rest)),
    ),
    Case(
        rope_style.rotate_at_positions,
        lambda x, cos, sin, at, *rest: expect_style(
            x, at_positions(cos, at), at_positions(sin, at), *rest
        ),
    ),
    Case(
        rope_style.rotate_both_at_positions,
        lambda x, y, cos, sin, at, *rest: tuple(
            expect_style(t, at_positions(cos, at), at_positions(sin, at), *rest) for t in (x, y)
        ),
    ),
]


# Sequences through state space models.


def expect_conv(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    out = torch.zeros(x.shape, dtype=wide(x).dtype)
    width = weight.shape[1]
    for t in range(x.shape[2]):
        for j in range(width):
            if t - (width - 1) + j >= 0:
                out[:, :, t] += wide(weight)[:, j] * wide(x)[:, :, t - (width - 1) + j]
    out = out if bias is None else out + wide(bias)[:, None]
    return (out / (1 + torch.exp(-out)) if activation else out).to(x.dtype)


def expect_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None,
    state: Tensor | None,
    final: bool,
    normalize: bool,
) -> tuple[Tensor, Tensor | None]:
    heads, size = v.shape[2], k.shape[3]
    q, k = wide(q), wide(k)
    if normalize:
        q, k = (t / torch.sqrt((t * t).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    out, last = torch.zeros(v.shape, dtype=q.dtype), []
    for h in range(heads):
        memory = torch.zeros(size, v.shape[3], dtype=q.dtype)
        memory = memory if state is None else wide(state)[0, h]
        for t in range(v.shape[1]):
            key, query = k[0, t, h * k.shape[2] // heads], q[0, t, h * k.shape[2] // heads]
            memory = memory * torch.exp(wide(g)[0, t, h]).reshape(-1, 1)
            wrong = wide(v)[0, t, h] - key @ memory
            memory = memory + torch.outer(key, wide(beta)[0, t, h] * wrong)
            out[0, t, h] = query @ memory * (size**-0.5 if scale is None else scale)
        last.append(memory)
    return out.to(v.dtype), torch.stack(last)[None] if final else None


def expect_delta_v_first(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None,
    state: Tensor | None,
    *rest: bool,
) -> tuple[Tensor, Tensor | None]:
    state = None if state is None else state.mT
    out, last = expect_delta(q, k, v, g, beta, scale, state, *rest)
    return out, None if last is None else last.mT


STATE_SPACES += [
    Case(state_space.causal_conv1d, expect_conv),
    Case(state_space.gated_delta_rule, expect_delta),
    Case(state_space.gated_delta_rule, expect_delta, name="kimi", fixed={"decays": (3,)}),
    Case(state_space.gated_delta_rule_v_first, expect_delta_v_first),
]

CASES = [
    *NORMS,
    *ACTIVATIONS,
    *ROPES,
    *ATTENTIONS,
    *STATE_SPACES,
    *SOFTMAXES,
    *MATMULS,
    *EXPERTS,
    *EMBEDDINGS,
]
