"""Arguments for attention over caches, pools and pages."""

from __future__ import annotations

import torch

from ...reference import attention
from .attention import heads, options
from .draw import Draw, Values, draws_for


@draws_for(attention.cached_attention)
def cached(draw: Draw) -> Values:
    (q_heads, kv_heads), dim = heads(draw), draw.head_dim
    batch, steps, page = draw.size(1, 3), draw.pick("steps", 1, 2), 256 if draw.large else 2
    lengths = draw.whole([draw.size(steps, 2 * page) for _ in range(batch)])
    table = None
    shape = (batch, 2 * page, kv_heads, dim)
    if draw.pick("paged", False, True):
        table = draw.chosen(1, 2 * batch, 2 * batch).view(batch, 2)
        shape = (2 * batch, page, kv_heads, dim)
    elif not draw.large:
        lengths = draw.pick("cache_seqlens", lengths, 2 * page - 1, None)
    return {
        "q": draw.tensor(batch, steps, q_heads, dim),
        "k_cache": draw.tensor(*shape),
        "v_cache": draw.tensor(*shape),
        "cache_seqlens": lengths,
        "block_table": table,
        **options(draw, q_heads),
    }


@draws_for(attention.paged_attention)
def paged(draw: Draw) -> Values:
    """vLLM's layout: the features of a key in groups of 16 bytes."""
    sequences, blocks, size, dim = draw.size(1, 3), 6, 16 if draw.large else 2, draw.head_dim
    inner = (16 // draw.dtype.itemsize) if draw.large else 2
    return {
        "query": draw.tensor(sequences, 4, dim),
        "key_cache": draw.tensor(blocks, 2, dim // inner, size, inner),
        "value_cache": draw.tensor(blocks, 2, dim, size),
        "block_tables": draw.integers(blocks, sequences, 2, dtype=torch.int32),
        "seq_lens": draw.whole([draw.size(1, 2 * size) for _ in range(sequences)]),
        "scale": 0.3,
    }


@draws_for(attention.paged_varlen_attention)
def maybe_paged_varlen(draw: Draw) -> Values:
    """Also a page for each sequence, all of it used."""
    values = paged_varlen(draw)
    maybe = {name: draw.maybe(name, values[name]) for name in ("k_lens", "block_table")}
    if maybe["block_table"] is None and maybe["k_lens"] is not None:
        maybe["k_lens"] = draw.whole([1, 2])
    return {**values, **maybe}


def paged_varlen(draw: Draw) -> Values:
    (q_heads, kv_heads), dim = heads(draw), draw.head_dim
    q_lens = [draw.size(1, 2), draw.size(1, 3)]
    return {
        "q": draw.tensor(sum(q_lens), q_heads, dim),
        "k_cache": draw.tensor(5, 2, kv_heads, dim),
        "v_cache": draw.tensor(5, 2, kv_heads, dim),
        "cu_seqlens_q": draw.starts(q_lens),
        "k_lens": draw.whole([3, 4]),
        "block_table": draw.chosen(1, 5, 4).view(2, 2),
        **options(draw, q_heads),
    }


@draws_for(attention.varlen_or_paged_attention, attention.varlen_attention_fwd)
def varlen_or_paged(draw: Draw) -> Values:
    """Keys in pages, or packed; where their lengths are given as well, not all of them are used."""
    values = paged_varlen(draw)
    table = draw.maybe("block_table", values["block_table"])
    k_lens = draw.maybe("k_lens", values["k_lens"])
    starts = draw.starts([3, 4] if k_lens is None else [4, 4])
    if table is None:
        shape = values["k_cache"].shape[2:]
        k, v = (draw.tensor(7 if k_lens is None else 8, *shape) for _ in range(2))
    else:
        k, v = values["k_cache"], values["v_cache"]
        starts = starts if k_lens is None else draw.maybe("cu_seqlens_k", starts)
    return {
        **values,
        "k": k,
        "v": v,
        "cu_seqlens_k": starts,
        "k_lens": k_lens,
        "block_table": table,
    }


@draws_for(attention.cached_or_packed_attention)
def cached_or_packed(draw: Draw) -> Values:
    values = cached(draw)
    values["page_table"] = values["block_table"]
    lengths = draw.maybe("cu_seqlens_q", [draw.size(1, 2) for _ in values["q"]])
    if lengths is None:
        return {**values, "cu_seqlens_q": None}
    q = draw.tensor(sum(lengths), *values["q"].shape[2:])
    return {**values, "q": q, "cu_seqlens_q": draw.starts(lengths)}


@draws_for(attention.mla_decode)
def latent(draw: Draw) -> Values:
    sequences, count, rank, rotated = draw.size(1, 2), draw.size(1, 3), 3, 2
    return {
        "q_nope": draw.tensor(sequences, count, rank),
        "q_pe": draw.tensor(sequences, count, rotated),
        "cache": draw.tensor(5, 2, rank + rotated),
        "seq_lens": draw.whole([draw.size(1, 4) for _ in range(sequences)]),
        "page_table": draw.chosen(1, 5, 2 * sequences).view(sequences, 2),
        "scale": 0.4,
    }


@draws_for(
    attention.pooled_attention,
    attention.token_scores,
    attention.token_values,
)
def pooled(draw: Draw) -> Values:
    """lightllm's layout: the rows of a pool that each request has, up to five."""
    (q_heads, kv_heads), dim = heads(draw), draw.head_dim
    lengths = [draw.size(1, 5), draw.size(1, 5)]
    table = draw.chosen(3, 9, 5)
    table[2, lengths[0] :] = 10**6  # past the length of its request, and of the pool
    stretches = 1 + sum(lengths) + 1
    return {
        "q": draw.tensor(2, q_heads, dim),
        "k": draw.tensor(9, kv_heads, dim),
        "v": draw.tensor(9, kv_heads, dim),
        "req_to_tokens": table,
        "b_req_idx": draw.whole([2, 0]),
        "b_seq_len": draw.whole(lengths),
        "b_start_loc": draw.whole([1, 1 + lengths[0]]),
        "out": draw.tensor(q_heads, stretches),
        "weights": draw.tensor(q_heads, stretches),
        "normalize": draw.pick("normalize", True, False),
        "dtype": draw.dtype,
    }


@draws_for(attention.pooled_prefill)
def pooled_prefill(draw: Draw) -> Values:
    values = pooled(draw)
    lengths = values["b_seq_len"].tolist()
    cached = [draw.size(0, length - 1) for length in lengths]
    q = draw.tensor(sum(lengths) - sum(cached), *values["q"].shape[1:])
    return {**values, "q": q, "b_cached_len": draw.whole(cached)}


@draws_for(attention.indexed_decode)
def indexed(draw: Draw) -> Values:
    lengths = [draw.size(1, 3), draw.size(1, 3)]
    (q_heads, kv_heads), dim = heads(draw), draw.head_dim
    return {
        **options(draw, q_heads),
        "q": draw.tensor(2, q_heads, dim),
        "k": draw.tensor(9, kv_heads, dim),
        "v": draw.tensor(9, kv_heads, draw.pick("v_dim", dim, 3)),
        "indptr": draw.starts(lengths),
        "indices": draw.integers(9, sum(lengths)),
        "scale": 0.3,
    }


@draws_for(attention.extended_attention)
def extended(draw: Draw) -> Values:
    fresh, prefix = [draw.size(1, 3), draw.size(1, 2)], [draw.size(0, 2), draw.size(0, 2)]
    (q_heads, kv_heads), dim = heads(draw), draw.head_dim
    return {
        **options(draw, q_heads),
        "q": draw.tensor(sum(fresh), q_heads, dim),
        **{name: draw.tensor(sum(fresh), kv_heads, dim) for name in "kv"},
        **{f"{name}_pool": draw.tensor(9, kv_heads, dim) for name in "kv"},
        "qo_indptr": draw.starts(fresh),
        "kv_indptr": draw.starts(prefix),
        "kv_indices": draw.integers(9, sum(prefix)),
    }


@draws_for(attention.pooled_attention_lse)
def with_lse(draw: Draw) -> Values:
    page, (q_heads, kv_heads), dim = draw.pick("page_size", 1, 2), heads(draw), draw.head_dim
    shape = (9, kv_heads) if page == 1 else (9, page, kv_heads)
    return {
        **options(draw),
        "q": draw.tensor(2, q_heads, dim),
        "k": draw.tensor(*shape, dim),
        "v": draw.tensor(*shape, draw.pick("v_dim", dim, 3)),
        "tables": draw.chosen(2, 9, 5),
        "lengths": draw.whole([draw.size(1, 4), draw.size(1, 4)]),
        "scale": 0.3,
        "page_size": page,
    }


@draws_for(attention.join_blocks)
def blocks(draw: Draw) -> Values:
    return {
        "partial": draw.tensor(2, 3, 3, 4),
        "lse": draw.tensor(2, 3, 3, dtype=draw.wide),
        "lengths": draw.whole([draw.size(1, 6), draw.size(1, 6)]),
        "block": 2,
        "dtype": draw.dtype,
    }


@draws_for(attention.sparse_latent_attention)
def chosen_keys(draw: Draw) -> Values:
    """Rows before the first and past the last are no keys; of one query, none may be left."""
    queries, keys, heads = draw.size(1, 3), 6, 2
    indices = draw.integers(keys + 2, queries, 1, 4, dtype=torch.int32) - 1
    if draw.flag():
        indices[0] = -1
    lengths = draw.whole([draw.size(1, 4) for _ in range(queries)])
    return {
        "q": draw.tensor(queries, heads, 5),
        "kv": draw.tensor(keys, 1, 5),
        "indices": indices,
        "scale": 0.4,
        "value_dim": 3,
        "sinks": draw.pick("sinks", None, draw.tensor(heads, dtype=draw.wide)),
        "lengths": draw.maybe("lengths", lengths),
    }
