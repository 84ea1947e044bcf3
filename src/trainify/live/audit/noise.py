"""Random numbers that cost little, the same ones again and again; and whether there are any."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from .parts import parts

_LENGTH = 65_537
"""A prime, so that the rows of a matrix do not repeat one another."""


def add_noise(tensor: Tensor, seed: int, alpha: float) -> None:
    """Add to each element a normally distributed number, times ``alpha``.

    To complex ones, to both parts; :func:`along_noise` takes those.
    """
    if tensor.is_complex():
        numbers = torch.zeros_like(parts(tensor))
        add_noise(numbers, seed, 1.0)
        tensor.add_(torch.view_as_complex(numbers), alpha=alpha)
        return
    if not tensor.is_contiguous():
        numbers = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        add_noise(numbers, seed, 1.0)
        tensor.add_(numbers, alpha=alpha)
        return
    table = _numbers(tensor, seed, tensor.dtype)
    rows, rest = _as_rows(tensor)
    if len(rows):
        rows.add_(table, alpha=alpha)
    rest.add_(table[: len(rest)], alpha=alpha)


def along_noise(tensor: Tensor, seed: int) -> float:
    """The sum of the elements, each times the number that :func:`add_noise` has for it."""
    table = _numbers(tensor, seed, torch.float64)
    rows, rest = _as_rows(tensor.contiguous())
    found: float = torch.dot(rest.double(), table[: len(rest)]).item()
    return found if not len(rows) else found + torch.mv(rows.double(), table).sum().item()


def _numbers(tensor: Tensor, seed: int, dtype: torch.dtype) -> Tensor:
    """As much of the table as it takes."""
    return _table(seed % 64)[: tensor.numel()].to(tensor.device, dtype)


def _as_rows(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Views of a tensor: rows as long as the table, and what is left."""
    flat = tensor.view(-1)
    whole = flat.numel() - flat.numel() % _LENGTH
    return flat[:whole].view(-1, _LENGTH), flat[whole:]


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
