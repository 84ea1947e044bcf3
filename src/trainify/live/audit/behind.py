"""Which of its arguments a result of a kernel depends on.

A kernel with several results need not make each of all that it is given: the sum that a fused norm
leaves in the residual knows nothing of the norm's weight.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from .local import LARGEST
from .parts import has_parts, parts
from .saved import out_of_sight
from .trace import Call, tensors_in


def arguments_behind(
    call: Call, where: tuple[str, int], args: Any, kwargs: Any, tensors: Sequence[Tensor]
) -> Collection[int]:
    """The tensors among the arguments, by index, with which the result at ``where`` changes.

    All of them where that is not in question, or cannot be told.
    """
    everything = range(len(tensors))
    wanted = [i for i, each in enumerate(tensors) if each.requires_grad and has_parts(each)]
    several = len(call.outs) + len(call.written) > 1
    if not (call.opaque and several and len(wanted) > 1 and where[0] in ("out", "written")):
        return everything
    if sum(each.numel() for each in tensors) > LARGEST:
        return everything
    again = _Again(call.function, args, kwargs, tensors, where)
    devices = {tensor.device.index for tensor in tensors if tensor.is_cuda}
    with torch.random.fork_rng(devices=devices), torch.no_grad(), out_of_sight():
        try:
            before = again.result(None)
            changing = [i for i in wanted if not torch.equal(again.result(i), before)]
        except Exception:  # it does not take other values
            return everything
    return changing or everything


class _Again:
    def __init__(
        self, function: Any, args: Any, kwargs: Any, tensors: Sequence[Tensor], where: Any
    ) -> None:
        self._function, self._args, self._kwargs = function, args, kwargs
        self._tensors = tensors
        self._what, self._index = where
        self._state = torch.get_rng_state()

    def result(self, other: int | None) -> Tensor:
        """What comes of the call, with other values in one of its arguments."""
        given = {id(tensor): tensor.detach().clone() for tensor in self._tensors}
        if other is not None:
            numbers = parts(given[id(self._tensors[other])])
            size = numbers.float().square().mean().sqrt().item() or 1.0
            numbers.normal_(0.0, size, generator=torch.Generator(numbers.device).manual_seed(0))
        torch.set_rng_state(self._state)
        args, kwargs = tree_map(lambda each: given.get(id(each), each), (self._args, self._kwargs))
        out = self._function(*args, **kwargs)
        if self._what == "written":
            return given[id(self._tensors[self._index])]
        arguments = {id(each) for each in given.values()}
        made = (each for each in tensors_in((out,)) if id(each) not in arguments)
        return next(islice(made, self._index, None))
