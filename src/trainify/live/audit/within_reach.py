"""What the result of a run is made of, by calls of any kind, with a history or without.

Not by what is counted or compared: a choice has no derivative.
"""

from __future__ import annotations

from collections.abc import Iterable

from .cuts import Suspect
from .trace import Sight, Trace, made_by, result, tensor_of


def within_reach(trace: Trace) -> set[int]:
    """The tensors that go into what the run gives, by :func:`~.trace.tensor_of`.

    What leaves torch counts as going there.
    """
    found: set[int] = set()
    for call in reversed(trace.calls):
        ends = call.function is result or call.leaves
        if ends or not found.isdisjoint(_numbers(made_by(call))):
            found.update(_numbers(call.ins))
    return found


def that_reach(trace: Trace, suspects: Iterable[Suspect]) -> list[Suspect]:
    """Those whose values go into what the run gives, by a call behind theirs.

    The statistics of a batch norm do not, though the call that writes them has read them.
    """
    at: dict[int, list[Suspect]] = {}
    for each in suspects:
        at.setdefault(id(each.call), []).append(each)
    reaching: list[Suspect] = []
    found: set[int] = set()
    for call in reversed(trace.calls):
        made = made_by(call)
        hit = not found.isdisjoint(_numbers(made))
        for each in at.get(id(call), ()):
            what, i = each.where
            if what == "out":
                goes_on = tensor_of(call.outs[i]) in found
            elif what == "written" and i in call.written:
                goes_on = tensor_of(call.written[i][0]) in found
            else:
                goes_on = hit
            reaching += [each] if goes_on else []
        if call.function is result or call.leaves or hit:
            found.update(_numbers(call.ins))
    return reaching


def _numbers(sights: Iterable[Sight]) -> Iterable[int]:
    return (tensor_of(sight) for sight in sights if sight.floating or sight.narrow)
