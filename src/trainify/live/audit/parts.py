"""Complex numbers as pairs of real ones.

So is autograd's gradient for one: with (a, b) for its parts, a loss changes by a · da + b · db.
"""

from __future__ import annotations

import torch
from torch import Tensor


def has_parts(tensor: Tensor) -> bool:
    """Whether it holds numbers that have a derivative."""
    return tensor.is_floating_point() or tensor.is_complex()


def parts(tensor: Tensor) -> Tensor:
    """A view of its numbers as real ones, where it holds complex ones."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def of_precision(dtype: torch.dtype, precision: torch.dtype) -> torch.dtype:
    """The type for numbers of the kind of ``dtype`` that has the bits of a floating-point one."""
    return precision.to_complex() if dtype.is_complex else precision
