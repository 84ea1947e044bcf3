"""What is left of a value once that was taken away, stopped, which it was rounded to.

A residual quantizer goes on with ``r - q.detach()``, where ``q`` is the entry of a table that is
nearest to ``r``, or ``r`` rounded.  The gradient of what is left goes to ``r`` as it is: the table
learns by losses of its own, and with a straight-through ``q`` nothing would be left of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from .cuts import Suspect
from .functions import VIEWS
from .trace import Call, Trace, is_passed_on, made_by, own_name, tensor_of

Makers = Mapping[int, Call]
"""The calls that have made or written tensors last."""

_FROM = {"sub": 1, "subtract": 1, "__sub__": 1, "rsub": 0, "__rsub__": 0}
"""Functions by which something is taken away; and which of the two that is."""

_ROUND = {"round", "floor", "ceil", "trunc", "sign", "sgn"}


def is_of_a_remainder(trace: Trace, group: Sequence[Suspect], given: Set[int]) -> bool:
    """Whether what suspects at one site stop is only taken away from what chose it.

    ``given`` is what the model is given.
    """
    makers = {tensor_of(each): call for call in trace.calls for each in made_by(call)}
    return all(_is_one(trace, makers, given, each) for each in group)


def _is_one(trace: Trace, makers: Makers, given: Set[int], suspect: Suspect) -> bool:
    if not is_passed_on(trace, suspect.call):
        return False
    stopped = {tensor_of(suspect.call.outs[0])}
    found = False
    for call in trace.calls:
        taken = [tensor_of(sight) for sight in call.ins]
        if stopped.isdisjoint(taken):
            continue
        if not any(sight.attached for sight in made_by(call)):
            if own_name(call) in VIEWS:
                stopped.update(map(tensor_of, call.outs))
            continue
        at = _FROM.get(own_name(call), -1)
        if len(taken) != 2 or at < 0 or call.scaled or taken[1 - at] in stopped:
            return False
        if not _chose(makers, given, taken[1 - at], tensor_of(suspect.call.ins[0])):
            return False
        found = True
    return found


def _chose(makers: Makers, given: Set[int], value: int, rounded: int) -> bool:
    """Whether one is rounded to the other, which is made of nothing else that a model computes."""
    waiting, seen = [rounded], {value, rounded}
    chosen: list[int] = []
    by_itself = False
    while waiting:
        call = makers.get(waiting.pop())
        if call is None:
            continue
        by_itself |= own_name(call).rstrip("_") in _ROUND
        for sight in call.ins:
            number = tensor_of(sight)
            if sight.whole:
                chosen.append(number)
            elif number not in seen:
                seen.add(number)
                if number in given:
                    return False
                waiting.append(number)
    behind = _behind(makers, chosen)
    return value in behind or (by_itself and not chosen)


def _behind(makers: Makers, numbers: Sequence[int]) -> set[int]:
    """These, and all that they are made of."""
    waiting, seen = list(numbers), set(numbers)
    while waiting:
        call = makers.get(waiting.pop())
        new = {tensor_of(sight) for sight in call.ins} - seen if call is not None else set()
        seen |= new
        waiting += new
    return seen
