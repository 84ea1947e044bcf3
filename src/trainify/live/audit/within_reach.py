"""What the result of a run is made of, by calls of any kind, with a history or without."""

from __future__ import annotations

from .trace import Trace, made_by, result, tensor_of


def within_reach(trace: Trace) -> set[int]:
    """The tensors that go into what the run gives, by :func:`~.trace.tensor_of`.

    What leaves torch, or what code that is not seen may make, counts as going there.
    """
    found: set[int] = set()
    for call in reversed(trace.calls):
        ends = call.function is result or call.leaves or not (call.outs or call.written)
        if ends or not found.isdisjoint(map(tensor_of, made_by(call))):
            found.update(map(tensor_of, call.ins))
    return found
