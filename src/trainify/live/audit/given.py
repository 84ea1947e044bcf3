"""What a model is given, and what is made of that without parameters."""

from __future__ import annotations

from collections.abc import Set

from .trace import Trace, made_by, tensor_of


def given_in(trace: Trace, held: Set[int]) -> set[int]:
    """As :func:`~.trace.tensor_of` has it.  ``held`` is what the model has by itself."""
    made = {tensor_of(sight) for call in trace.calls for sight in made_by(call)} | held
    given = set[int]()
    for call in trace.calls:
        learning = [sight for sight in call.ins if sight.attached]
        ins = {tensor_of(sight) for sight in call.ins}
        given |= {tensor_of(s) for s in call.ins if not s.attached} - made
        if not learning and not given.isdisjoint(ins):
            given.update(
                map(tensor_of, call.outs), (tensor_of(s) for s, _ in call.written.values())
            )
    return given
