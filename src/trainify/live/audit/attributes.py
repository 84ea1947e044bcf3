"""What an ``autograd.Function`` keeps for backward as an attribute of its context.

``save_for_backward`` notices that a tensor is written into before it is needed; ``ctx.x = x`` does
not, and backward computes from what was written.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from .trace import Call, Observer, Trace, tensors_in


class Attributes:
    """Digests of what contexts keep, and whether it is the same at the end of the forward."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._kept: list[tuple[Call, int, weakref.ref[Tensor], int]] = []
        self._pairs: list[tuple[Call, int, int, int]] = []

    def done(self, call: Call, out: Any) -> None:
        """A call has returned."""
        for number, tensor in enumerate(kept_by(call, out)):
            base = tensor if tensor._base is None else tensor._base
            if not (base.is_leaf and base.requires_grad):
                digest = self._trace.digests.add(tensor)
                self._kept.append((call, number, weakref.ref(tensor), digest))

    def end(self) -> None:
        """The forward has ended."""
        with torch._C.DisableTorchFunction():
            for call, number, reference, before in self._kept:
                tensor = reference()
                if tensor is not None:
                    after = self._trace.digests.add(tensor)
                    self._pairs.append((call, number, before, after))
        self._kept.clear()

    def overwritten(self) -> list[tuple[Call, int]]:
        """The calls that keep what was changed later, and the how many-th it is of theirs."""
        digests = self._trace.digests.read()
        return [
            (call, number)
            for call, number, before, after in self._pairs
            if digests[before] != digests[after]
        ]


class Apart(Observer):
    """Has contexts keep copies, which nobody can write into."""

    sights = False

    def after(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor], out: Any) -> Any:
        for context in _contexts(call, out):
            for name, value in list(vars(context).items()):
                if any(True for _ in tensors_in((value,))):
                    setattr(context, name, tree_map(_copy, value))
        return out


def kept_by(call: Call, out: Any) -> list[Tensor]:
    """The tensors in the attributes of the context of an ``autograd.Function``, in order."""
    return [each for context in _contexts(call, out) for each in tensors_in(vars(context).values())]


def _contexts(call: Call, out: Any) -> Iterator[Any]:
    """The context is the node itself; all results of a function have the same."""
    if isinstance(call.function, type):
        for tensor in tensors_in((out,)):
            node = tensor.grad_fn if tensor.requires_grad and tensor._base is None else None
            if node is not None and isinstance(getattr(node, "__dict__", None), dict):
                yield node
                return


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
