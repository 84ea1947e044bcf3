"""How much of a gradient is stopped, and how much arrives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .compared import norm, set_aside
from .cuts import Suspect, keys
from .influence import functions_of, replaced, returned
from .runs import Step
from .trace import Call, Observer

_LESS = 0.5
"""The share of what arrives, up to which what is stopped is plainly less."""


def is_the_less(step: Step, group: Sequence[Suspect], picked: Sequence[Call]) -> bool:
    """Whether what suspects stop is less of a gradient than what comes to the same values.

    ``picked`` are the calls that gave the stopped values, of others that go on as well.
    """
    leaves = _Leaves(group, picked)
    _, loss = step.run(leaves)
    with step.backward(), set_aside(step):
        asked = [*leaves.stopped, *leaves.others]
        found = step.gradients(loss, asked) if asked else []
        sizes = [0.0 if each is None else norm(each.to_dense()) for each in found]
    stopped, others = sizes[: len(leaves.stopped)], sizes[len(leaves.stopped) :]
    return bool(others) and 0 < sum(stopped) <= _LESS * max(others)


class _Leaves(Observer):
    """Has leaves in place of what is stopped, so that it can be asked what would go back there."""

    sights = False

    def __init__(self, group: Sequence[Suspect], picked: Sequence[Call]) -> None:
        self._at = keys(list(group))
        self._picked = {call.key for call in picked}
        self.functions = functions_of((*self._at, *self._picked))
        self.stopped: list[Tensor] = []
        self.others: list[Tensor] = []
        """The same values with their history."""

    def before(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        if call.key in self._at or call.key in self._picked:
            self.others += [each for each in tensors if each.requires_grad]

    def after(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor], out: Any) -> Any:
        for suspect in self._at.get(call.key, ()):
            found = returned(out, tensors)
            if suspect.where[1] < len(found):
                one = found[suspect.where[1]]
                leaf = one.detach().requires_grad_()
                self.stopped.append(leaf)
                out = replaced(out, one, leaf)
        return out
