"""Heads that learn from features as they are: a critic beside a policy, a probe beside a task.

``loss = task(head(h)) + value(critic(h.detach()))``: the features go with their history into layers
that are as many at least, and what the stopped ones become is a term of its own of the loss.  Where
both come together before that, or most of a model lies behind the stop, it may be a mistake.

A head may be some times larger than the layers beside it, as one that drafts tokens is, if the
gradient that does not come from it would be the smaller one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .cuts import Suspect
from .functions import LINEAR, PICKS, SUMS
from .report import Cause
from .runs import Step
from .shares import is_the_less
from .trace import Call, Trace, is_passed_on, made_by, own_name, tensor_of

_TIMES = 5
"""How many times larger than the layers beside it a head may be."""


def is_of_a_head(
    step: Step, trace: Trace, group: Sequence[Suspect], sizes: Mapping[int, int]
) -> bool:
    """Whether what suspects at one site stop goes into such a head.

    ``sizes`` has how many numbers each parameter holds, by :func:`~.trace.tensor_of`.
    """
    if any(e.cause is not Cause.DETACH or not is_passed_on(trace, e.call) for e in group):
        return False
    flow = _Flow(trace, group, sizes)
    if not all(map(flow.through, trace.calls)) or not flow.is_one():
        return False
    return flow.is_smaller() or (flow.is_as_large() and is_the_less(step, group, flow.picked))


class _Flow:
    """What becomes of stopped values, and of the same with their history."""

    def __init__(self, trace: Trace, group: Sequence[Suspect], sizes: Mapping[int, int]) -> None:
        self._sizes = sizes
        self._weights = {number: {number} for number in sizes}
        """What is made of parameters alone, and of which."""
        self._stopped = {tensor_of(each.call.outs[each.where[1]]) for each in group}
        self._main = {tensor_of(s) for each in group for s in each.call.ins if s.attached}
        self.picked: list[Call] = []
        """By which the values that are stopped are picked from others, which go on as well."""
        for call in reversed(trace.calls):
            made = set(map(tensor_of, call.outs))
            if own_name(call) in PICKS and not self._main.isdisjoint(made):
                self._main.update(tensor_of(s) for s in call.ins if s.attached)
                self.picked.append(call)
        self._heads: dict[int, set[int]] = {}
        """What heads make, with the parameters of their layers."""
        self._terms: set[int] = set()
        """Sums of what heads and others make."""
        self._of_heads: list[set[int]] = []
        """The parameters of the layers of each head."""
        self._of_main: set[int] = set()

    def is_one(self) -> bool:
        """Whether there are heads, once all calls have been gone through."""
        return bool(self._terms) and any(self._of_heads)

    def is_smaller(self) -> bool:
        """Whether all heads together have no more layers than there are beside them."""
        return self._size(set().union(*self._of_heads)) <= self._size(self._of_main)

    def is_as_large(self) -> bool:
        """Whether no head is by far the larger part."""
        return max(map(self._size, self._of_heads)) <= _TIMES * self._size(self._of_main)

    def _size(self, parameters: set[int]) -> int:
        return sum(self._sizes[number] for number in parameters)

    def through(self, call: Call) -> bool:
        """Go through a call, in the order in which they were made; whether it may be a head's."""
        ins = [(sight, tensor_of(sight)) for sight in call.ins if sight.floating]
        numbers = {number for _, number in ins}
        attached = {tensor_of(sight) for sight in made_by(call) if sight.attached}
        weights = set().union(*(self._weights.get(number, ()) for number in numbers))
        if numbers and len(ins) == len(call.ins) and numbers <= self._weights.keys():
            self._weights.update((tensor_of(sight), weights) for sight in made_by(call))
        elif not numbers.isdisjoint(self._terms):
            learning = [n for sight, n in ins if sight.attached]
            if attached and (own_name(call) not in (SUMS if len(learning) > 1 else LINEAR)):
                return False
            self._terms |= attached
            self._of_heads += [self._heads[number] for number in numbers if number in self._heads]
        elif not numbers.isdisjoint(self._stopped | self._heads.keys()):
            others = {n for sight, n in ins if sight.attached}
            others -= self._weights.keys() | self._heads.keys()
            heads = [self._heads[number] for number in numbers if number in self._heads]
            if not attached:  # what is stopped once more is another's affair
                if not heads:
                    self._stopped.update(map(tensor_of, made_by(call)))
            elif not others:
                own = (self._weights.get(n, set()) for sight, n in ins if sight.attached)
                self._heads.update(dict.fromkeys(attached, set().union(*own, *heads)))
            elif own_name(call) in SUMS and numbers.isdisjoint(self._stopped) and not weights:
                self._terms |= attached
                self._of_heads += heads
            else:
                return False
        elif not numbers.isdisjoint(self._main):
            self._main |= attached
            self._of_main |= weights
        return True
