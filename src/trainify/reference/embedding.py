"""Embeddings of which each device holds a part."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def embedding_shard(ids: torch.Tensor, weight: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """Rows of weight for the ids from start up to end; zeros for the others."""
    mine = (ids >= start) & (ids < end)
    out = F.embedding((ids - start).masked_fill(~mine, 0), weight)
    return out.masked_fill(~mine.unsqueeze(-1), 0.0)


def vocab_parallel_embedding(
    ids: torch.Tensor,
    weight: torch.Tensor,
    org_start: int,
    org_end: int,
    org_padding: int,
    added_start: int,
    added_end: int,
) -> torch.Tensor:
    """Rows of weight for the ids of two ranges, the vocabulary's and that of added tokens.

    The shard holds the rows of the first range, padding, then those of the second.  Other ids
    give zeros.
    """
    original = (ids >= org_start) & (ids < org_end)
    added = (ids >= added_start) & (ids < added_end)
    moved = ids - added_start + (org_end - org_start) + org_padding
    rows = torch.where(original, ids - org_start, torch.where(added, moved, 0))
    return F.embedding(rows, weight).masked_fill(~(original | added).unsqueeze(-1), 0.0)


def timestep_embedding(
    t: torch.Tensor,
    dim: int,
    flip_sin_to_cos: bool,
    downscale_freq_shift: float,
    scale: float,
    max_period: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Sinusoids of the times t [N], [N, dim], in float32, rounded to a dtype.

    Frequency i of dim / 2 is max_period ** (-i / (dim / 2 - downscale_freq_shift)).  Sines come
    first, or cosines where flipped; an odd ``dim`` ends in zeros.  Diffusers' embedding.
    """
    count = dim // 2
    exponent = torch.arange(count, device=t.device).float() / (count - downscale_freq_shift)
    angles = scale * t.float().unsqueeze(-1) * max_period**-exponent
    parts = (angles.cos(), angles.sin()) if flip_sin_to_cos else (angles.sin(), angles.cos())
    return F.pad(torch.cat(parts, dim=-1), (0, dim % 2)).to(dtype)
