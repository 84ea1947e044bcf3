"""Arguments for :mod:`trainify.reference.rope`."""

from __future__ import annotations

import torch

from ...reference import rope, rope_axes, rope_style
from .draw import Draw, Values, draws_for


@draws_for(rope.rotate_pairs)
def pairs(draw: Draw) -> Values:
    dim = draw.head_dim
    cos, sin = draw.angles(*draw.rows, draw.pick("covered", dim, dim // 2) // 2)
    return {
        "x": draw.tensor(*draw.rows, dim),
        "cos": cos,
        "sin": sin,
        "is_neox": draw.pick("is_neox", True, False),
        "offset": draw.pick("offset", *range(dim - 2 * cos.shape[-1] + 1)),
    }


@draws_for(rope.rotate_half)
def halves(draw: Draw) -> Values:
    return {"x": draw.tensor(*draw.rows, draw.head_dim)}


def table(draw: Draw, *, half: bool = True, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Cosines, then sines, for all features of a head or ``half`` of them."""
    dim = draw.head_dim
    covered = draw.pick("covered", dim, dim // 2) if half else dim
    return torch.cat(draw.angles(32, covered // 2, dtype=dtype or draw.wide), -1)


@draws_for(rope.rotary_embedding, rope.rotary_embedding_rounded)
def at_positions(draw: Draw) -> Values:
    """Query and key with grouped heads."""
    dim = draw.head_dim
    heads, kv_heads = draw.pick("heads", (4, 2), (2, 2), (3, 1))
    flat = draw.pick("flat", draw.large, False, True)
    shapes = [(n * dim,) if flat else (n, dim) for n in (heads, kv_heads)]
    query, key = (draw.tensor(*draw.rows, *shape, scale=2) for shape in shapes)
    cos_sin_cache = table(draw, dtype=draw.pick("table", draw.dtype, draw.wide))
    return {
        "positions": draw.integers(32, *draw.rows),
        "query": query,
        "key": draw.maybe("key", key),
        "head_size": dim,
        "cos_sin_cache": cos_sin_cache,
        "is_neox": draw.pick("is_neox", True, False),
        "offset": draw.pick("offset", *range(dim - cos_sin_cache.shape[-1] + 1)),
        "inverse": draw.pick("inverse", False, True),
    }


@draws_for(
    rope.rope_at,
    rope.llama31_rope_at,
    rope.rope_ragged,
    rope.llama31_rope_ragged,
    rope.ragged_positions,
)
def by_frequencies(draw: Draw) -> Values:
    dim, lengths = draw.head_dim, [draw.size(0, 3), draw.size(1, 5)]
    return {
        "q": draw.tensor(sum(lengths), 4, dim),
        "k": draw.tensor(sum(lengths), 2, dim),
        "positions": draw.integers(40, sum(lengths), dtype=torch.int32),
        "indptr": draw.starts(lengths),
        "offsets": draw.integers(9, 2, dtype=torch.int32),
        "rotary_dim": draw.pick("rotary_dim", None, dim // 2),
        "interleave": draw.pick("interleave", False, True),
        "rope_scale": draw.pick("rope_scale", 1.0, 2.0),
        "rope_theta": draw.pick("rope_theta", 1e4, 5e5),
        "low_freq_factor": draw.pick("low_freq_factor", 1.0),
        "high_freq_factor": draw.pick("high_freq_factor", 4.0),
        "old_context_len": draw.pick("old_context_len", 8192.0, 64.0),
    }


@draws_for(rope.rotate_query_key)
def by_rows(draw: Draw) -> Values:
    tokens, dim = draw.count, draw.head_dim
    cos, sin = draw.angles(tokens, dim // 2)
    q, k = draw.tensor(tokens, 4, dim), draw.tensor(tokens, 2, dim)
    return {"q": q, "k": k, "cos": cos, "sin": sin, "is_neox": draw.pick("is_neox", True, False)}


@draws_for(rope.rotate_query_key_or_pairs)
def by_rows_or_pairs(draw: Draw) -> Values:
    """Tables [T, R] whose halves are alike, or [T, R/2] where neighbours pair."""
    values = {**by_rows(draw), "complex_mode": draw.pick("complex_mode", True, False)}
    repeats = (1, 1 if values["complex_mode"] else 2)
    return {**values, **{name: values[name].repeat(repeats) for name in ("cos", "sin")}}


@draws_for(rope.rotate_query_key_fp32)
def full_tables(draw: Draw) -> Values:
    """Hugging Face's layout: tables [B, S, D] whose halves are alike."""
    batch, steps, dim = draw.size(1, 2), draw.size(1, 4), draw.head_dim
    cos, sin = (t.repeat(1, 1, 2) for t in draw.angles(batch, steps, dim // 2))
    at = draw.pick("unsqueeze_dim", 1, 2)
    q, k = (
        draw.tensor(*((batch, n, steps) if at == 1 else (batch, steps, n)), dim) for n in (4, 2)
    )
    return {"q": q, "k": k, "cos": cos, "sin": sin, "unsqueeze_dim": at}


@draws_for(rope.apply_rotary_pos_emb)
def broadcast_tables(draw: Draw) -> Values:
    values = full_tables(draw)
    cos, sin = (values[name].unsqueeze(values["unsqueeze_dim"]) for name in ("cos", "sin"))
    return {**values, "cos": cos, "sin": sin}


@draws_for(rope.rotate_by_tables)
def narrow_tables(draw: Draw) -> Values:
    values = broadcast_tables(draw)
    columns = draw.pick("columns", draw.head_dim // 2, draw.head_dim)
    return {**values, **{name: values[name][..., :columns] for name in ("cos", "sin")}}


@draws_for(rope.rotate_two_halves)
def two_halves(draw: Draw) -> Values:
    tokens, half = draw.count, draw.head_dim // 2
    cos, sin = draw.angles(tokens, 1, half)
    x1, x2 = draw.tensor(tokens, 3, half), draw.tensor(tokens, 3, half)
    return {"x1": x1, "x2": x2, "cos": cos, "sin": sin, "conj": draw.pick("conj", False, True)}


@draws_for(rope.apply_rotary)
def with_offsets(draw: Draw) -> Values:
    batch, steps, dim = draw.size(1, 2), draw.size(1, 4), draw.head_dim
    cos, sin = draw.angles(16, draw.pick("covered", dim, dim // 2) // 2)
    return {
        "x": draw.tensor(batch, steps, 2, dim),
        "cos": cos,
        "sin": sin,
        "seqlen_offsets": draw.pick("seqlen_offsets", 0, 5, draw.integers(9, batch)),
        "interleaved": draw.pick("interleaved", False, True),
        "conjugate": draw.pick("conjugate", False, True),
    }


@draws_for(rope.rotate_fp16)
def exllama(draw: Draw) -> Values:
    batch, steps, heads, dim = draw.size(1, 2), draw.size(1, 3), draw.size(1, 2), draw.head_dim
    is_neox, past = draw.pick("is_neox", True, False), draw.pick("past_len", 2, -1)
    tables = draw.angles(12, draw.pick("covered", dim, dim // 2) // 2)
    cos, sin = (
        (torch.cat((t, t), -1) if is_neox else t.repeat_interleave(2, -1))[None, None]
        for t in tables
    )
    offsets = draw.integers(4, batch) - (1 if past == -1 else 0)
    nothing = torch.empty(1, 1, dtype=torch.int32, device="meta")
    return {
        "x": draw.tensor(batch, steps, heads * dim).contiguous(),
        "sin": sin,
        "cos": cos,
        "past_len": past,
        "num_heads": heads,
        "head_dim": dim,
        "offsets": offsets if past == -1 else draw.pick("offsets", offsets, None, nothing),
        "is_neox": is_neox,
    }


@draws_for(rope.rotate_interleaved_to_halves)
def interleaved(draw: Draw) -> Values:
    steps, dim = draw.size(1, 3), draw.head_dim
    tables = draw.angles(2, 1, draw.pick("steps", steps, 1), dim // 2)
    cos, sin = (t.repeat(1, 1, 1, 2) for t in tables)
    return {"x": draw.tensor(2, draw.size(1, 2), steps, dim), "cos": cos, "sin": sin}


@draws_for(rope.fused_qk_norm_rope, rope.yarn_qk_norm_rope)
def qkv(draw: Draw) -> Values:
    tokens, dim = draw.count, draw.head_dim
    scaling = ((4.0, 1.0, 2.0, 1.3), (1.0, 0.0, 0.0, 1.0), (4.0, 1.0, 1.0, 1.3))
    factor, low, high, attention_factor = draw.pick("scaling", *scaling)
    return {
        "qkv": draw.tensor(tokens, 4 * dim).contiguous(),
        "num_heads_q": 2,
        "num_heads_k": 1,
        "num_heads_v": 1,
        "head_dim": dim,
        "eps": 1e-5,
        "q_weight": draw.tensor(dim),
        "k_weight": draw.tensor(dim),
        "cos_sin_cache": table(draw),
        "is_neox": draw.pick("is_neox", True, False),
        "position_ids": draw.integers(32, tokens),
        "base": 100.0,
        "factor": factor,
        "low": low,
        "high": high,
        "attention_factor": attention_factor,
        "rotary_dim": draw.pick("rotary_dim", dim, None, dim // 2),
    }


@draws_for(rope.norm_and_rotate_tail)
def tail(draw: Draw) -> Values:
    tokens, dim = draw.count, draw.head_dim
    freqs = torch.stack(draw.angles(9, dim // 4, dtype=draw.wide), -1).flatten(1)
    q = draw.tensor(tokens, draw.size(1, 3), dim)
    return {"q": q, "freqs_cis": freqs, "positions": draw.integers(9, tokens), "eps": 1e-5}


@draws_for(
    rope_style.rotate_by_style,
    rope_style.rotate_by_angles,
    rope_style.rotate_at_positions,
    rope_style.rotate_both_by_style,
    rope_style.rotate_both_by_angles,
    rope_style.rotate_both_at_positions,
)
def styles(draw: Draw) -> Values:
    """Tables [S, 1, 1, R] for x [S, B, heads, D]: R is half of what they turn, or all of it."""
    steps, batch, dim = 3, 2, draw.head_dim
    reuse = draw.pick("reuse_front", False, True)
    turned = draw.pick("turned", dim, dim // 2)
    freqs = draw.tensor(steps, 1, 1, turned // 2 if reuse else turned, scale=3)
    return {
        "x": draw.tensor(steps, batch, 2, dim),
        "y": draw.tensor(steps, batch, 1, dim),
        "cos": freqs.cos(),
        "sin": freqs.sin(),
        "freqs": freqs,
        "positions": draw.integers(steps, steps, batch),
        "style": draw.pick("style", 0, 1),
        "reuse_front": reuse,
        "nope_first": draw.pick("nope_first", False, True),
    }


@draws_for(rope_style.rotate_packed)
def packed_styles(draw: Draw) -> Values:
    lengths = [draw.size(0, 3), draw.size(1, 3)]
    x = draw.tensor(sum(lengths), 2, draw.head_dim)
    return {**styles(draw), "x": x, "cu_seqlens": draw.starts(lengths)}


@draws_for(rope_style.rotate_image)
def image(draw: Draw) -> Values:
    height, width, dim = draw.size(1, 3), draw.size(1, 3), draw.head_dim
    reuse = draw.pick("reuse_front", False, True)
    columns = dim // 2 if reuse else dim
    tables = {}
    for name, size in (("h", height), ("w", width)):
        tables[f"cos_{name}"], tables[f"sin_{name}"] = draw.angles(1, size + 1, 1, columns)
    return {
        "x": draw.tensor(2, height * width, 2, 2 * dim),
        **tables,
        "height": height,
        "width": width,
        "style": draw.pick("style", 0, 1),
        "reuse_front": reuse,
    }


@draws_for(rope.gated_qk_norm_rope, rope.gated_qk_norm_rope_rows)
def gated_heads(draw: Draw) -> Values:
    tokens, dim = draw.count, draw.head_dim
    return {
        "q_gate": draw.tensor(tokens, 4 * dim),
        "k": draw.tensor(tokens, dim),
        "q_weight": draw.tensor(dim),
        "k_weight": draw.tensor(dim),
        "cos_sin_cache": table(draw),
        "positions": draw.integers(32, tokens),
        "eps": 1e-5,
        "head_dim": dim,
        "offset": draw.pick("offset", 0.0, 1.0),
    }


@draws_for(
    rope_axes.axes_of_pairs,
    rope_axes.multimodal_rope,
    rope_axes.multimodal_rotary_embedding,
)
def by_axes(draw: Draw) -> Values:
    """Tables of 8 of 10 features, for each of three positions."""
    tokens, size, turned = draw.count, 10, 8
    wide = draw.pick("table", draw.dtype, draw.wide)
    cos, sin = draw.angles(3, tokens, turned // 2, dtype=wide)
    return {
        "pairs": torch.arange(turned // 2, device=draw.device),
        "positions": draw.integers(9, 3, tokens),
        "q": draw.tensor(tokens, draw.size(1, 3) * size, scale=2),
        "k": draw.tensor(tokens, draw.size(1, 2) * size, scale=2),
        "cos": cos,
        "sin": sin,
        "cos_sin_cache": torch.cat(draw.angles(9, turned // 2, dtype=wide), -1),
        "section": draw.pick("section", (2, 1, 1), (1, 2, 1), (1, 1, 2)),
        "head_size": size,
        "interleaved": draw.pick("interleaved", False, True),
        "is_neox": draw.pick("is_neox", True, False),
        "mapped": draw.pick("mapped", False, True),
        "axis_map": draw.integers(3, turned),
    }


@draws_for(rope_axes.rotate_heads)
def heads_by_tables(draw: Draw) -> Values:
    values = by_axes(draw)
    tables = {name: values[name][0].unsqueeze(1) for name in ("cos", "sin")}
    return {**values, **tables, "x": values["q"]}
