"""Cases of rotary embeddings fused for one library's layers."""

from __future__ import annotations

from typing import Any

import torch

from tests.reference.cases import (
    Case,
    Tensor,
    expect_rms_norm,
    expect_style,
    halves,
    normed,
    rotated,
    wide,
)
from trainify.reference import rope, rope_axes, rope_style


def expect_yarn(
    qkv: Tensor,
    nq: int,
    nk: int,
    nv: int,
    dim: int,
    eps: float,
    q_weight: Tensor,
    k_weight: Tensor,
    base: float,
    is_neox: bool,
    positions: Tensor,
    factor: float,
    low: float,
    high: float,
    attention_factor: float,
    rotary_dim: int | None,
) -> Tensor:
    size = rotary_dim or dim
    frequencies = []
    for i in range(size // 2):
        frequency = base ** (-2.0 * i / size)
        if factor != 1.0:
            high_adjusted = high + 0.001 if abs(low - high) <= 1e-6 else high
            ramp = min(max((i - low) / (high_adjusted - low), 0.0), 1.0)
            frequency = frequency / factor * ramp + frequency * (1.0 - ramp)
        frequencies.append(frequency)
    angles = positions[:, None].double() * torch.tensor(frequencies, dtype=torch.float64)
    cos, sin = (t.to(wide(qkv).dtype) for t in (angles.cos(), angles.sin()))
    out = []
    for h in range(nq + nk + nv):
        head = qkv[:, h * dim : (h + 1) * dim]
        if h < nq + nk:
            turned = normed(head, eps) * wide(q_weight if h < nq else k_weight)
            front = rotated(turned[:, :size], cos, sin, is_neox, rounded=False) * attention_factor
            head = torch.cat((front, turned[:, size:]), -1).to(qkv.dtype)
        out.append(head)
    return torch.cat(out, -1)


def expect_tail(q: Tensor, table: Tensor, positions: Tensor, eps: float) -> Tensor:
    out = expect_rms_norm(q, torch.ones((), dtype=wide(q).dtype), eps)
    tail = wide(out)[..., q.shape[-1] - table.shape[-1] :]
    pairs = torch.view_as_complex(tail.unflatten(-1, (-1, 2)).contiguous())
    turns = torch.view_as_complex(table[positions].unflatten(-1, (-1, 2)))
    turned = torch.view_as_real(pairs * turns[:, None]).flatten(-2).to(q.dtype)
    return torch.cat((out[..., : -table.shape[-1]], turned), -1)


def expect_fp16(
    x: Tensor,
    sin: Tensor,
    cos: Tensor,
    past: int,
    heads: int,
    dim: int,
    offsets: Tensor | None,
    is_neox: bool,
) -> Tensor:
    out = x.clone().view(*x.shape[:2], heads, dim)
    size = cos.shape[-1]
    for b in range(x.shape[0]):
        start = past
        if past == -1:
            assert offsets is not None
            start = max(int(offsets[b]), 0)
        elif offsets is not None and not offsets.is_meta:
            start = past + int(offsets[b])
        for s in range(x.shape[1]):
            c, d = cos[0, 0, start + s], sin[0, 0, start + s]
            for p in range(size // 2):
                i, j = (p, p + size // 2) if is_neox else (2 * p, 2 * p + 1)
                left, right = x.view_as(out)[b, s, :, i], x.view_as(out)[b, s, :, j]
                if is_neox:
                    out[b, s, :, i] = wide(left) * wide(c[i]) + wide(right * -d[i])
                    out[b, s, :, j] = wide(right) * wide(c[i]) + wide(left * d[i])
                else:
                    out[b, s, :, i] = wide(left * c[i]) - wide(right) * wide(d[i])
                    out[b, s, :, j] = wide(right * c[j]) + wide(left) * wide(d[j])
    return out.view_as(x)


def expect_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    pairs = x.shape[-1] // 2
    turned = rotated(x, cos[..., :pairs], sin[..., :pairs], False, rounded=False)
    return torch.cat((turned[..., ::2], turned[..., 1::2]), -1)


def expect_packed(x: Tensor, starts: Tensor, angles: Tensor, *rest: Any) -> Tensor:
    rows = torch.cat([angles[: int(n)] for n in starts.diff()])
    return expect_style(x[:, None], wide(rows).cos(), wide(rows).sin(), *rest)[:, 0]


def expect_image(
    x: Tensor,
    cos_h: Tensor,
    sin_h: Tensor,
    cos_w: Tensor,
    sin_w: Tensor,
    height: int,
    width: int,
    style: int,
    reuse: bool,
) -> Tensor:
    out = torch.empty_like(x)
    for patch in range(height * width):
        row, column = divmod(patch, width)
        for half, (cos, sin) in enumerate(
            ((cos_h[0, row], sin_h[0, row]), (cos_w[0, column], sin_w[0, column]))
        ):
            part = x[:, patch, :, 4 * half : 4 * half + 4]
            out[:, patch, :, 4 * half : 4 * half + 4] = expect_style(
                part, cos, sin, style, reuse, False
            )
    return out


def expect_gated_rope(
    q_gate: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    table: Tensor,
    positions: Tensor,
    eps: float,
    dim: int,
    offset: float,
) -> tuple[Tensor, Tensor, Tensor]:
    cos, sin = halves(table[positions])

    def turned(x: Tensor, weight: Tensor) -> Tensor:
        head = (normed(x, eps) * (wide(weight) + offset)).to(x.dtype)
        return rotated(head, cos, sin, True, rounded=False).to(x.dtype)

    parts = q_gate.split(dim, 1)
    q = torch.cat([turned(x, q_weight) for x in parts[::2]], 1)
    keys = torch.cat([turned(x, k_weight) for x in k.split(dim, 1)], 1)
    return q, keys, torch.stack(parts[1::2], 1)


def expect_axes(pairs: Tensor, section: tuple[int, ...], interleaved: bool) -> Tensor:
    axes = [axis for axis in range(3) for _ in range(section[axis])]
    if interleaved:
        axes = [0] * len(pairs)
        for axis in (1, 2):
            for pair in range(axis, min(3 * section[axis], len(pairs)), 3):
                axes[pair] = axis
    return torch.tensor(axes)


def expect_heads(x: Tensor, cos: Tensor, sin: Tensor, size: int, is_neox: bool) -> Tensor:
    heads = x.reshape(len(x), -1, size).to(cos.dtype)
    turned = rotated(heads, cos, sin, is_neox, rounded=True)
    return turned.to(x.dtype).reshape(x.shape)


def expect_axes_rope(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    section: tuple[int, ...],
    size: int,
    interleaved: bool,
    is_neox: bool,
    axes: Tensor | None = None,
) -> tuple[Tensor, ...]:
    if axes is None:
        axes = expect_axes(cos[0, 0], section, interleaved)
    cos, sin = (
        torch.stack([t[a, :, i] for i, a in enumerate(axes)], -1)[:, None] for t in (cos, sin)
    )
    return tuple(expect_heads(x, cos, sin, size, is_neox) for x in (q, k))


def expect_axes_at(
    positions: Tensor,
    q: Tensor,
    k: Tensor,
    size: int,
    table: Tensor,
    section: tuple[int, ...],
    interleaved: bool,
    is_neox: bool,
    mapped: bool,
    axis_map: Tensor,
) -> tuple[Tensor, ...]:
    cos, sin = halves(table[positions])
    axes = axis_map[: cos.shape[-1]] if mapped and interleaved else None
    return expect_axes_rope(q, k, cos, sin, section, size, interleaved, is_neox, axes)


CASES = [
    Case(rope_axes.axes_of_pairs, expect_axes, exact=True),
    Case(rope_axes.rotate_heads, expect_heads, exact=True),
    Case(rope_axes.multimodal_rope, expect_axes_rope, exact=True),
    Case(rope_axes.multimodal_rotary_embedding, expect_axes_at, exact=True),
    Case(rope.gated_qk_norm_rope, expect_gated_rope),
    Case(
        rope.gated_qk_norm_rope_rows,
        lambda *args: (*expect_gated_rope(*args)[:2], expect_gated_rope(*args)[2].flatten(1)),
    ),
    Case(rope.yarn_qk_norm_rope, expect_yarn),
    Case(rope.norm_and_rotate_tail, expect_tail),
    Case(rope.rotate_fp16, expect_fp16),
    Case(rope.rotate_interleaved_to_halves, expect_interleaved, exact=True),
    Case(rope_style.rotate_packed, expect_packed),
    Case(rope_style.rotate_image, expect_image),
]
