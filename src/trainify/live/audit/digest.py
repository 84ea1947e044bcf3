"""Short digests of what tensors hold, to tell whether they hold something else in another run."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
import xxhash
from torch import Tensor

_COPIED = 1 << 19
"""Bytes of a tensor with gaps that are copied at a time."""

_IN_A_ROW = 16
"""Elements, at least, of which only the sum counts where there are many."""

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
        return self.put(bits_of(tensor))

    def put(self, bits: Tensor | Digest) -> int:
        """As :meth:`add`, of what :func:`bits_of` gave."""
        if isinstance(bits, Tensor):
            self._pending[len(self._read)] = bits
            bits = UNKNOWN
        self._read.append(bits)
        return len(self._read) - 1

    def is_at(self, index: int, bits: Tensor | Digest) -> bool:
        """Whether that is what :meth:`put` was given; False where that is not there yet."""
        return not isinstance(bits, Tensor) and bits != UNKNOWN and self._read[index] == bits

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
        return int(bits_of(tensor))


def bits_of(tensor: Tensor) -> Tensor | Digest:
    """What its bits are, in one number; on other devices than the CPU still a tensor."""
    if tensor.is_cpu and tensor.layout is torch.strided:
        try:
            return _hash_of_memory(tensor)
        except (RuntimeError, TypeError):  # a subclass that has no memory, say
            pass
    return _sum_by_torch(tensor)


def _hash_of_memory(tensor: Tensor) -> Digest:
    """As :func:`bits_of`, by what takes a fraction of the time.

    Not by ``tensor.numpy()``, after which the tensor's storage can never be resized again.
    """
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError
    size, address = tensor.nbytes, tensor.data_ptr()
    if not size:
        return 0
    if address == tensor.storage_offset() * tensor.itemsize:
        if not tensor.untyped_storage().nbytes():
            return UNKNOWN  # which was freed, as sharded weights are
        raise TypeError
    if tensor.is_contiguous():
        return xxhash.xxh3_64_intdigest(_memory(address, size, _READ_ONLY))
    tensor = tensor.detach()
    if size <= _COPIED:
        tensor = tensor.contiguous()
        return xxhash.xxh3_64_intdigest(_memory(tensor.data_ptr(), size, _READ_ONLY))
    found = xxhash.xxh3_64()
    for rows in map(torch.Tensor.contiguous, tensor.split(max(_COPIED * len(tensor) // size, 1))):
        found.update(_memory(rows.data_ptr(), rows.nbytes, _READ_ONLY))
    return found.intdigest()


_memory: Any = ctypes.pythonapi.PyMemoryView_FromMemory
_memory.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_memory.restype = ctypes.py_object

_READ_ONLY = 0x100
"""``PyBUF_READ``."""


def _leading(shape: Sequence[int]) -> int:
    """How many dimensions tell rows that are long enough."""
    left = math.prod(shape)
    for i, size in enumerate(shape[:-1]):
        left //= max(size, 1)
        if left < _IN_A_ROW:
            return i
    return max(len(shape) - 1, 0)


def _sum_by_torch(tensor: Tensor) -> Tensor | Digest:
    """The integers whose bits the elements have, summed up, each row times a number of its own.

    Rows in another order are something else: a sum alone would not see that.  Integers wrap around,
    so that it changes with each element, unlike one of floats.  Without a change of type it is as
    fast as memory; where two or more elements fit one integer, they are.
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
        total = _total(_as_integers(bits))
        return int(total.item()) if total.is_cpu else total
    except (RuntimeError, NotImplementedError, KeyError, TypeError):
        return UNKNOWN


def _as_integers(bits: Tensor) -> Tensor:
    size = bits.element_size()
    if size < 8 and bits.dim() and bits.stride(-1) == 1:
        for wide in (torch.int64, torch.int32):
            many = wide.itemsize // size
            if many > 1 and not any(
                n % many for n in (bits.size(-1), bits.storage_offset(), *bits.stride()[:-1])
            ):
                return bits.view(wide)
    return bits.view(INTEGER[size])


def _total(bits: Tensor) -> Tensor:
    dtype = bits.dtype if bits.element_size() >= 4 else torch.int64
    rows = _leading(bits.shape)
    if not rows:
        return bits.sum(dtype=dtype)
    sums = bits.sum(dim=tuple(range(rows, bits.dim())), dtype=dtype).reshape(-1)
    odd = torch.arange(1, 2 * len(sums), 2, dtype=dtype, device=sums.device)
    return (sums * odd).sum(dtype=dtype)
