"""Scaled dot-product attention in the layouts of the serving kernels.

``q`` is [B, Sq, Hq, D], ``k`` and ``v`` are [B, Sk, Hkv, D]; query head h attends to key head
h // (Hq / Hkv).  Scores and softmax are float32 in the kernels; the result has the dtype of ``q``.
A causal mask is aligned to the bottom right: query i sees key j if j <= i + Sk - Sq, so the last
query sees everything.  ``is_causal`` of :func:`F.scaled_dot_product_attention` is aligned to the
top left, and is used only where the two agree: Sq == Sk.  Windows are (left, right) distances, -1
for no bound.  Dropout is not covered.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def attention_bhsd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Attention with grouped queries over heads-first tensors [B, H, S, D].

    ``causal`` asks for as many queries as keys, and goes without a softcap, which bounds the
    scores by softcap * tanh(score / softcap) and which PyTorch's kernels do not offer.
    """
    if softcap == 0.0:
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=causal,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = q.float() @ k.float().mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = softcap * torch.tanh(scores / softcap)
    if mask is None:
        return torch.softmax(scores, dim=-1).to(q.dtype) @ v
    # A row without a visible key gives zeros, as in the kernels, hence the second masked_fill.
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(~mask, 0.0).to(q.dtype) @ v


def attention_with_sink_bhsd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Attention in which a head may also attend to nothing: sinks [H] are its score for that.

    The rest is as in attention_bhsd; in float32, rounded once.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = q.float() @ k.float().mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap != 0.0:
        scores = softcap * torch.tanh(scores / softcap)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    sink = sinks.float().view(-1, 1, 1).expand(*scores.shape[:-1], 1)
    weights = torch.softmax(torch.cat((scores, sink), dim=-1), dim=-1)[..., :-1]
    return (weights @ v.float()).to(q.dtype)


