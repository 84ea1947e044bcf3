"""Rotary position embeddings (Su et al., "RoFormer", 2021).

A pair of features (a, b) at position p turns by the angle p * frequency:
``a * cos - b * sin, b * cos + a * sin``.  The layouts differ in which features pair up: *neox*
takes feature i of the first half with feature i of the second, *interleaved* (GPT-J) neighbours.
Where the table covers R < D features, the other D - R pass through.  Positions and tables carry no
gradient.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rotate_pairs(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_neox: bool, offset: int = 0
) -> torch.Tensor:
    """Rotate the feature pairs of x [..., D] by cos and sin [..., R/2].

    In the dtype of the tables, so with float32 tables rounded once; the result has that of x.  The
    features that turn are the first ones, or begin at ``offset``.
    """
    rotary_dim = 2 * cos.shape[-1]
    rotated = x[..., :rotary_dim] if offset == 0 else x[..., offset : offset + rotary_dim]
    if is_neox:
        a, b = rotated.chunk(2, dim=-1)
        rotated = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    else:
        a, b = rotated.reshape(*rotated.shape[:-1], -1, 2).unbind(-1)
        rotated = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    rotated = rotated.to(x.dtype)
    if rotary_dim == x.shape[-1]:
        return rotated
    if offset == 0:
        return torch.cat((rotated, x[..., rotary_dim:]), dim=-1)
    return torch.cat((x[..., :offset], rotated, x[..., offset + rotary_dim :]), dim=-1)


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
    offset: int = 0,
    inverse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rotate query and key by their positions, in float32, rounded once.

    ``positions`` is [T] or [B, S]; ``query`` and ``key`` are [T, heads * head_size] or
    [T, heads, head_size], or the same with [B, S]; a row of ``cos_sin_cache`` [positions, R] is R/2
    cosines, then R/2 sines.  The first ``offset`` features of a head pass through; ``inverse``
    rotates back.  Returns (query, key) in the shapes they came in.
    """
    cos, sin = cos_sin_cache[positions].unsqueeze(-2).float().chunk(2, dim=-1)
    if inverse:
        sin = -sin
    heads = (*positions.shape, -1, head_size)
    rotated = rotate_pairs(query.float().reshape(heads), cos, sin, is_neox, offset)
    if key is not None:
        turned = rotate_pairs(key.float().reshape(heads), cos, sin, is_neox, offset)
        key = turned.to(key.dtype).reshape(key.shape)
    return rotated.to(query.dtype).reshape(query.shape), key


