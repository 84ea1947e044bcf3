"""What autograd saved for backward, and whether it still holds the same when it is needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from .places import callers
from .trace import Call, Sight, Trace, Tracer


class Saving:
    """A context in which each tensor that autograd saves is told of, with the call that saves it.

    Args:
        tracer: Tells which call is running.
        told: Gets the call, the how many-th tensor of that call it is, and the tensor.
        taken: Gets what ``told`` returned and the tensor, when backward asks for it.
    """

    def __init__(
        self,
        tracer: Tracer,
        told: Callable[[Call | None, int, Tensor], Any],
        taken: Callable[[Any, Tensor], None] | None = None,
    ) -> None:
        last: Call | None = None
        number = -1

        def pack(tensor: Tensor) -> tuple[Tensor, Any]:
            nonlocal last, number
            call = tracer.running or _checkpoint(tracer)
            if call is not last:
                last, number = call, -1
            number += 1
            note = told(call, number, tensor)
            if tensor.is_leaf and tensor.requires_grad:  # of which ``.data`` can be set
                return tensor, note
            with torch._C.DisableTorchFunction():  # a result would keep the graph that keeps it
                return tensor.detach(), note

        def unpack(packed: tuple[Tensor, Any]) -> Tensor:
            tensor, note = packed
            if taken is not None:
                taken(note, tensor)
            return tensor

        self._hooks = saved_by(pack, unpack)

    def __enter__(self) -> Saving:
        self._hooks.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._hooks.__exit__(*exception)


def _checkpoint(tracer: Tracer) -> Call | None:
    """The checkpoint that saves its inputs; each of them is a call of its own."""
    for frame in islice(callers(sys._getframe(2)), 6):
        if frame.f_code.co_name == "save_inputs" and frame.f_code.co_filename == _CHECKPOINT:
            return tracer.call_of(torch.utils.checkpoint.checkpoint, frame)
    return None


_CHECKPOINT = torch.utils.checkpoint.__file__


def is_checkpoint(call: Call) -> bool:
    """Whether it stands for an input of a checkpoint, which is saved before anything runs."""
    return call.function is torch.utils.checkpoint.checkpoint


@contextmanager
def saved_by(pack: Any, unpack: Any) -> Iterator[None]:
    """Hooks for what autograd saves, also where the model uses :mod:`torch.func`.

    They only look, which is known by the attribute ``only_looks``.
    """

    def looking(tensor: Tensor) -> Any:  # a method has no attributes of its own
        return pack(tensor)

    looking.only_looks = True  # type: ignore[attr-defined]
    with torch.autograd.graph.saved_tensors_hooks(looking, unpack), _aside(looking, unpack):
        yield


@contextmanager
def _aside(pack: Any, unpack: Any) -> Iterator[None]:
    """The transforms of :mod:`torch.func` refuse to run within hooks; not so within these.

    What they save is their own, and is not told of.
    """
    graph, engine = torch.autograd.graph, torch._C._autograd
    disabled = graph.disable_saved_tensors_hooks

    @contextmanager
    def set_aside(error_message: str) -> Iterator[None]:
        top = engine._top_saved_tensors_default_hooks(True)
        ours = top is not None and top[0] is pack
        if ours:
            engine._pop_saved_tensors_default_hooks()
        try:
            with disabled(error_message):
                yield
        finally:
            if ours:
                engine._push_saved_tensors_default_hooks(pack, unpack)

    graph.disable_saved_tensors_hooks = set_aside
    try:
        yield
    finally:
        graph.disable_saved_tensors_hooks = disabled


class Saved:
    """Digests of what was saved, and of what backward found in its place."""

    written = False
    """Whether something that backward asked for was written into, be it with the same values."""

    def __init__(self, trace: Trace, weights: bool = False) -> None:
        """``weights`` are looked at alone, or not at all: they are as large as the model."""
        self._trace = trace
        self._weights = weights
        self._pairs: list[tuple[int, int, Call, int]] = []
        self._fresh: list[tuple[Tensor, _Note]] = []

    def told(self, call: Call | None, number: int, tensor: Tensor) -> Any:
        if tensor.is_inference():
            return None
        note = _Note(call, number, tensor._version)
        if call is None or is_weight(tensor) != self._weights:
            return note
        if tensor.dim() == 1 and "batch_norm" in call.name:
            return note  # running statistics, which backward does not look at in training
        if is_checkpoint(call):
            with torch._C.DisableTorchFunction():  # it is no call of the model's
                note.digest = self._trace.digests.add(tensor)
        else:
            self._fresh.append((tensor, note))
        return note

    def done(self, call: Call, tensors: list[Tensor], out: Any) -> None:
        """The call has ended: what it does to what it saved is its own affair."""
        for tensor, note in self._fresh:
            sight = None if self._weights else _sight_of(tensor, call, tensors, out)
            note.digest = self._trace.digests.add(tensor) if sight is None else sight.digest
        self._fresh.clear()

    def taken(self, note: Any, tensor: Tensor) -> None:
        if note is None:
            return
        self.written = self.written or tensor._version != note.version
        if note.call is not None and note.digest is not None:
            now = self._trace.digests.add(tensor)
            self._pairs.append((note.digest, now, note.call, note.number))

    def overwritten(self) -> list[tuple[Call, int]]:
        """The calls that saved what was changed later, in order, and the how many-th they saved."""
        digests = self._trace.digests.read()
        return [
            (call, number)
            for before, after, call, number in sorted(self._pairs, key=lambda pair: pair[0])
            if digests[before] != digests[after]
        ]


def _sight_of(tensor: Tensor, call: Call, tensors: list[Tensor], out: Any) -> Sight | None:
    """What was seen of a tensor that a call has saved: one that it took, or its result.

    Only of functions of torch is it known that they write into nothing unseen.
    """
    if isinstance(call.function, type):
        return None
    for i, each in enumerate(tensors):
        if each is tensor:
            return None if i in call.written else call.ins[i]
    # A result is saved as another tensor of the same memory.
    same = isinstance(out, Tensor) and len(call.outs) == 1 and out.data_ptr() == tensor.data_ptr()
    same = same and out.shape == tensor.shape and out.stride() == tensor.stride()
    return call.outs[0] if same else None


def is_weight(tensor: Tensor) -> bool:
    """Whether it is a parameter, or a view of one."""
    base = tensor if tensor._base is None else tensor._base
    return base.is_leaf and base.requires_grad


@dataclass
class _Note:
    call: Call | None
    number: int
    version: int
    digest: int | None = None


@contextmanager
def out_of_sight() -> Iterator[None]:
    """No hook of those around sees what is saved here.

    A checkpoint counts what its region saves, and compares when it is computed again.
    """
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
        yield
        return
    with saved_by(_itself, _itself):
        yield


def _itself(saved: Any) -> Any:
    return saved