def split_and_scale(
    qkv: torch.Tensor, bias: torch.Tensor, heads: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add the bias to qkv [B, S, 3 D] and split it into q, k and v [B, heads, S, D / heads].

    q is divided by sqrt(D / heads).
    """
    parts = (qkv + bias).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    q, k, v = parts.unbind(0)
    return q * q.shape[-1] ** -0.5, k, v


def self_attention(
    x: torch.Tensor,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
) -> torch.Tensor:
    """Multi-head attention of x [B, S, D] to itself, as ``nn.MultiheadAttention`` has it."""
    qkv = F.linear(x, qkv_weight, qkv_bias)
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return F.linear(out, proj_weight, proj_bias)


def multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    need_weights: bool = True,
    average: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Multi-head attention of query to key and value [B, S, D], as ``nn.MultiheadAttention``.

    Returns (result, weights): [B, Sq, Sk] averaged over the heads, or [B, heads, Sq, Sk]; None
    where they are not needed.
    """
    linears = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
    q, k, v = (F.linear(x, w, b).unflatten(-1, (heads, -1)).transpose(1, 2) for x, w, b in linears)
    weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
    out = F.linear((weights @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    shown = weights.mean(1) if average else weights
    return out, shown if need_weights else None


def transformer_encoder_layer(
    src: torch.Tensor,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
) -> torch.Tensor:
    """One ``nn.TransformerEncoderLayer`` over src [B, S, D], without a mask or dropout."""
    shape = src.shape[-1:]
    x = F.layer_norm(src, shape, norm_weight_1, norm_bias_1, eps) if norm_first else src
    x = src + self_attention(x, heads, qkv_weight, qkv_bias, proj_weight, proj_bias)
    x = x if norm_first else F.layer_norm(x, shape, norm_weight_1, norm_bias_1, eps)
    y = F.layer_norm(x, shape, norm_weight_2, norm_bias_2, eps) if norm_first else x
    y = F.linear(y, ffn_weight_1, ffn_bias_1)
    y = F.linear(F.gelu(y) if use_gelu else F.relu(y), ffn_weight_2, ffn_bias_2)
    x = x + y
    return x if norm_first else F.layer_norm(x, shape, norm_weight_2, norm_bias_2, eps)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None = None,
    causal: bool = False,
    left: int = -1,
    right: int = -1,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of q [B, Sq, Hq, D] over k and v [B, Sk, Hkv, D].

    Causal: the last query sees all keys.  The layout of flash-attention; the scale defaults to
    1 / sqrt(D).  Dao, "FlashAttention-2", 2023.  With ``sinks`` [Hq], a head may also attend to
    nothing: they are its score for that (gpt-oss).
    """
    q_len, k_len = q.shape[1], k.shape[1]
    mask = None
    if left >= 0 or right >= 0 or (causal and (q_len != k_len or softcap != 0.0)):
        mask = torch.ones(q_len, k_len, dtype=torch.bool, device=q.device)
        if causal:
            mask = mask.tril(k_len - q_len)
        elif right >= 0:
            mask = mask.tril(k_len - q_len + right)
        if left >= 0:
            mask = mask.triu(k_len - q_len - left)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if sinks is None:
        out = attention_bhsd(q, k, v, mask, causal and mask is None, scale, softcap)
    else:
        asked = causal and mask is None
        out = attention_with_sink_bhsd(q, k, v, sinks, mask, asked, scale, softcap)
    return out.transpose(1, 2)


def varlen_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention within each of the sequences packed in q, k and v [T, H, D].

    Sequence i owns the rows cu_seqlens[i]:cu_seqlens[i + 1].
    """
    left, right = window or (-1, -1)
    # A view of a packed qkv would keep all of that for backward.
    v = v.contiguous()
    q_lens, k_lens = cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist()
    # Equal lengths are an ordinary batch.
    if len(set(q_lens)) == 1 and len(set(k_lens)) == 1:
        q, k, v = (x.unflatten(0, (len(q_lens), -1)) for x in (q, k, v))
        return attention(q, k, v, scale, causal, left, right, softcap, sinks).flatten(0, 1)
    sequences = zip(q.split(q_lens), k.split(k_lens), v.split(k_lens), strict=True)
    return torch.cat(
        [
            attention(qi[None], ki[None], vi[None], scale, causal, left, right, softcap, sinks)[0]
            for qi, ki, vi in sequences
        ]
    )


def paged_varlen_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    k_lens: torch.Tensor | None,
    block_table: torch.Tensor | None,
    scale: float | None = None,
    causal: bool = True,
    window: tuple[int, int] | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of the sequences packed in q [T, Hq, D] over paged keys and values.

    The caches are [pages, page, Hkv, D]; sequence i owns the first k_lens[i] positions of the pages
    ``block_table[i]``.  Without lengths these are all, and without a table the page is i.
    """
    left, right = window or (-1, -1)
    q_lens = cu_seqlens_q.diff().tolist()
    if block_table is None:
        block_table = torch.arange(len(q_lens), device=q.device).unsqueeze(-1)
    lengths = [None] * len(q_lens) if k_lens is None else k_lens.tolist()
    sequences = zip(q.split(q_lens), lengths, block_table, strict=True)
    return torch.cat(
        [
            attention(
                rows[None],
                k_cache[pages].flatten(0, 1)[None, :length],
                v_cache[pages].flatten(0, 1)[None, :length],
                scale,
                causal,
                left,
                right,
                softcap,
                sinks,
            )[0]
            for rows, length, pages in sequences
        ]
    )


def varlen_or_paged_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    k_lens: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of the sequences packed in q [T, Hq, D] over keys that are packed, or in pages.

    Packed, sequence i owns the rows of k and v [T, Hkv, D] from cu_seqlens_k[i] on.  With a
    ``block_table``, it owns the first positions of the pages block_table[i], where k and v are
    pages [pages, page, Hkv, D].  How many is k_lens[i], where that is given: pages then go without
    ``cu_seqlens_k``, which is None.
    """
    if k_lens is None and block_table is None:
        return varlen_attention(
            q,
            k,
            v,
            cu_seqlens_q,
            cu_seqlens_k,
            scale,
            causal=causal,
            window=window,
            softcap=softcap,
            sinks=sinks,
        )
    if cu_seqlens_k is None:
        return paged_varlen_attention(
            q, k, v, cu_seqlens_q, k_lens, block_table, scale, causal, window, softcap, sinks
        )
    lengths = cu_seqlens_k.diff() if k_lens is None else k_lens
    if block_table is None:
        starts = zip(cu_seqlens_k.tolist(), lengths.tolist(), strict=False)
        rows = torch.cat([torch.arange(at, at + length, device=k.device) for at, length in starts])
        ends = F.pad(lengths.cumsum(0), (1, 0))
        return varlen_attention(
            q, k[rows], v[rows], cu_seqlens_q, ends, scale, causal, window, softcap, sinks
        )
    return paged_varlen_attention(
        q, k, v, cu_seqlens_q, lengths, block_table, scale, causal, window, softcap, sinks
    )


def varlen_attention_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    k_lens: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
) -> tuple[torch.Tensor, None, None, None]:
    """As varlen_or_paged_attention; returns (result, None, None, None).

    flash-attention's ``varlen_fwd``, whose log-sum-exp, dropout mask and random state, which only
    its own backward needs, are None.
    """
    out = varlen_or_paged_attention(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        k_lens,
        block_table,
        scale,
        causal,
        (window_left, window_right),
        softcap,
    )
    return out, None, None, None


def attention_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
) -> tuple[torch.Tensor, None, None, None]:
    """As attention; returns (result, None, None, None): flash-attention's ``fwd``."""
    out = attention(q, k, v, scale, causal, window_left, window_right, softcap)
    return out, None, None, None


def prefill_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    b_seq_len: torch.Tensor,
    scale: float | None = None,
    causal: bool = True,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention within each of the sequences packed in q, k and v [T, H, D].

    The sequences, of the lengths ``b_seq_len``, follow one another without gaps.
    """
    cu_seqlens = F.pad(b_seq_len.cumsum(0), (1, 0))
    return varlen_attention(q, k, v, cu_seqlens, cu_seqlens, scale, causal, sinks=sinks)


def cached_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_seqlens: torch.Tensor | int | None = None,
    block_table: torch.Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of q [B, Sq, Hq, D] over the keys that each sequence has in the cache.

    The caches are [B, Smax, Hkv, D], or pages [pages, page, Hkv, D] that ``block_table``
    [B, pages per sequence] puts in order.  Causal: the queries are the last positions of the
    sequence.  Without ``cache_seqlens`` the caches are full.
    """
    if block_table is not None:
        k_cache = k_cache[block_table].flatten(1, 2)
        v_cache = v_cache[block_table].flatten(1, 2)
    if cache_seqlens is None:
        cache_seqlens = k_cache.shape[1]
    left, right = window or (-1, -1)
    columns = torch.arange(k_cache.shape[1], device=q.device)
    k_len = torch.as_tensor(cache_seqlens, device=q.device).view(-1, 1, 1, 1)
    rows = torch.arange(q.shape[1], device=q.device)[:, None] + k_len - q.shape[1]
    mask = columns <= rows if causal else columns < k_len
    if right >= 0 and not causal:
        mask = mask & (columns <= rows + right)
    if left >= 0:
        mask = mask & (columns >= rows - left)
    q, k, v = q.transpose(1, 2), k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    if sinks is not None:
        out = attention_with_sink_bhsd(q, k, v, sinks, mask, False, scale, softcap)
        return out.transpose(1, 2)
    return attention_bhsd(q, k, v, mask, False, scale, softcap).transpose(1, 2)


def cached_or_packed_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_seqlens: torch.Tensor | int | None = None,
    page_table: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """As cached_attention. With ``cu_seqlens_q``, of sequences packed in q [T, Hq, D].

    Sequence i has the rows cu_seqlens_q[i]:cu_seqlens_q[i + 1] of q, which are its last positions.
    """
    if cu_seqlens_q is None:
        return cached_attention(
            q, k_cache, v_cache, cache_seqlens, page_table, scale, causal, window, softcap, sinks
        )
    k_lens = None
    if cache_seqlens is not None:
        k_lens = torch.as_tensor(cache_seqlens, device=q.device).expand(cu_seqlens_q.shape[0] - 1)
    return paged_varlen_attention(
        q, k_cache, v_cache, cu_seqlens_q, k_lens, page_table, scale, causal, window, softcap, sinks
    )


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attention of one query per sequence [N, Hq, D] over vLLM's paged caches.

    ``key_cache`` is [blocks, Hkv, D/x, block, x], ``value_cache`` [blocks, Hkv, D, block],
    ``block_tables`` [N, blocks per sequence]; the first seq_lens[n] positions count.
    """
    k = key_cache[block_tables].permute(0, 2, 1, 4, 3, 5).flatten(4).flatten(2, 3)
    v = value_cache[block_tables].permute(0, 2, 1, 4, 3).flatten(2, 3)
    mask = torch.arange(k.shape[2], device=k.device) < seq_lens[:, None, None, None]
    return attention_bhsd(query.unsqueeze(2), k, v, mask, scale=scale).squeeze(2)


def single_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_layout: str = "NHD",
    scale: float | None = None,
    causal: bool = False,
    window_left: int = -1,
    softcap: float | None = None,
) -> torch.Tensor:
    """Attention of one sequence, q [Sq, Hq, D].

    k and v are [Sk, Hkv, D], or [Hkv, Sk, D] where ``kv_layout`` is HND.  flashinfer's
    ``single_prefill_with_kv_cache``.
    """
    if kv_layout == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    return attention(q[None], k[None], v[None], scale, causal, window_left, -1, softcap or 0.0)[0]


def single_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv_layout: str = "NHD",
    scale: float | None = None,
    window_left: int = -1,
    softcap: float | None = None,
) -> torch.Tensor:
    """Attention of one query, q [Hq, D], the last position of its sequence.

    k and v are [Sk, Hkv, D], or [Hkv, Sk, D] where ``kv_layout`` is HND.  flashinfer's
    ``single_decode_with_kv_cache``.
    """
    return single_prefill(q[None], k, v, kv_layout, scale, True, window_left, softcap)[0]


def pooled_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    req_to_tokens: torch.Tensor,
    b_req_idx: torch.Tensor,
    b_seq_len: torch.Tensor,
) -> torch.Tensor:
    """Attention of one query per request over a pool of keys and values.

    ``q`` is [B, Hq, D], the pools are [N, Hkv, D];
    ``req_to_tokens[b_req_idx[b], :b_seq_len[b]]`` are the rows of request b: lightllm's layout.
    """
    rows = req_to_tokens[b_req_idx, : int(b_seq_len.max())]
    mask = torch.arange(rows.shape[1], device=q.device) < b_seq_len[:, None]
    # Rows past the length may hold anything: point them at one that exists.
    k, v = (pool[rows.masked_fill(~mask, 0)].transpose(1, 2) for pool in (k, v))
    return attention_bhsd(q.unsqueeze(2), k, v, mask[:, None, None]).squeeze(2)


def pooled_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    req_to_tokens: torch.Tensor,
    b_req_idx: torch.Tensor,
    b_seq_len: torch.Tensor,
    b_cached_len: torch.Tensor,
) -> torch.Tensor:
    """Causal attention of requests packed in q [T, Hq, D] over a pool of keys and values.

    Request b has its last b_seq_len[b] - b_cached_len[b] positions in q, one request after the
    other; ``req_to_tokens[b_req_idx[b], :b_seq_len[b]]`` are its rows of the pools [N, Hkv, D].
    """
    results = []
    parts = q.split((b_seq_len - b_cached_len).tolist())
    for own, request, length in zip(parts, b_req_idx, b_seq_len.tolist(), strict=True):
        rows = req_to_tokens[request, :length].long()
        results.append(attention(own[None], k[rows][None], v[rows][None], None, True)[0])
    return torch.cat(results)


def indexed_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    scale: float,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of one query per sequence, q [B, Hq, D], over pools of keys and values.

    indices[indptr[b]:indptr[b + 1]] are the rows of sequence b in the pools [N, Hkv, D or Dv].
    """
    owned = indices.split(indptr.diff().tolist())
    return torch.cat(
        [
            attention(
                one[None, None], k[rows][None], v[rows][None], scale, False, -1, -1, softcap, sinks
            )
            for one, rows in zip(q, owned, strict=True)
        ]
    ).squeeze(1)


def extended_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    causal: bool,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of packed sequences q [T, Hq, D] over a prefix in pools, then over k and v.

    Sequence b owns the rows qo_indptr[b]:qo_indptr[b + 1] of q, k and v, and the rows
    kv_indices[kv_indptr[b]:kv_indptr[b + 1]] of the pools [N, Hkv, D].  SGLang's prefill.
    """
    lengths = qo_indptr.diff().tolist()
    prefixes = kv_indices.split(kv_indptr.diff().tolist())
    results = []
    parts = (q.split(lengths), k.split(lengths), v.split(lengths))
    for qi, ki, vi, rows in zip(*parts, prefixes, strict=True):
        keys = torch.cat((k_pool[rows].to(ki.dtype), ki))
        values = torch.cat((v_pool[rows].to(vi.dtype), vi))
        out = attention(qi[None], keys[None], values[None], scale, causal, -1, -1, softcap, sinks)
        results.append(out[0])
    return torch.cat(results)


def pooled_attention_lse(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    page_size: int = 1,
    softcap: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one query per sequence, q [B, Hq, D], over pages of keys and values.

    The pools are [tokens, Hkv, D or Dv], or [pages, page_size, Hkv, D or Dv]; ``tables`` [B, pages
    per sequence] names the pages of a sequence, of which the first lengths[b] tokens count.
    Returns (result, natural log-sum-exp [B, Hq] in float32).  vLLM's Triton decode kernel.
    """
    k, v = k.flatten(0, -3), v.flatten(0, -3)
    places = torch.arange(int(lengths.max()), device=q.device)
    rows = tables[:, places // page_size].long() * page_size + places % page_size
    mask = places < lengths.unsqueeze(-1)
    rows = rows.masked_fill(~mask, 0)  # rows past the length may hold anything
    groups = q.shape[1] // k.shape[1]
    keys = k[rows].float().repeat_interleave(groups, dim=2)
    values = v[rows].float().repeat_interleave(groups, dim=2)
    scores = torch.einsum("bhd,bkhd->bhk", q.float(), keys) * scale
    scores = softcap * torch.tanh(scores / softcap) if softcap > 0.0 else scores
    scores = scores.masked_fill(~mask.unsqueeze(1), -torch.inf)
    out = torch.einsum("bhk,bkhd->bhd", torch.softmax(scores, dim=-1), values)
    return out.to(q.dtype), torch.logsumexp(scores, dim=-1)


def join_blocks(
    partial: torch.Tensor, lse: torch.Tensor, lengths: torch.Tensor, block: int, dtype: torch.dtype
) -> torch.Tensor:
    """Join attention over blocks of keys: results [B, H, blocks, D], natural lse [B, H, blocks].

    Of sequence b, the blocks that hold its first lengths[b] keys count.  lightllm's second stage
    of a decode.
    """
    starts = torch.arange(lse.shape[-1], device=lse.device) * block
    unused = (starts >= lengths.unsqueeze(-1)).unsqueeze(1)
    weights = torch.softmax(lse.float().masked_fill(unused, -torch.inf), dim=-1).unsqueeze(-1)
    partial = partial.float().masked_fill(unused.unsqueeze(-1), 0.0)
    return (weights * partial).sum(2).to(dtype)


def token_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    req_to_tokens: torch.Tensor,
    b_req_idx: torch.Tensor,
    b_start_loc: torch.Tensor,
    b_seq_len: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """Scores of one query per request, q [B, Hq, D], with its keys, over sqrt(D).

    Request b writes the columns from b_start_loc[b] on of ``out`` [Hq, N]; its keys are the rows
    ``req_to_tokens[b_req_idx[b], :b_seq_len[b]]`` of the pool k [.., Hkv, D].  lightllm.
    """
    starts, lengths = b_start_loc.tolist(), b_seq_len.tolist()
    for one, request, start, length in zip(q, b_req_idx, starts, lengths, strict=True):
        keys = k[req_to_tokens[request, :length].long()].float()
        keys = keys.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        scores = torch.einsum("hd,khd->hk", one.float(), keys) * q.shape[-1] ** -0.5
        columns = (out[:, :start], scores.to(out.dtype), out[:, start + length :])
        out = torch.cat(columns, dim=-1)
    return out


def token_values(
    weights: torch.Tensor,
    v: torch.Tensor,
    req_to_tokens: torch.Tensor,
    b_req_idx: torch.Tensor,
    b_start_loc: torch.Tensor,
    b_seq_len: torch.Tensor,
    normalize: bool,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Weighted sums of values for one query per request [B, Hq, D], as lightllm lays them out.

    Request b has its weights, or scores to ``normalize`` by softmax, in the columns from
    b_start_loc[b] on of ``weights`` [Hq, N]; its values are the rows
    ``req_to_tokens[b_req_idx[b], :b_seq_len[b]]`` of the pool v [.., Hkv, D].
    """
    results = []
    starts, lengths = b_start_loc.tolist(), b_seq_len.tolist()
    for request, start, length in zip(b_req_idx, starts, lengths, strict=True):
        own = weights[:, start : start + length].float()
        own = torch.softmax(own, dim=-1) if normalize else own
        values = v[req_to_tokens[request, :length].long()].float()
        values = values.repeat_interleave(weights.shape[0] // v.shape[1], dim=1)
        results.append(torch.einsum("hk,khd->hd", own, values))
    return torch.stack(results).to(dtype)


def merge_state(
    v_a: torch.Tensor, s_a: torch.Tensor, v_b: torch.Tensor, s_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Join attention over two sets of keys: results v [T, H, D], base-2 log-sum-exps s [T, H].

    flashinfer's convention: an empty set has s = -inf, and two of them give zeros.  Returns (v, s)
    over both sets.
    """
    top = torch.maximum(s_a, s_b).clamp(min=torch.finfo(torch.float32).min)
    weight_a, weight_b = torch.exp2(s_a - top), torch.exp2(s_b - top)
    total = weight_a + weight_b  # at least 1, unless both are empty
    v = weight_a.unsqueeze(-1) * v_a.float() + weight_b.unsqueeze(-1) * v_b.float()
    return (v / total.clamp(min=1.0).unsqueeze(-1)).to(v_a.dtype), total.log2() + top


def merge_states(v: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Join attention over N sets of keys: results v [T, N, H, D], base-2 log-sum-exps s [T, N, H].

    flashinfer's convention, as in merge_state.  Returns (v [T, H, D], s [T, H]).
    """
    top = s.amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
    weight = torch.exp2(s - top)
    total = weight.sum(1)
    merged = (weight.unsqueeze(-1) * v.float()).sum(1) / total.clamp(min=1.0).unsqueeze(-1)
    return merged.to(v.dtype), total.log2() + top.squeeze(1)


def merge_attn_states(
    prefix_output: torch.Tensor,
    prefix_lse: torch.Tensor,
    suffix_output: torch.Tensor,
    suffix_lse: torch.Tensor,
) -> torch.Tensor:
    """Join attention over two sets of keys: results [T, H, D], natural log-sum-exps [H, T].

    vLLM's convention: an infinite log-sum-exp of either sign marks an empty set.
    """
    prefix_lse = prefix_lse.masked_fill(prefix_lse.isinf(), -torch.inf)
    suffix_lse = suffix_lse.masked_fill(suffix_lse.isinf(), -torch.inf)
    # The difference of the two decides: one weight is the sigmoid of it, the other the rest.  Two
    # empty sets, whose difference is no number, give the prefix.
    difference = (prefix_lse - suffix_lse).nan_to_num(nan=torch.inf)
    weight = torch.sigmoid(difference).mT.unsqueeze(-1)
    output = weight * prefix_output.float() + (1.0 - weight) * suffix_output.float()
    return output.to(prefix_output.dtype)


def merge_natural(
    v_a: torch.Tensor, s_a: torch.Tensor, v_b: torch.Tensor, s_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Join attention over two sets of keys: results v [T, H, D], natural log-sum-exps s [T, H].

    Returns (v, s) over both sets.
    """
    s = torch.logaddexp(s_a, s_b)
    weight_a, weight_b = torch.exp(s_a - s).unsqueeze(-1), torch.exp(s_b - s).unsqueeze(-1)
    return (weight_a * v_a.float() + weight_b * v_b.float()).to(v_a.dtype), s


def combine(
    out_partial: torch.Tensor, lse_partial: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Join attention over N sets of keys: results [N, ..., D], natural log-sum-exps [N, ...].

    Returns (result, log-sum-exp) over all sets: flash-attention's convention.
    """
    weight = torch.softmax(lse_partial, dim=0).unsqueeze(-1)
    return (weight * out_partial.float()).sum(0).to(out_partial.dtype), lse_partial.logsumexp(0)


def attention_in_layout(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: str = "HND",
    causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention over heads-first tensors, exact where SageAttention's int8 kernels are not.

    Tensors are [B, H, S, D], or [B, S, H, D] where the layout is NHD.  A causal mask asks for as
    many queries as keys.
    """
    if layout == "NHD":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    out = attention_bhsd(q, k, v, None, causal, scale)
    return out.transpose(1, 2) if layout == "NHD" else out


def mla_decode(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    cache: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """One query per sequence over latent keys, which are the values as well (DeepSeek's MLA).

    ``q_nope`` is [B, H, R], ``q_pe`` [B, H, P]; a row of ``cache`` [pages, page, R + P] is the
    latent, then the rotated key; the first seq_lens[b] positions count.  Returns [B, H, R].
    """
    keys = cache[page_table].flatten(1, 2).unsqueeze(1)
    mask = torch.arange(keys.shape[2], device=keys.device) < seq_lens[:, None, None, None]
    q = torch.cat((q_nope, q_pe), dim=-1).unsqueeze(2)
    values = keys[..., : q_nope.shape[-1]]
    return attention_bhsd(q, keys, values, mask, False, scale).squeeze(2)


def sparse_latent_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    scale: float,
    value_dim: int = 512,
    sinks: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
) -> tuple[torch.Tensor, None, None]:
    """Attention of each query over the keys that were chosen for it (DeepSeek-V3.2).

    ``q`` is [Sq, H, D], ``kv`` [Sk, 1, D], whose first ``value_dim`` features are the values too;
    ``indices`` [Sq, 1, K] names rows of it: of those, the first lengths[i] count, and none that is
    negative or past the end.  ``sinks`` [H] are scores for attending to nothing.  In float32,
    rounded once; the two statistics that the kernel returns as well are None.
    """
    rows = indices.squeeze(1).long()
    hidden = (rows < 0) | (rows >= kv.shape[0])
    if lengths is not None:
        places = torch.arange(rows.shape[1], device=q.device)
        hidden = hidden | (places >= lengths.unsqueeze(-1))
    keys = kv.squeeze(1)[rows.masked_fill(hidden, 0)].float()
    scores = torch.einsum("qhd,qkd->qhk", q.float(), keys) * scale
    scores = scores.masked_fill(hidden.unsqueeze(1), torch.finfo(scores.dtype).min)
    if sinks is not None:
        sink = sinks.float().unsqueeze(-1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sink), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : rows.shape[1]]
    weights = weights.masked_fill(hidden.unsqueeze(1), 0.0)
    out = torch.einsum("qhk,qkd->qhd", weights, keys[..., :value_dim])
    return out.to(q.dtype), None, None


def attention_with_sinks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor,
    scale: float,
    bandwidth: int | None,
    start_q: torch.Tensor,
) -> torch.Tensor:
    """Causal attention in which each head may also attend to nothing (gpt-oss).

    ``q`` is [B, Sq, Hkv, groups, D] and begins at position ``start_q``, ``k`` and ``v`` are
    [B, Sk, Hkv, D]; exp(sinks), [heads], joins the sum of the softmax.  ``bandwidth`` is how many
    keys a query sees, None or 0 for all before it.  In float32, rounded once; returns [B, Sq, H D].
    """
    columns = torch.arange(k.shape[1], device=q.device)
    rows = torch.arange(q.shape[1], device=q.device)[:, None] + start_q
    hidden = columns > rows
    if bandwidth:
        hidden = hidden | (columns < rows - bandwidth + 1)
    q, k, v = q.flatten(2, 3).transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    out = attention_with_sink_bhsd(q, k, v, sinks, ~hidden, False, scale)
    return out.transpose(1, 2).flatten(2)


def biased_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, None]:
    """Attention over heads-first tensors [B, H, S, D] by scores with a bias that may be trained.

    Returns (result, None).  Causal: query i sees key j if j <= i.
    """
    if causal:
        hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        past = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device)
        past = past.masked_fill(hidden, float("-inf"))
        bias = past if bias is None else bias + past
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale), None


