"""Values that unseen code makes without a history, and the parameters that they are made of.

As of a block that runs in another thread, where float64 does not get to.  The loss depends on the
values, as was seen; with the parameters of a new model it may change by too little to tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from .cuts import Suspect
from .runs import Step
from .state import nudge
from .trace import Observer, Trace
from .ungiven import those

_LITTLE = 2**-6
"""Nudges: what is chosen by a comparison stays as it is."""


def are_behind(
    step: Step, names: Sequence[str], suspects: Sequence[Suspect], base: Trace
) -> list[str]:
    """The parameters with which such a value changes.

    Args:
        step: The step.
        names: Of the parameters in question.
        suspects: Where such values are taken.
        base: The run with the parameters as they are.
    """
    if not names or not suspects:
        return []

    def changes(group: Sequence[str]) -> bool:
        parameters = [step.parameters[name] for name in group]
        trace = step.run(Observer(), partial(nudge, parameters, _LITTLE))[0]
        return any(
            twin is not None
            and each.where[1] < len(twin.ins)
            and base.digest(each.call.ins[each.where[1]]) != trace.digest(twin.ins[each.where[1]])
            for each in suspects
            for twin in [trace.by_key.get(each.call.key)]
        )

    return those(names, changes)
