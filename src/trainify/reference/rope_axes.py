"""Rotary position embeddings of tokens that have three positions: in time, and in an image.

Each pair of features turns by one of the three; a *section* says how many pairs are the first's,
the second's and the third's: one after the other, or, *interleaved*, every third pair, while the
section lasts (Qwen2-VL, Qwen3-VL).  See :mod:`.rope` for what a rotation is.
"""

from __future__ import annotations

import torch


def axes_of_pairs(pairs: torch.Tensor, section: tuple[int, ...], interleaved: bool) -> torch.Tensor:
    """By which of the three positions each pair turns; pairs [P] are 0, 1, 2, ..."""
    if not interleaved:
        return (pairs >= section[0]).long() + (pairs >= section[0] + section[1]).long()
    second = (pairs % 3 == 1) & (pairs < 3 * section[1])
    third = (pairs % 3 == 2) & (pairs < 3 * section[2])
    return second.long() + 2 * third.long()


def rotate_heads(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, head_size: int, is_neox: bool
) -> torch.Tensor:
    """Rotate the heads of x by tables [T, 1, R/2], in the dtype of these.

    ``x`` is [T, heads * head_size]; further features pass through.  The result has the dtype of x.
    """
    heads = x.reshape(len(x), -1, head_size)
    turned = heads[..., : 2 * cos.shape[-1]].to(cos.dtype)
    if is_neox:
        a, b = turned.chunk(2, dim=-1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    else:
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    rest = heads[..., 2 * cos.shape[-1] :]
    return torch.cat((turned.to(x.dtype), rest), dim=-1).reshape(x.shape)


def multimodal_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    section: tuple[int, ...],
    head_size: int,
    interleaved: bool = False,
    is_neox: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k by tables [3, T, R/2], which have a row for each of three positions.

    ``q`` and ``k`` are [T, heads * head_size]; see rotate_heads.
    """
    pairs = torch.arange(cos.shape[-1], device=cos.device)
    axes = axes_of_pairs(pairs, section, interleaved)
    cos, sin = cos[axes, :, pairs].t().unsqueeze(1), sin[axes, :, pairs].t().unsqueeze(1)
    q = rotate_heads(q, cos, sin, head_size, is_neox)
    return q, rotate_heads(k, cos, sin, head_size, is_neox)


def multimodal_rotary_embedding(
    positions: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    section: tuple[int, ...],
    interleaved: bool,
    is_neox: bool,
    mapped: bool = False,
    axis_map: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k by the three positions [3, T] of each token.

    ``q`` and ``k`` are [T, heads * head_size], see rotate_heads; a row of ``cos_sin_cache``
    [positions, R] is R/2 cosines, then R/2 sines.  If they are interleaved and ``mapped``,
    ``axis_map`` says for each pair by which position it turns (GLM).
    """
    cos, sin = cos_sin_cache[positions].chunk(2, dim=-1)
    pairs = torch.arange(cos.shape[-1], device=cos.device)
    axes = axes_of_pairs(pairs, section, interleaved)
    if mapped and interleaved and axis_map is not None:
        axes = axis_map[: len(pairs)].long()
    cos, sin = cos[axes, :, pairs].t().unsqueeze(1), sin[axes, :, pairs].t().unsqueeze(1)
    q = rotate_heads(q, cos, sin, head_size, is_neox)
    return q, rotate_heads(k, cos, sin, head_size, is_neox)
