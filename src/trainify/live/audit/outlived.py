"""What outlives a run that was made, or written into, in it; wherever it is held.

A module need not be what holds it: a global does, a closure, a class.  So it goes by what is there
still, once the loss and its graph are gone.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .functions import Known
from .tensors import memory_of
from .trace import Call, Sight, list_of_tensors, node_of


class Attached:
    """The tensors with a history that were seen, as long as they live."""

    def __init__(self) -> None:
        self._seen: dict[int, weakref.ref[Tensor]] = {}

    def see(self, tensors: Iterable[Tensor], out: Any) -> None:
        """What a call has taken, and what it has returned."""
        for tensor in (*list_of_tensors((out,)), *tensors):
            if tensor.requires_grad:
                self._seen[id(tensor)] = weakref.ref(tensor)

    def living(self, but: Collection[int]) -> list[Tensor]:
        """Those that are held by something, less those of these ids."""
        if not any(True for _ in self._alive(but)):
            return []
        gc.collect()  # of cycles that nobody holds
        return list(self._alive(but))

    def _alive(self, but: Collection[int]) -> Iterator[Tensor]:
        for key, reference in self._seen.items():
            tensor = reference()
            if tensor is not None and key not in but and node_of(tensor) is not None:
                yield tensor


class Before(NamedTuple):
    """A tensor, what it held before it was written, and how a call first took it."""

    tensor: Tensor
    values: Tensor
    sight: Sight


class Foreign:
    """Tensors that nobody had told of and that no call has made, and what they held at first."""

    def __init__(self) -> None:
        self._by_memory: dict[int, tuple[weakref.ref[Tensor], Sight]] = {}
        self._before: dict[int, tuple[weakref.ref[Tensor], Tensor, Sight]] = {}
        self._may_write: dict[Any, bool] = {}

    def take(self, call: Call, tensors: Iterable[Tensor]) -> None:
        """A call is about to run."""
        writes = self._may_write.get(call.function)
        if writes is None:
            writes = self._may_write[call.function] = Known(call.function).writes
        for tensor, sight in zip(tensors, call.ins, strict=True):
            if sight.taken and sight.earlier is None and (memory := memory_of(tensor)):
                whole = tensor if tensor._base is None else tensor._base
                self._by_memory[memory] = weakref.ref(whole), sight
            if writes and self._by_memory:
                self._copy(tensor)

    def _copy(self, tensor: Tensor) -> None:
        memory = memory_of(tensor)
        reference, sight = self._by_memory.get(memory, (None, None))
        whole = None if reference is None else reference()
        if whole is None or sight is None or id(whole) in self._before:
            return
        if memory_of(whole) == memory:  # and not what has been put where another one was
            forget = partial(self._forget, id(whole))
            with torch.no_grad():
                values = whole.detach().clone()
            self._before[id(whole)] = weakref.ref(whole, forget), values, sight

    def _forget(self, key: int, _: object) -> None:
        self._before.pop(key, None)

    def living(self) -> Iterator[Before]:
        """Those that were written, and that something still holds."""
        for reference, values, sight in list(self._before.values()):
            tensor = reference()
            if tensor is not None:
                yield Before(tensor, values, sight)
