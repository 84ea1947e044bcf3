"""Short digests of what tensors hold, to tell whether they hold something else in another run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_FEW = 1 << 17
"""Elements; NumPy has only one thread."""

_NOT_IN_NUMPY = {torch.bfloat16, torch.quint8, torch.qint8, torch.qint32}
"""Nor are others, but these are met."""

INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers of as many bytes."""

Digest = int
"""A number for the bits of a tensor; equal bits give equal digests."""

UNKNOWN: Digest = -1
"""The digest of what has no bits that could be read: meta tensors, sparse ones, subclasses."""


class Digests:
    """Digests that are computed on the tensors' device, and read at the end, all at once.

    Where the device is the CPU there is nothing to wait for: they are numbers from the start.
    """

    def __init__(self) -> None:
        self._pending: dict[int, Tensor] = {}
        self._read: list[Digest] = []

    def add(self, tensor: Tensor) -> int:
        """The index of the digest of ``tensor`` as it is now; torch functions must be off."""
        total = _sum(tensor)
        if isinstance(total, Tensor):
            self._pending[len(self._read)] = total
            total = UNKNOWN
        self._read.append(total)
        return len(self._read) - 1

    def read(self) -> Sequence[Digest]:
        """The digests, by index."""
        by_device: dict[torch.device, list[int]] = {}
        for i, each in self._pending.items():
            by_device.setdefault(each.device, []).append(i)
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for indices in by_device.values():
                stacked = torch.stack([self._pending[i].long() for i in indices])
                for i, value in zip(indices, stacked.tolist(), strict=True):
                    self._read[i] = value
        self._pending.clear()
        return self._read


def digest(tensor: Tensor) -> Digest:
    """The digest of one tensor, at once."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        return int(_sum(tensor))


def _sum(tensor: Tensor) -> Tensor | Digest:
    """The sum of what its bits are as integers; on other devices than the CPU still a tensor."""
    if tensor.is_cpu and tensor.numel() <= _FEW and tensor.dtype not in _NOT_IN_NUMPY:
        try:  # NumPy's calls take half the time
            bits: Any = tensor.detach().numpy()
            return int(bits.view("i8").sum())
        except ValueError:  # rows of an odd length
            if bits.itemsize <= 8:
                return int(bits.view(f"i{bits.itemsize}").sum(dtype="i8"))
        except (RuntimeError, TypeError):  # sparse, conjugated, a subclass
            pass
    return _sum_by_torch(tensor)


def _sum_by_torch(tensor: Tensor) -> Tensor | Digest:
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
        total = _total(bits)
        return int(total.item()) if total.is_cpu else total
    except (RuntimeError, NotImplementedError, KeyError, TypeError):
        return UNKNOWN


def _total(bits: Tensor) -> Tensor:
    size = bits.element_size()
    if size < 8 and bits.dim() and bits.stride(-1) == 1:
        for wide in (torch.int64, torch.int32):
            many = wide.itemsize // size
            if many > 1 and not any(
                n % many for n in (bits.size(-1), bits.storage_offset(), *bits.stride()[:-1])
            ):
                return bits.view(wide).sum(dtype=wide)
    exact = INTEGER[size]
    return bits.view(exact).sum(dtype=exact if size >= 4 else torch.int64)
