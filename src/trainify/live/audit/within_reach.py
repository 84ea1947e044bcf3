"""What the result of a run is made of, by calls of any kind, with a history or without.

Not by what is counted or compared: a choice has no derivative.
"""

from __future__ import annotations

from collections.abc import Iterable

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


def _numbers(sights: Iterable[Sight]) -> Iterable[int]:
    return (tensor_of(sight) for sight in sights if sight.floating or sight.narrow)
