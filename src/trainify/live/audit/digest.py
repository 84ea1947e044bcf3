"""Short digests of what tensors hold, to tell whether they hold something else in another run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Digest = int
"""A number for the bits of a tensor; equal bits give equal digests."""

UNKNOWN: Digest = -1
"""The digest of what has no bits that could be read: meta tensors, sparse ones, subclasses."""


class Digests:
    """Digests that are computed on the tensors' device, and read at the end, all at once."""

    def __init__(self) -> None:
        self._pending: list[Tensor | int] = []
        self._read: list[Digest] = []

    def add(self, tensor: Tensor) -> int:
        """The index of the digest of ``tensor`` as it is now; torch functions must be off."""
        self._pending.append(_sum(tensor))
        return len(self._pending) - 1

    def read(self) -> Sequence[Digest]:
        """The digests, by index."""
        if len(self._read) < len(self._pending):
            self._read += _values(self._pending[len(self._read) :])
            self._pending[:] = [0] * len(self._pending)
        return self._read


def digest(tensor: Tensor) -> Digest:
    """The digest of one tensor, at once."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        return int(_sum(tensor))


def _sum(tensor: Tensor) -> Tensor | int:
    """The integers whose bits the elements have, summed up.

    Integers wrap around, so a sum changes with each element, unlike one of floats.  Sums without a
    change of type are as fast as memory; where two or more elements fit one integer, they are.
    """
    if tensor.is_meta or tensor.layout is not torch.strided:
        return UNKNOWN
    if tensor.numel() == 0:
        return 0
    try:
        bits = tensor.int_repr() if tensor.is_quantized else tensor.detach()
        if bits.is_conj() or bits.is_neg():
            bits = bits.resolve_conj().resolve_neg()
        if bits.is_complex():
            bits = torch.view_as_real(bits)
        size = bits.element_size()
        if size < 8 and bits.dim() and bits.stride(-1) == 1:
            for wide in (torch.int64, torch.int32):
                many = wide.itemsize // size
                if many > 1 and all(
                    n % many == 0
                    for n in (bits.size(-1), bits.storage_offset(), *bits.stride()[:-1])
                ):
                    return bits.view(wide).sum(dtype=wide)
        exact = _INTEGER[size]
        return bits.view(exact).sum(dtype=exact if size >= 4 else torch.int64)
    except (RuntimeError, NotImplementedError, KeyError, TypeError):
        return UNKNOWN


def _values(pending: Sequence[Tensor | int]) -> list[Digest]:
    by_device: dict[torch.device, list[int]] = {}
    values: list[Digest] = [0] * len(pending)
    for i, each in enumerate(pending):
        if isinstance(each, Tensor):
            by_device.setdefault(each.device, []).append(i)
        else:
            values[i] = each
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for indices in by_device.values():
            stacked = torch.stack([pending[i].long() for i in indices])  # type: ignore[union-attr]
            for i, value in zip(indices, stacked.tolist(), strict=True):
                values[i] = value
    return values
