"""Rotary position embeddings (Su et al., "RoFormer", 2021).

A pair of features (a, b) at position p turns by the angle p * frequency:
``a * cos - b * sin, b * cos + a * sin``.  The layouts differ in which features pair up: *neox*
takes feature i of the first half with feature i of the second, *interleaved* (GPT-J) neighbours.
Where the table covers R < D features, the other D - R pass through.  Positions and tables carry no
gradient.
"""

from __future__ import annotations

import torch


def rotate_pairs(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_neox: bool
) -> torch.Tensor:
    """Rotate the feature pairs of x [..., D] by cos and sin [..., R/2], in their dtype.

    The result has the dtype of x.  With float32 tables the arithmetic is float32, rounded once.
    """
    rotary_dim = 2 * cos.shape[-1]
    rotated, passed = x[..., :rotary_dim], x[..., rotary_dim:]
    if is_neox:
        a, b = rotated.chunk(2, dim=-1)
        rotated = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    else:
        a, b = rotated[..., ::2], rotated[..., 1::2]
        rotated = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    return torch.cat((rotated.to(x.dtype), passed), dim=-1)


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rotate query and key by the angles of their positions, in float32, rounded once.

    ``positions`` is [T] or [B, S]; ``query`` and ``key`` are [T, heads * head_size] or
    [T, heads, head_size], or the same with [B, S]; a row of ``cos_sin_cache`` [positions, R] is R/2
    cosines, then R/2 sines.  Returns (query, key) in the shapes they came in.
    """
    cos, sin = cos_sin_cache[positions].unsqueeze(-2).float().chunk(2, dim=-1)
    heads = (*positions.shape, -1, head_size)
    rotated = rotate_pairs(query.reshape(heads), cos, sin, is_neox).reshape(query.shape)
    if key is not None:
        key = rotate_pairs(key.reshape(heads), cos, sin, is_neox).reshape(key.shape)
    return rotated, key


def rotary_embedding_rounded(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate query and key by the angles of their positions, in their own dtype.

    As :func:`rotary_embedding`, but each product and each sum is rounded: vLLM up to 0.8.
    """
    cos, sin = cos_sin_cache[positions].unsqueeze(-2).to(query.dtype).chunk(2, dim=-1)
    heads = (*positions.shape, -1, head_size)
    rotated = rotate_pairs(query.reshape(heads), cos, sin, is_neox).reshape(query.shape)
    return rotated, rotate_pairs(key.reshape(heads), cos, sin, is_neox).reshape(key.shape)


def rope_at(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    rotary_dim: int | None = None,
    interleave: bool = False,
    rope_scale: float = 1.0,
    rope_theta: float = 1e4,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k [T, heads, D] by the angles of their positions [T], in float32, rounded once.

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
    """As rope_at, with Llama 3.1's frequencies: slow ones divided by rope_scale, fast ones kept.

    Between old_context_len / low_freq_factor and old_context_len / high_freq_factor of wavelength
    the two are blended linearly.
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
    """Positions of packed rows: sequence i owns rows indptr[i]:indptr[i + 1] from offsets[i] on."""
    rows = torch.arange(int(indptr[-1]), device=indptr.device)
    return rows + (offsets - indptr[:-1]).repeat_interleave(indptr.diff())
