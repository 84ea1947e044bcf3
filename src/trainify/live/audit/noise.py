"""Random numbers that cost little: the same ones again and again."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

_LENGTH = 65_537
"""A prime, so that the rows of a matrix do not repeat one another."""


def noise_like(tensor: Tensor, seed: int) -> Tensor:
    """Normally distributed numbers, of the shape, type and device of ``tensor``."""
    table = _table(seed % 64)
    n = tensor.numel()
    numbers = table[:n] if n <= _LENGTH else table.repeat(-(-n // _LENGTH))[:n]
    return numbers.to(tensor, copy=True).reshape(tensor.shape)


@cache
def _table(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(_LENGTH, generator=generator, dtype=torch.float32)
