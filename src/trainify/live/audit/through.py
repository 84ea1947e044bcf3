"""The lines of a scope through which a gradient would go if the scope were gone.

Only what is computed there has to leave it: teachers, metrics and indices can stay.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from .places import Place
from .trace import Sight, Trace, made_by, nodes_behind

Lines = dict[Place, set[int]]
"""By the scope, lines of the function in which it stands."""


def history_behind(loss: Tensor) -> set[int]:
    """The numbers of all nodes that backward would go through, as in :attr:`Sight.history`."""
    return {int(node._sequence_nr()) for node in nodes_behind([loss.grad_fn], {})}


def lines_through(trace: Trace, behind: set[int], ends: Iterable[Sight]) -> Lines:
    """The lines, by scope, of the calls that a gradient goes through.

    Args:
        trace: A run in which the scopes did not get to switch gradients off.
        behind: The history of the loss.
        ends: What is given to calls at which the gradient ends later on, but should not.
    """
    behind = behind | {sight.history for sight in ends if sight.attached}
    found: Lines = {}
    for call in reversed(trace.calls):
        if any(sight.history in behind for sight in made_by(call) if sight.history >= 0):
            behind |= {sight.history for sight in call.ins if sight.attached}
            if call.within is not None:
                found.setdefault(call.within.scope, set()).add(call.within.line)
    return found
