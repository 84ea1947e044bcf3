"""Heads that learn from features as they are: a critic beside a policy, a probe beside a task.

``loss = task(head(h)) + value(critic(h.detach()))``: the features go with their history into layers
that are as many at least, and what the stopped ones become is a term of its own of the loss.  Where
both come together before that, or most of a model lies behind the stop, it may be a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .cuts import Suspect
from .report import Cause
from .trace import Call, Trace, made_by, own_name, tensor_of

SUMS = {"add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "rsub", "subtract",
         "__sub__", "__rsub__", "__isub__", "stack"}  # fmt: skip
LINEAR = {*SUMS, "mul", "mul_", "__mul__", "__rmul__", "div", "div_", "__truediv__", "mean",
           "sum", "neg", "__neg__", "reshape", "view", "squeeze", "unsqueeze", "to", "float",
           "double", "__getitem__", "unbind", "__iter__"}  # fmt: skip


def is_of_a_head(trace: Trace, group: Sequence[Suspect], sizes: Mapping[int, int]) -> bool:
    """Whether what suspects at one site stop goes into such a head.

    ``sizes`` has how many numbers each parameter holds, by :func:`~.trace.tensor_of`.
    """
    if any(each.cause is not Cause.DETACH for each in group):
        return False
    flow = _Flow(group, sizes)
    return all(map(flow.through, trace.calls)) and flow.is_of_a_head()


class _Flow:
    """What becomes of stopped values, and of the same with their history."""

    def __init__(self, group: Sequence[Suspect], sizes: Mapping[int, int]) -> None:
        self._sizes = sizes
        self._weights = {number: {number} for number in sizes}
        """What is made of parameters alone, and of which."""
        self._stopped = {tensor_of(each.call.outs[each.where[1]]) for each in group}
        self._main = {tensor_of(s) for each in group for s in each.call.ins if s.attached}
        self._head: set[int] = set()
        self._terms: set[int] = set()
        """Sums of what heads and others make."""
        self._of_head: set[int] = set()
        self._of_main: set[int] = set()
        """The parameters of layers on both sides."""

    def is_of_a_head(self) -> bool:
        """Once all calls have been gone through."""
        head, main = (
            sum(self._sizes[number] for number in side) for side in (self._of_head, self._of_main)
        )
        return bool(self._terms) and 0 < head <= main

    def through(self, call: Call) -> bool:
        """Go through a call, in the order in which they were made; whether it may be a head's."""
        ins = [(sight, tensor_of(sight)) for sight in call.ins if sight.floating]
        numbers = {number for _, number in ins}
        attached = {tensor_of(sight) for sight in made_by(call) if sight.attached}
        weights = set().union(*(self._weights.get(number, ()) for number in numbers))
        if numbers and numbers <= self._weights.keys():
            self._weights.update((tensor_of(sight), weights) for sight in made_by(call))
        elif not numbers.isdisjoint(self._terms):
            learning = [n for sight, n in ins if sight.attached]
            if attached and (own_name(call) not in (SUMS if len(learning) > 1 else LINEAR)):
                return False
            self._terms |= attached
        elif not numbers.isdisjoint(self._stopped | self._head):
            others = {n for sight, n in ins if sight.attached} - self._weights.keys() - self._head
            if not attached:  # what is stopped once more is another's affair
                if numbers.isdisjoint(self._head):
                    self._stopped.update(map(tensor_of, made_by(call)))
            elif not others:
                self._head |= attached
                self._of_head |= weights
            elif own_name(call) in SUMS and numbers.isdisjoint(self._stopped) and not weights:
                self._terms |= attached
            else:
                return False
        elif not numbers.isdisjoint(self._main):
            self._main |= attached
            self._of_main |= weights
        return True
