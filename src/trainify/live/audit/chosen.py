"""Choices that a run makes by values: indices, and what is compared.

What a loss depends on by a choice alone has no derivative.  Of a few, each disturbance of the
values makes the same ones or others, by steps; among many, as the points at which a mask is the
least certain, the more are others the more is disturbed, as if there were a slope.
"""

from __future__ import annotations

from .cuts import BACK_TO_FLOAT, CASTS, MISSING, Suspect
from .report import Cause
from .trace import Sight, Trace, made_by, own_name, tensor_of


def choices(trace: Trace) -> list[Suspect]:
    """The integers and truth values that are made of other values, each as what a call returns.

    Not those that numbers are computed with: these are rounded, not chosen.
    """
    counted = _counted(trace)
    return [
        Suspect(Cause.HOST, MISSING, call, ("out", i))
        for call in trace.calls
        if own_name(call) not in CASTS and all(sight.floating for sight in call.ins)
        for i, sight in enumerate(call.outs)
        if _is_chosen(sight) and tensor_of(sight) not in counted
    ]


def _is_chosen(sight: Sight) -> bool:
    return not sight.floating and (sight.whole or not sight.narrow)


def _counted(trace: Trace) -> set[int]:
    """The integers that go into what is computed."""
    found: set[int] = set()
    for call in reversed(trace.calls):
        whole = {tensor_of(sight) for sight in call.ins if sight.whole}
        made = made_by(call)
        computed = own_name(call) in BACK_TO_FLOAT and any(sight.floating for sight in made)
        if computed or not found.isdisjoint(tensor_of(s) for s in made if not s.floating):
            found |= whole
    return found
