"""Where tensors lie, and which of them a value holds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..reach import contents

PLAIN = {str, bytes, int, float, complex, bool, type(None), object}
"""Types of what holds nothing."""


def memory_of(tensor: Tensor) -> int:
    """Where a tensor's storage begins; 0 for one that lies nowhere that can be told."""
    if tensor.layout is not torch.strided:
        return 0
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a subclass that has no memory
        return 0


def span_of(tensor: Tensor) -> tuple[int, int]:
    """Where the numbers of a tensor begin and end in memory."""
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def tensors_within(
    value: Any, depth: int, seen: set[int], most: float = math.inf
) -> Iterator[Tensor]:
    """The tensors in lists, dicts, tuples and objects, down to a depth.

    Of what has been ``seen``, by id, and of what holds more than ``most``, there are none.
    """
    if isinstance(value, Tensor):
        yield value
        return
    if depth < 0 or type(value) in PLAIN or id(value) in seen:
        return
    if isinstance(value, (list, tuple, dict, set, frozenset, deque)):
        inner = list(contents(value)) if len(value) <= most else []
    elif callable(value) or not isinstance(getattr(value, "__dict__", None), dict):
        return
    else:
        inner = list(value.__dict__.values())
    seen.add(id(value))
    for each in inner:
        yield from tensors_within(each, depth - 1, seen, most)
