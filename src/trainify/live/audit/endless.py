"""Gradients that are infinite or not a number although the loss is finite, and where they come up.

The root of zero has a slope without end, and zero times that is no number: what ``torch.where``
leaves out of a result still takes part in backward.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from .cuts import WRONG, Suspect
from .influence import Walk
from .parts import has_parts, parts
from .report import Cause
from .runs import Step
from .trace import Call, Observer, history_of, nodes_behind, tensors_in
from .widen import Widening, widened


def is_finite(tensor: Tensor) -> bool:
    """Whether each element is a number, and no infinite one; takes no memory."""
    with torch._C.DisableTorchFunction():
        values = tensor.coalesce().values() if tensor.is_sparse else tensor
        if values.layout is not torch.strided or not has_parts(values) or not values.numel():
            return True
        values = parts(values.detach())
        if math.isfinite(values.sum().item()):
            return True
        ends = torch.stack(torch.aminmax(values))  # a sum alone may be too large
        return bool(torch.isfinite(ends).all().item())


def where_endless(step: Step, names: Collection[str]) -> list[Suspect]:
    """The calls whose derivative makes the gradients of these parameters what they are."""
    calls = _Calls()
    _, loss = step.run(calls)
    found: dict[int, set[str]] = {}
    handles = [
        node.register_hook(_watching(node, found, step))
        for node in nodes_behind([loss.grad_fn], {})
        if not hasattr(node, "variable")  # at which gradients are left
    ]
    try:
        with step.backward():
            step.gradients(loss, step.parameters.values())
    finally:
        for handle in handles:
            handle.remove()
    suspects = []
    for history, behind in found.items():
        call = calls.of(history)
        if call is not None and behind & {*names}:
            suspect = Suspect(Cause.BACKWARD, WRONG, call, ("out", 0))
            suspect.detail = "endless"
            suspect.parameters |= behind & {*names}
            suspects.append(suspect)
    return suspects


def is_overflow(step: Step) -> bool:
    """Whether in float32 the gradients are finite: then float16 has too short a range for them."""
    try:
        other = widened(step, torch.float32)
        with Widening(torch.float32):
            _, loss = other.run()
            with other.backward():
                gradients = torch.autograd.grad(
                    loss, list(other.parameters.values()), allow_unused=True
                )
        return all(each is None or is_finite(each) for each in gradients)
    except Exception:  # a kernel that refuses float32, a model that cannot be copied
        return False


def _watching(node: Any, found: dict[int, set[str]], step: Step) -> Callable[[Any, Any], None]:
    def watch(outgoing: Iterable[Tensor | None], incoming: Iterable[Tensor | None]) -> None:
        if _are_finite(incoming) and not _are_finite(outgoing):
            found[node._sequence_nr()] = Walk(step.names).behind([node])

    return watch


def _are_finite(gradients: Iterable[Tensor | None]) -> bool:
    return all(each is None or is_finite(each) for each in gradients)


class _Calls(Observer):
    """Which call has made a node; those that one call makes have numbers that follow."""

    sights = False

    def __init__(self) -> None:
        self._made: list[tuple[int, Call]] = []

    def after(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor], out: Any) -> Any:
        histories = [history_of(t) for t in (*tensors_in((out,)), *tensors) if t.requires_grad]
        if histories:
            self._made.append((max(histories), call))
        return out

    def of(self, history: int) -> Call | None:
        made = sorted(self._made, key=itemgetter(0))
        i = bisect_left(made, history, key=itemgetter(0))
        return made[i][1] if i < len(made) else None
