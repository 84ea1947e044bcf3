"""Rotary position embeddings in aiter's styles; see :mod:`.rope` for what a rotation is.

``style`` 0 pairs the halves of the features, 1 neighbours; tables and angles hold a column for each
pair or for each feature.
"""

from __future__ import annotations

import torch


def rotate_by_style(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    style: int,
    reuse_front: bool,
    nope_first: bool,
) -> torch.Tensor:
    """Rotate x [S, B, heads, D] by tables over its features, in float32, rounded once.

    ``style`` 0 pairs the halves, 1 neighbours.  With ``reuse_front`` the tables hold a column for
    each pair, else for each feature.  With ``nope_first`` the features that pass through come
    first.  aiter's convention.
    """
    cos, sin = cos.float(), sin.float()
    if reuse_front and style == 0:
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
    elif reuse_front:
        cos, sin = cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)
    kept = x.shape[-1] - cos.shape[-1]
    if nope_first:
        rest, turned = x[..., :kept], x[..., kept:].float()
    else:
        turned, rest = x[..., : cos.shape[-1]].float(), x[..., cos.shape[-1] :]
    if style == 0:
        a, b = turned.chunk(2, dim=-1)
        crossed = torch.cat((-b, a), dim=-1)
    else:
        a, b = turned.unflatten(-1, (-1, 2)).unbind(-1)
        crossed = torch.stack((-b, a), dim=-1).flatten(-2)
    turned = (turned * cos + crossed * sin).to(x.dtype)
    return torch.cat((rest, turned) if nope_first else (turned, rest), dim=-1)


def rotate_by_angles(
    x: torch.Tensor, freqs: torch.Tensor, style: int, reuse_front: bool, nope_first: bool
) -> torch.Tensor:
    """Rotate x [S, B, heads, D] by the angles freqs [S, 1, 1, R]; see rotate_by_style."""
    cos, sin = freqs.float().cos(), freqs.float().sin()
    return rotate_by_style(x, cos, sin, style, reuse_front, nope_first)


def rotate_packed(
    x: torch.Tensor,
    cu_seqlens: torch.Tensor,
    freqs: torch.Tensor,
    style: int,
    reuse_front: bool,
    nope_first: bool,
) -> torch.Tensor:
    """Rotate packed sequences x [T, heads, D] by the angles freqs [S, 1, 1, R], each from row 0.

    Sequence i owns the rows cu_seqlens[i]:cu_seqlens[i + 1]; see rotate_by_style.
    """
    first = cu_seqlens[:-1].repeat_interleave(cu_seqlens.diff())
    angles = freqs[torch.arange(len(first), device=x.device) - first]
    return rotate_by_angles(x.unsqueeze(1), angles, style, reuse_front, nope_first).squeeze(1)


def rotate_image(
    x: torch.Tensor,
    cos_h: torch.Tensor,
    sin_h: torch.Tensor,
    cos_w: torch.Tensor,
    sin_w: torch.Tensor,
    height: int,
    width: int,
    style: int,
    reuse_front: bool,
) -> torch.Tensor:
    """Rotate the patches x [B, height * width, heads, D] of an image.

    The first half of the features turns with the row of a patch, by the tables [1, H, 1, D / 2],
    the second with its column; see rotate_by_style.
    """
    image = x.unflatten(1, (height, width))
    rows, columns = image.chunk(2, dim=-1)
    cos_h, sin_h = cos_h[:, :height].unsqueeze(2), sin_h[:, :height].unsqueeze(2)
    cos_w, sin_w = cos_w[:, :width].unsqueeze(1), sin_w[:, :width].unsqueeze(1)
    rows = rotate_by_style(rows, cos_h, sin_h, style, reuse_front, False)
    columns = rotate_by_style(columns, cos_w, sin_w, style, reuse_front, False)
    return torch.cat((rows, columns), dim=-1).flatten(1, 2)


def rotate_both_by_angles(
    x: torch.Tensor,
    y: torch.Tensor,
    freqs: torch.Tensor,
    style: int,
    reuse_front: bool,
    nope_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate x and y [S, B, heads, D] by the angles freqs [S, 1, 1, R]; see rotate_by_style."""
    cos, sin = freqs.float().cos(), freqs.float().sin()
    x = rotate_by_style(x, cos, sin, style, reuse_front, nope_first)
    return x, rotate_by_style(y, cos, sin, style, reuse_front, nope_first)


def rotate_both_by_style(
    x: torch.Tensor,
    y: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    style: int,
    reuse_front: bool,
    nope_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate x and y [S, B, heads, D] by tables [S, 1, 1, R]; see rotate_by_style."""
    x = rotate_by_style(x, cos, sin, style, reuse_front, nope_first)
    return x, rotate_by_style(y, cos, sin, style, reuse_front, nope_first)


def rotate_at_positions(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    style: int,
    reuse_front: bool,
    nope_first: bool,
) -> torch.Tensor:
    """Rotate x [S, B, heads, D] by rows of tables [P, 1, 1, R] at positions [S, B].

    See rotate_by_style.
    """
    cos, sin = cos.flatten(0, 2)[positions].unsqueeze(2), sin.flatten(0, 2)[positions].unsqueeze(2)
    return rotate_by_style(x, cos, sin, style, reuse_front, nope_first)


def rotate_both_at_positions(
    x: torch.Tensor,
    y: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    style: int,
    reuse_front: bool,
    nope_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate x and y [S, B, heads, D] by rows of tables [P, 1, 1, R] at positions [S, B].

    See rotate_by_style.
    """
    cos, sin = cos.flatten(0, 2)[positions].unsqueeze(2), sin.flatten(0, 2)[positions].unsqueeze(2)
    return rotate_both_by_style(x, y, cos, sin, style, reuse_front, nope_first)