def biased_attention_results(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, None, None, None, None, None, None, None, None]:
    """As biased_attention; returns (result, None, ...): PyTorch's op for cuDNN."""
    out, _ = biased_attention(q, k, v, bias, causal, scale)
    return out, None, None, None, None, None, None, None, None


def quantized_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention over fp8 codes q [B, H, S, D] and k, v [B, H_kv, S, D], rounded to bfloat16.

    Codes count times their descales [B, H_kv] where they have such; the queries of a group share
    one.  Causal: query i sees key j if j <= i.
    """
    groups = q.shape[1] // k.shape[1]
    out_dtype = q.dtype if q.dtype.itemsize > 1 else torch.bfloat16
    q = q.float().unflatten(1, (-1, groups))
    k, v = k.float().unsqueeze(2), v.float().unsqueeze(2)
    q = q if q_descale is None else q * q_descale[:, :, None, None, None]
    k = k if k_descale is None else k * k_descale[:, :, None, None, None]
    v = v if v_descale is None else v * v_descale[:, :, None, None, None]
    k, v = k.expand(-1, -1, groups, -1, -1), v.expand(-1, -1, groups, -1, -1)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    return out.flatten(1, 2).to(out_dtype)


def quantized_attention_results(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, None, None, None, None, None, None, None, None]:
    """As quantized_attention; returns (result, None, ...): PyTorch's op for FlashAttention 3."""
    out = quantized_attention(q, k, v, q_descale, k_descale, v_descale, causal, scale)
    return out, None, None, None, None, None, None, None, None


def quantized_flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, None, None, None, None]:
    """As quantized_attention over tensors [B, S, H, D]; returns (result, None, ...)."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    out = quantized_attention(q, k, v, q_descale, k_descale, v_descale, causal, scale)
    return out.transpose(1, 2), None, None, None, None
