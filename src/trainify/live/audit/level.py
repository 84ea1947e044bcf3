"""Values from which a loss has no slope, so that stopping them takes nothing from a gradient.

A solver finds a fixed point where gradients are off, and one step of Newton's method from there has
its derivative: of the point itself the step is independent, to first order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .cuts import Suspect
from .influence import Disturb, Keep, Kept
from .runs import Step
from .widen import Widening, widened

_FAR, _TIMES = 2.0**-8, 16
"""A share of a value's size, and how many times less is tried as well."""

_SEEDS = 2
_SEEN, _ROUNDING = 1e-11, 1e-14
"""Shares of the loss: one that is no rounding, and one that may be."""


class Level:
    """Trials in float64, in which what is left at a short distance shows."""

    def __init__(self, step: Step, allowed: Sequence[Suspect]) -> None:
        """``allowed`` are those at which a gradient may end."""
        self._step, self._allowed = step, allowed
        self._wide: Step | None = None
        self._kept: Kept = {}
        self._value = 0.0

    def covers(self, group: Sequence[Suspect]) -> bool:
        """Whether the loss changes with the square of what the values change by, or less."""
        if any(each.where[0] != "out" for each in group):
            return False
        try:
            with Widening(torch.float64):
                self._begin()
                return all(self._is_level(group, seed) for seed in range(_SEEDS))
        except Exception:  # a kernel that refuses float64, a model that cannot be copied
            return False

    def _begin(self) -> None:
        if self._wide is None:
            wide = widened(self._step, torch.float64)
            keep = Keep(self._allowed)
            self._value = self._of(wide, keep)
            self._wide, self._kept = wide, keep.values

    def _is_level(self, group: Sequence[Suspect], seed: int) -> bool:
        """Twice in a row: where choices change as well, the first time may be by chance."""
        shares = (_FAR, _FAR / _TIMES, _FAR / _TIMES**2)
        far, near, nearest = (self._change(group, share, seed) for share in shares)
        rounding = _ROUNDING * abs(self._value)
        return (
            far > _SEEN * abs(self._value)
            and 4 * _TIMES * near < far
            and (4 * _TIMES * nearest < near or nearest < rounding)
        )

    def _change(self, group: Sequence[Suspect], share: float, seed: int) -> float:
        assert self._wide is not None
        observer = Disturb(group, share, seed, self._kept)
        return abs(self._of(self._wide, observer) - self._value)

    def _of(self, step: Step, observer: Keep | Disturb) -> float:
        value: float = step.run(observer)[1].detach().double().item()
        return value