def rotary_embedding_backward(
    grad_query: torch.Tensor,
    grad_key: torch.Tensor | None,
    positions: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
    offset: int = 0,
    inverse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The gradients of rotary embeddings for query and key: rotated back, in float32."""
    cos, sin = cos_sin_cache[positions].unsqueeze(-2).float().chunk(2, dim=-1)
    heads = (*positions.shape, -1, head_size)
    back = rotate_pairs(
        grad_query.float().reshape(heads), cos, sin if inverse else -sin, is_neox, offset
    )
    if grad_key is not None:
        turned = rotate_pairs(
            grad_key.float().reshape(heads), cos, sin if inverse else -sin, is_neox, offset
        )
        grad_key = turned.to(grad_key.dtype).reshape(grad_key.shape)
    return back.to(grad_query.dtype).reshape(grad_query.shape), grad_key


def rotary_embedding_rounded(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rotate query and key by the angles of their positions, in their own dtype.

    As :func:`rotary_embedding`, but each product and each sum is rounded: vLLM up to 0.19.
    """
    cos, sin = cos_sin_cache[positions].unsqueeze(-2).to(query.dtype).chunk(2, dim=-1)
    heads = (*positions.shape, -1, head_size)
    rotated = rotate_pairs(query.reshape(heads), cos, sin, is_neox).reshape(query.shape)
    if key is not None:
        key = rotate_pairs(key.reshape(heads), cos, sin, is_neox).reshape(key.shape)
    return rotated, key


def rope_at(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 1.0,
    rope_theta: float = 1e4,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k [T, heads, D] by their positions [T], in float32, rounded once.

    The angle of pair i is position / rope_scale * rope_theta ** (-2 i / R).
    """
    rotary_dim = rotary_dim or q.shape[-1]
    exponent = torch.arange(0, rotary_dim, 2, device=q.device).float() / rotary_dim
    angles = (positions.float() / rope_scale)[:, None, None] * rope_theta**-exponent
    cos, sin = angles.cos(), angles.sin()
    return rotate_pairs(q, cos, sin, not interleave), rotate_pairs(k, cos, sin, not interleave)


def llama31_rope_at(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 8.0,
    rope_theta: float = 5e5,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
    old_context_len: float = 8192.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k [T, heads, D] by their positions [T], with Llama 3.1's frequencies.

    Slow ones are divided by rope_scale, fast ones kept.  Between old_context_len / low_freq_factor
    and old_context_len / high_freq_factor of wavelength the two are blended linearly.
    """
    rotary_dim = rotary_dim or q.shape[-1]
    exponent = torch.arange(0, rotary_dim, 2, device=q.device).float() / rotary_dim
    frequency = rope_theta**-exponent
    turns = old_context_len * frequency / (2 * torch.pi)  # within the old context
    keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0)
    frequency = frequency * (keep + (1.0 - keep) / rope_scale)
    angles = positions.float()[:, None, None] * frequency
    cos, sin = angles.cos(), angles.sin()
    return rotate_pairs(q, cos, sin, not interleave), rotate_pairs(k, cos, sin, not interleave)


def ragged_positions(indptr: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Positions of packed rows: sequence i owns indptr[i]:indptr[i + 1], from offsets[i] on."""
    rows = torch.arange(int(indptr[-1]), device=indptr.device)
    return rows + (offsets - indptr[:-1]).repeat_interleave(indptr.diff())


def rope_ragged(
    q: torch.Tensor,
    k: torch.Tensor,
    indptr: torch.Tensor,
    offsets: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 1.0,
    rope_theta: float = 1e4,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As rope_at, for packed sequences that start at the positions ``offsets``."""
    positions = ragged_positions(indptr, offsets)
    return rope_at(q, k, positions, rotary_dim, interleave, rope_scale, rope_theta)


def llama31_rope_ragged(
    q: torch.Tensor,
    k: torch.Tensor,
    indptr: torch.Tensor,
    offsets: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 8.0,
    rope_theta: float = 5e5,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
    old_context_len: float = 8192.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As llama31_rope_at, for packed sequences that start at the positions ``offsets``."""
    positions = ragged_positions(indptr, offsets)
    return llama31_rope_at(
        q,
        k,
        positions,
        rotary_dim,
        interleave,
        rope_scale,
        rope_theta,
        low_freq_factor,
        high_freq_factor,
        old_context_len,
    )


def rotate_query_key(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_neox: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k [T, heads, D] by the rows of cos and sin [T, R/2], in their dtype."""
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return rotate_pairs(q, cos, sin, is_neox), rotate_pairs(k, cos, sin, is_neox)


def rotate_query_key_backward(
    grad_q: torch.Tensor, grad_k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_neox: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of rotate_query_key for q and k: rotated back."""
    cos, sin = cos.unsqueeze(-2), -sin.unsqueeze(-2)
    return rotate_pairs(grad_q, cos, sin, is_neox), rotate_pairs(grad_k, cos, sin, is_neox)


def rotate_query_key_or_pairs(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    complex_mode: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k [T, heads, D] by tables, in their dtype.

    The tables are [T, R], their halves alike, and half i of the features pairs with half i + R/2;
    with complex_mode they are [T, R/2] and neighbours pair.
    """
    if not complex_mode:
        cos, sin = cos.chunk(2, dim=-1)[0], sin.chunk(2, dim=-1)[0]
    return rotate_query_key(q, k, cos.to(q.dtype), sin.to(q.dtype), not complex_mode)


def rotate_query_key_fp32(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k by Hugging Face's tables, in float32, rounded once.

    ``cos`` and ``sin`` are [B, S, D], their halves alike; ``unsqueeze_dim`` is where q and k have
    their heads.  Half i of the features pairs with half i + D/2.
    """
    cos = cos.chunk(2, dim=-1)[0].float().unsqueeze(unsqueeze_dim)
    sin = sin.chunk(2, dim=-1)[0].float().unsqueeze(unsqueeze_dim)
    return rotate_pairs(q, cos, sin, True), rotate_pairs(k, cos, sin, True)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """The second half of the features, negated, then the first."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply_rotary_pos_emb(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k by tables over all features, which broadcast against them, in their dtype."""
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def rotate_by_tables(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k by tables that broadcast against them, in their dtype.

    The tables have a column for each pair of features, or for each feature.  Feature i pairs with
    feature i + D/2.
    """
    if cos.shape[-1] != q.shape[-1]:
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def apply_rotary_pos_emb_backward(
    grad_q: torch.Tensor, grad_k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of apply_rotary_pos_emb for q and k: rotated back."""
    return grad_q * cos - rotate_half(grad_q * sin), grad_k * cos - rotate_half(grad_k * sin)


def rotate_two_halves(
    x1: torch.Tensor, x2: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, conj: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate the pairs (x1, x2) by cos and sin, in float32, rounded once; back again if conj.

    flash-attention's ``rotary_emb`` extension: x1 and x2 are the halves of the rotated features.
    """
    a, b, cos = x1.float(), x2.float(), cos.float()
    sin = -sin.float() if conj else sin.float()
    return (a * cos - b * sin).to(x1.dtype), (a * sin + b * cos).to(x2.dtype)


def apply_rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    seqlen_offsets: int | torch.Tensor = 0,
    interleaved: bool = False,
    conjugate: bool = False,
) -> torch.Tensor:
    """Rotate x [B, S, heads, D] by tables [positions, R/2], in float32, rounded once.

    Row s of sequence b is at position s + seqlen_offsets, which is one number or one per sequence.
    flash-attention's Triton kernel.
    """
    length = x.shape[1]
    if isinstance(seqlen_offsets, torch.Tensor):
        positions = torch.arange(length, device=x.device) + seqlen_offsets.reshape(-1, 1)
        cos, sin = cos[positions], sin[positions]
    elif seqlen_offsets == 0:
        cos, sin = cos[:length], sin[:length]
    else:
        end = seqlen_offsets + length
        cos, sin = cos[seqlen_offsets:end], sin[seqlen_offsets:end]
    cos, sin = cos.unsqueeze(-2).float(), sin.unsqueeze(-2).float()
    return rotate_pairs(x, cos, -sin if conjugate else sin, not interleaved)


def rotate_fp16(
    x: torch.Tensor,
    sin: torch.Tensor,
    cos: torch.Tensor,
    past_len: int,
    num_heads: int,
    head_dim: int,
    offsets: torch.Tensor | None,
    is_neox: bool,
) -> torch.Tensor:
    """Rotate x [B, S, heads * head_dim] by the angles of its positions: exllamav2's ``rope_``.

    Row s of sequence b is at position past_len + offsets[b] + s, or max(offsets[b], 0) + s where
    past_len is -1; ``offsets`` on the meta device stand for none.  The tables [1, 1, positions, R]
    hold each pair twice, as the features are: halves, or neighbours.  One of the two products of a
    feature is rounded to the dtype of x, their sum is rounded once.
    """
    steps = x.view(len(x), -1, num_heads, head_dim)
    rows = torch.arange(steps.shape[1], device=x.device).unsqueeze(0)
    if past_len == -1 and offsets is not None:
        rows = rows + offsets.view(-1, 1).clamp(min=0)
    else:
        rows = rows + past_len
        if offsets is not None and not offsets.is_meta:
            rows = rows + offsets.view(-1, 1)
    rows = rows.clamp(min=0)
    cos = cos.view(-1, cos.shape[-1])[rows].unsqueeze(2).float()
    sin = sin.view(-1, sin.shape[-1])[rows].unsqueeze(2).float()
    turned = steps[..., : cos.shape[-1]].float()
    if is_neox:
        pairs = cos.shape[-1] // 2
        cos = torch.cat((cos[..., :pairs], cos[..., :pairs]), dim=-1)
        crossed = rotate_half(turned) * torch.cat((sin[..., :pairs], sin[..., :pairs]), dim=-1)
        turned = turned * cos + crossed.to(x.dtype).float()
    else:
        a, b = turned.unflatten(-1, (-1, 2)).unbind(-1)
        crossed = torch.stack((-b, a), dim=-1).flatten(-2) * sin
        turned = (turned * cos).to(x.dtype).float() + crossed
    rest = steps[..., cos.shape[-1] :]
    return torch.cat((turned.to(x.dtype), rest), dim=-1).view_as(x)


def rotate_interleaved_to_halves(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """Rotate neighbours in x [B, heads, S, D]; the result holds the pairs as halves.

    The tables are [B, 1 or heads, 1 or S, D], their halves alike.  In float32, rounded once.
    ``torch_npu.npu_interleave_rope``.
    """
    halves = x.float().reshape(*x.shape[:-1], -1, 2).transpose(-1, -2).flatten(-2)
    return (halves * cos.float() + rotate_half(halves) * sin.float()).to(x.dtype)


def fused_qk_norm_rope(
    qkv: torch.Tensor,
    num_heads_q: int,
    num_heads_k: int,
    num_heads_v: int,
    head_dim: int,
    eps: float,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
    position_ids: torch.Tensor,
) -> torch.Tensor:
    """RMSNorm the query and key heads of qkv [T, heads * head_dim], then rotate them.

    In float32 throughout, rounded once; the values pass through.  See :func:`rotary_embedding` for
    the table.
    """
    heads = qkv.view(len(qkv), -1, head_dim)
    q, k, v = torch.split(heads, [num_heads_q, num_heads_k, num_heads_v], dim=1)
    cos, sin = cos_sin_cache[position_ids.flatten()].unsqueeze(1).float().chunk(2, dim=-1)
    q = F.rms_norm(q.float(), (head_dim,), q_weight.float(), eps)
    k = F.rms_norm(k.float(), (head_dim,), k_weight.float(), eps)
    q, k = rotate_pairs(q, cos, sin, is_neox), rotate_pairs(k, cos, sin, is_neox)
    return torch.cat((q.to(qkv.dtype), k.to(qkv.dtype), v), dim=1).flatten(1)


def gated_qk_norm_rope(
    q_gate: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    eps: float,
    head_dim: int,
    offset: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """RMSNorm the heads of q and k, round, and rotate them (neox); returns (q, k, gate).

    A token of ``q_gate`` is a query and a gate for each head, one of ``k`` its keys; the scale of
    the norm is the weight plus ``offset``.  q and k come out as [T, heads * D], the gates of
    attention (Qwen3-Next) as they are, [T, heads, D].
    """
    q, gate = q_gate.unflatten(-1, (-1, 2, head_dim)).unbind(-2)
    keys = k.unflatten(-1, (-1, head_dim))
    cos, sin = cos_sin_cache[positions].unsqueeze(-2).float().chunk(2, dim=-1)
    q_scale, k_scale = q_weight.float() + offset, k_weight.float() + offset
    q = F.rms_norm(q.float(), (head_dim,), q_scale, eps).to(q_gate.dtype)
    keys = F.rms_norm(keys.float(), (head_dim,), k_scale, eps).to(k.dtype)
    q, keys = rotate_pairs(q, cos, sin, True), rotate_pairs(keys, cos, sin, True)
    return q.flatten(-2), keys.flatten(-2), gate


def gated_qk_norm_rope_rows(
    q_gate: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    eps: float,
    head_dim: int,
    offset: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As gated_qk_norm_rope, with gates [T, heads * D]."""
    q, k, gate = gated_qk_norm_rope(
        q_gate, k, q_weight, k_weight, cos_sin_cache, positions, eps, head_dim, offset
    )
    return q, k, gate.flatten(-2)


def yarn_qk_norm_rope(
    qkv: torch.Tensor,
    num_heads_q: int,
    num_heads_k: int,
    num_heads_v: int,
    head_dim: int,
    eps: float,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    base: float,
    is_neox: bool,
    position_ids: torch.Tensor,
    factor: float,
    low: float,
    high: float,
    attention_factor: float,
    rotary_dim: int | None = None,
) -> torch.Tensor:
    """RMSNorm the query and key heads of qkv [T, heads * head_dim], then rotate them (YaRN).

    In float32 throughout, rounded once; the values pass through.  The frequency of pair i is
    base ** (-2 i / R); unless ``factor`` is 1, it goes over into that over ``factor`` between the
    pairs ``low`` and ``high``.  What is rotated is scaled by ``attention_factor``.
    Peng et al., "YaRN", 2023.
    """
    pairs = torch.arange((rotary_dim or head_dim) // 2, device=qkv.device).float()
    frequency = base ** (-pairs / len(pairs))
    if factor != 1.0:
        width = high + 0.001 - low if -1e-6 <= high - low <= 1e-6 else high - low
        ramp = ((pairs - low) / width).clamp(0.0, 1.0)
        frequency = frequency * (1.0 - ramp) + frequency / factor * ramp
    angles = position_ids.float()[:, None, None] * frequency
    cos, sin = angles.cos() * attention_factor, angles.sin() * attention_factor
    heads = qkv.view(len(qkv), -1, head_dim)
    q, k, v = torch.split(heads, [num_heads_q, num_heads_k, num_heads_v], dim=1)
    q = F.rms_norm(q.float(), (head_dim,), q_weight.float(), eps)
    k = F.rms_norm(k.float(), (head_dim,), k_weight.float(), eps)
    q, k = rotate_pairs(q, cos, sin, is_neox), rotate_pairs(k, cos, sin, is_neox)
    return torch.cat((q.to(qkv.dtype), k.to(qkv.dtype), v), dim=1).flatten(1)


def norm_and_rotate_tail(
    q: torch.Tensor, freqs_cis: torch.Tensor, positions: torch.Tensor, eps: float
) -> torch.Tensor:
    """RMSNorm q [B, heads, D] without a weight, rounded, then rotate its last R features.

    A row of ``freqs_cis`` [positions, R] holds the cosine and sine of one pair after the other; the
    pairs are neighbours, turned in float32 and rounded once.  DeepSeek-V4's query.
    """
    normed = F.rms_norm(q, q.shape[-1:], None, eps)
    cos, sin = freqs_cis[positions].unsqueeze(1).unflatten(-1, (-1, 2)).unbind(-1)
    kept = q.shape[-1] - freqs_cis.shape[-1]
    turned = rotate_pairs(normed[..., kept:], cos, sin, False)
    return torch.cat((normed[..., :kept], turned), dim=-1)
