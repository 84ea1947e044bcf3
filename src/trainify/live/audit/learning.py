"""By which parameters each tensor of a run learns: those that its history goes back to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .cuts import Suspect
from .trace import Trace, made_by, tensor_of

Leaves = frozenset[int]
"""As :func:`~.trace.tensor_of` has them."""


def learning_by(trace: Trace) -> dict[int, Leaves]:
    """The leaves behind each tensor with a history."""
    found: dict[int, Leaves] = {}
    for call in trace.calls:
        behind = Leaves()
        for sight in call.ins:
            number = tensor_of(sight)
            if sight.fresh:
                found.setdefault(number, Leaves((number,)))
            if sight.attached:
                behind |= found.setdefault(number, Leaves())
        for sight in made_by(call):
            number = tensor_of(sight)
            if sight.attached:
                found[number] = behind | found.get(number, Leaves())
    return found


def leaves_lost(behind: Mapping[int, Leaves], suspects: Iterable[Suspect]) -> dict[int, Leaves]:
    """What each tensor that suspects stop would learn by, of what :func:`learning_by` gives."""
    found: dict[int, Leaves] = {}
    for suspect in suspects:
        number = tensor_of(suspect.call.outs[suspect.where[1]])
        given = (behind.get(tensor_of(sight), Leaves()) for sight in suspect.call.ins)
        found[number] = found.get(number, Leaves()).union(*given)
    return found
