"""Values from which a loss has no slope, so that stopping them takes nothing from a gradient.

A solver finds a fixed point where gradients are off, and one step of Newton's method from there has
its derivative: of the point itself the step is independent, to first order.

That is so wherever the parameters are.  A distance from what a model was at the start has no slope
there, and has one after the first step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from .cuts import Suspect
from .influence import Disturb, Keep
from .runs import Change, Step
from .widen import Widening, widened

_FAR, _TIMES = 2.0**-8, 16
"""A share of a value's size, and how many times less is tried as well."""

_SEEDS = 2
_ASIDE = 30.0
"""Nudges, by which all parameters are moved for the second point."""
_SEEN, _ROUNDING = 1e-11, 1e-14
"""Shares of the loss: one that is no rounding, and one that may be."""


class Level:
    """Trials in float64, in which what is left at a short distance shows."""

    def __init__(self, step: Step, allowed: Sequence[Suspect]) -> None:
        """``allowed`` are those at which a gradient may end."""
        self._step, self._allowed = step, allowed

    def covers(self, group: Sequence[Suspect]) -> bool:
        """Whether the loss changes with the square of what the values change by, or less."""
        if any(each.where[0] != "out" for each in group):
            return False
        try:
            with Widening(torch.float64):
                return all(point.is_level(group) for point in self._points)
        except Exception:  # a kernel that refuses float64, a model that cannot be copied
            return False

    @cached_property
    def _points(self) -> list[_Point]:
        wide = widened(self._step, torch.float64)
        aside = wide.nudge(wide.parameters, _ASIDE)
        return [_Point(wide, change, self._allowed) for change in (None, aside)]


class _Point:
    """The parameters as they are, or changed."""

    def __init__(self, step: Step, change: Change | None, allowed: Sequence[Suspect]) -> None:
        self._step, self._change = step, change
        keep = Keep(allowed)
        self._value = self._of(keep)
        self._kept = keep.values

    def is_level(self, group: Sequence[Suspect]) -> bool:
        return all(self._is_level(group, seed) for seed in range(_SEEDS))

    def _is_level(self, group: Sequence[Suspect], seed: int) -> bool:
        """Twice in a row: where choices change as well, the first time may be by chance."""
        shares = (_FAR, _FAR / _TIMES, _FAR / _TIMES**2)
        far, near, nearest = (self._moved(group, share, seed) for share in shares)
        rounding = _ROUNDING * abs(self._value)
        return (
            far > _SEEN * abs(self._value)
            and 4 * _TIMES * near < far
            and (4 * _TIMES * nearest < near or nearest < rounding)
        )

    def _moved(self, group: Sequence[Suspect], share: float, seed: int) -> float:
        return abs(self._of(Disturb(group, share, seed, self._kept)) - self._value)

    def _of(self, observer: Keep | Disturb) -> float:
        value: float = self._step.run(observer, self._change)[1].detach().double().item()
        return value
