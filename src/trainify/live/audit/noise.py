"""Random numbers that cost little, the same ones again and again; and whether there are any."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

_LENGTH = 65_537
"""A prime, so that the rows of a matrix do not repeat one another."""


def noise_like(tensor: Tensor, seed: int) -> Tensor:
    """Normally distributed numbers, of the shape, type and device of ``tensor``."""
    table = _table(seed % 64)
    numbers = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    flat = numbers.view(-1)
    rest = flat.numel() % _LENGTH
    whole = flat.numel() - rest
    flat[:whole].view(-1, _LENGTH).copy_(table)
    flat[whole:].copy_(table[:rest])
    return numbers


@cache
def _table(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(_LENGTH, generator=generator, dtype=torch.float32)


def is_zero(tensor: Tensor) -> bool:
    """Whether each element of a dense tensor is zero; most often the first row says no."""
    if tensor.layout is not torch.strided:
        return False
    first = tensor[0] if tensor.dim() and len(tensor) else tensor
    return not first.any().item() and not tensor.any().item()
