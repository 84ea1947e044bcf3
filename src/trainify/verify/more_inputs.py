"""Random inputs of products with quantized weights, routers, and rotations by tables of angles.

The makers are as in :mod:`.inputs`, which knows those of norms, activations and attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .inputs import Draw, Values


# -- products -------------------------------------------------------------------------------------


def _scaled(draw: Draw) -> Values:
    """Codes as floats: their values count, not how many bits they have."""
    (rows,), k, n = draw.rows, draw.features, draw.size(2, 4)
    one = draw.pick("scales", False, True)
    scale_a, scale_b = (draw.tensor(*shape).abs() for shape in ((rows, 1), (1, n)))
    return {
        "a": draw.tensor(rows, k),
        "b": draw.tensor(k, n),
        "scale_a": scale_a[:1, :1] if one else scale_a,
        "scale_b": scale_b[:1, :1] if one else scale_b,
        "out_dtype": draw.dtype,
        "bias": draw.pick("bias", None, draw.tensor(n)),
    }


def _scaled_groups(draw: Draw) -> Values:
    sizes, k, n = [draw.size(1, 3) for _ in range(2)], draw.features, 3
    return {
        "a": draw.tensor(sum(sizes), k),
        "b": draw.tensor(2, k, n),
        "scale_a": draw.tensor(sum(sizes)).abs(),
        "scale_b": draw.tensor(2, n).abs(),
        "offsets": draw.whole([sizes[0], sum(sizes)]),
        "out_dtype": draw.dtype,
    }


def _scaled_sum(draw: Draw) -> Values:
    (rows,), k, n = draw.rows, draw.features, draw.size(2, 4)
    return {
        "a": draw.tensor(rows, k),
        "b": draw.tensor(n, k),
        "scale_a": draw.tensor(rows, 1).abs(),
        "scale_b": draw.tensor(n).abs(),
        "out_dtype": draw.dtype,
        "residual": draw.pick("residual", None, draw.tensor(rows, n)),
        "bias": draw.pick("bias", None, draw.tensor(n)),
    }


def _codes(draw: Draw, *shape: int) -> torch.Tensor:
    drawn = torch.randint(-(2**31), 2**31, shape, generator=draw.generator)
    return drawn.to(draw.device, torch.int32)


def _awq(draw: Draw) -> Values:
    groups, size = 2, 4
    return {
        "x": draw.tensor(*draw.rows, groups * size),
        "qweight": _codes(draw, groups * size, 1),
        "qzeros": _codes(draw, groups, 1),
        "scales": draw.tensor(groups, 8, scale=0.1),
    }


# -- routers --------------------------------------------------------------------------------------


def _router(draw: Draw) -> Values:
    (rows,), experts = draw.rows, 8
    gating = draw.tensor(rows, experts, scale=2)
    return {
        "gating": gating,
        "k": 3,
        "renormalize": draw.pick("renormalize", False, True),
        "dtype": draw.dtype,
        "bias": draw.pick("bias", None, draw.tensor(experts, dtype=draw.wide)),
        "scale": draw.pick("scale", 1.0, 2.5),
        "groups": 4,
        "kept": 2,
        "scoring": draw.pick("scoring", "softmax", "sigmoid"),
        "best": None,
    }


# -- attention ------------------------------------------------------------------------------------


def _biased(draw: Draw) -> Values:
    steps, keys = draw.pick("lengths", (5, 5), (2, 6))
    q, k, v = (draw.tensor(2, 2, n, draw.head_dim) for n in (steps, keys, keys))
    return {
        "q": q,
        "k": k,
        "v": v,
        "bias": draw.pick("bias", None, draw.tensor(1, 2, steps, keys)),
        "causal": draw.pick("causal", False, True),
        "scale": draw.pick("scale", None, 0.3),
    }


def _quantized(draw: Draw) -> Values:
    heads, kv_heads = draw.pick("heads", (2, 2), (4, 2), (3, 1))
    q, k, v = (draw.tensor(2, n, 5, draw.head_dim) for n in (heads, kv_heads, kv_heads))
    scales = {f"{name}_descale": draw.tensor(2, kv_heads).abs() for name in "qkv"}
    return {
        "q": q,
        "k": k,
        "v": v,
        **{name: draw.pick(name, scale, None) for name, scale in scales.items()},
        "causal": draw.pick("causal", False, True),
        "scale": draw.pick("scale", None, 0.3),
    }


def _quantized_steps(draw: Draw) -> Values:
    values = _quantized(draw)
    return {**values, **{name: values[name].transpose(1, 2).contiguous() for name in "qkv"}}


# -- rotations ------------------------------------------------------------------------------------


def _styles(draw: Draw) -> Values:
    """Tables [S, 1, 1, R] for x [S, B, heads, D]: R is half of what they turn, or all of it."""
    steps, batch, dim = 3, 2, draw.head_dim
    reuse = draw.pick("reuse_front", False, True)
    turned = draw.pick("turned", dim, dim // 2)
    drawn = draw._randn(steps, 1, 1, turned // 2 if reuse else turned) * 3
    angles, cos, sin = (t.to(draw.dtype).to(draw.device) for t in (drawn, drawn.cos(), drawn.sin()))
    return {
        "x": draw.tensor(steps, batch, 2, dim),
        "y": draw.tensor(steps, batch, 1, dim),
        "cos": cos,
        "sin": sin,
        "freqs": angles,
        "positions": draw.integers(steps, steps, batch),
        "style": draw.pick("style", 0, 1),
        "reuse_front": reuse,
        "nope_first": draw.pick("nope_first", False, True),
    }


MAKERS: Mapping[str, Callable[[Draw], Values]] = {
    "scaled_mm": _scaled,
    "scaled_grouped_mm": _scaled_groups,
    "scaled_mm_add": _scaled_sum,
    "awq_matmul": _awq,
    **dict.fromkeys(
        (
            *("softmax_topk", "softmax_topk_rows", "sigmoid_topk", "sigmoid_topk_rows"),
            "grouped_topk",
        ),
        _router,
    ),
    **dict.fromkeys(("biased_attention", "biased_attention_results"), _biased),
    **dict.fromkeys(("quantized_attention", "quantized_attention_results"), _quantized),
    "quantized_flash_attention": _quantized_steps,
    **dict.fromkeys(
        (
            *("rotate_by_style", "rotate_by_angles", "rotate_at_positions"),
            *("rotate_both_by_style", "rotate_both_by_angles", "rotate_both_at_positions"),
        ),
        _styles,
    ),
}
