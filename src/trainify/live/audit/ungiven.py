"""Parameters that get no gradient: whether one is due to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from .cuts import Suspect
from .influence import Disturb, Keep, Kept
from .runs import Change, Step
from .state import nudge
from .trace import Observer, Unseen
from .widen import Widening, widened

_FINE, _COARSE = (1e-5,), (1.0, 10.0)
"""How far a parameter is moved, in nudges: in float64, and in what has fewer bits.

From afar, many small steps look like a slope.
"""
_LINEAR = 0.1
"""The share by which a slope may be another at a half and at a fourth of the distance."""


@dataclass(frozen=True)
class Ungiven:
    """Of parameters without a gradient: those on which the loss does not depend, and the others.

    ``meant`` are those on which it depends by nothing but values that are stopped on purpose,
    ``stepwise`` those with which it changes, but by steps, as a comparison makes them, or by too
    little to tell; ``coarse`` are those of them of which more bits could not be asked.  To the
    rest, ``lost``, a gradient is due.  ``unknown`` they are where the loss is another one in each
    run.
    """

    unused: tuple[str, ...] = ()
    meant: tuple[str, ...] = ()
    stepwise: tuple[str, ...] = ()
    coarse: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def ungiven(
    step: Step, names: Sequence[str], loss: float, stops: Sequence[Suspect], used: Collection[str]
) -> Ungiven:
    """Tell parameters without a gradient apart.

    Args:
        step: The step in which they get none.
        names: Of these parameters.
        loss: What the step gives.
        stops: Where gradients are stopped on purpose.
        used: The parameters with which something is computed.  Behind a gate of zeros the loss does
            not change with them; with another gate it does, and torch gives them zeros.  On others
            a loss that is another one in each run does not depend.
    """
    if not names:
        return Ungiven()
    point = _Point(step, loss, stops)
    if point.changed(()):  # by itself
        return Ungiven(
            unused=tuple(name for name in names if name not in used),
            unknown=tuple(name for name in names if name in used),
        )
    found = point.told(names)
    shut = [name for name in found.unused if name in used] if step.zeros else []
    if not shut:
        return found
    behind = _Point(step, None, stops).told(shut)
    return Ungiven(
        unused=tuple(name for name in found.unused if name not in shut or name in behind.unused),
        meant=found.meant + behind.meant,
        stepwise=found.stepwise + behind.stepwise,
        coarse=found.coarse + behind.coarse,
        lost=found.lost + behind.lost,
    )


class _Point:
    """The parameters around which the loss is looked at.

    As they are, where it is ``loss``; where that is None, with none that is zero throughout.
    """

    def __init__(self, step: Step, loss: float | None, stops: Sequence[Suspect]) -> None:
        self._step, self._stops = step, stops
        self._awake = loss is None
        self._loss = _loss(step, Unseen(), step.awake()) if loss is None else loss

    def told(self, names: Sequence[str]) -> Ungiven:
        """What is to be said of parameters."""
        moved = those(names, self.changed)
        held = moved
        if moved and self._stops:
            keep = Keep(self._stops)
            _loss(self._step, keep, self._step.awake() if self._awake else None)
            held = those(moved, lambda group: self.changed(group, keep.values))
            seen = {n for each in self._stops if each.where[0] != "out" for n in each.parameters}
            held = [name for name in held if name not in seen]
        sloping, fine = _sloping(self._step, held, self._stops, self._awake)
        stepwise = tuple(name for name in held if name not in sloping)
        return Ungiven(
            unused=tuple(name for name in names if name not in moved),
            meant=tuple(name for name in moved if name not in held),
            stepwise=stepwise,
            coarse=() if fine else stepwise,
            lost=tuple(sloping),
        )

    def changed(self, names: Sequence[str], kept: Kept | None = None) -> bool:
        """Whether the loss is another one once these parameters are a little off."""
        observer = Unseen() if kept is None else Disturb((), 0.0, kept=kept)
        change = self._step.nudge(names)
        change = self._step.awake(change) if self._awake else change
        return _loss(self._step, observer, change) != self._loss


def _loss(step: Step, observer: Observer, change: Change | None) -> float:
    value: float = step.run(observer, change)[1].detach().double().item()
    return value


def those(names: Sequence[str], changes: Callable[[Sequence[str]], bool]) -> list[str]:
    """The parameters that change something, found by halves; in order."""
    groups, found = [list(names)], set()
    while groups:
        group = groups.pop()
        if not changes(group):
            continue
        if len(group) == 1:
            found.update(group)
        else:
            half = len(group) // 2
            groups += [group[:half], group[half:]]
    return [name for name in names if name in found]


def _sloping(
    step: Step, names: Sequence[str], stops: Sequence[Suspect], awake: bool
) -> tuple[list[str], bool]:
    """Those along which the loss has a slope: which changes with them, and the less the closer.

    And whether that was seen in float64.
    """
    if not names:
        return [], True
    try:
        with Widening(torch.float64):
            wide = widened(step, torch.float64)
            return _Slopes(wide, stops, awake, _FINE, 1e-13).those(names), True
    except Exception:  # a kernel that refuses float64, a model that cannot be copied
        rounding = max(torch.finfo(step.parameters[name].dtype).eps for name in names)
        return _Slopes(step, stops, awake, _COARSE, 8 * rounding).those(names), False


class _Slopes:
    """The loss of a step, as parameters are moved.

    ``rounding`` is the share of it below which a change says nothing.
    """

    def __init__(
        self,
        step: Step,
        stops: Sequence[Suspect],
        awake: bool,
        distances: Sequence[float],
        rounding: float,
    ) -> None:
        self._step = step
        self._awake = awake
        self._distances = distances
        self._rounding = rounding
        keep = Keep(stops)
        _loss(step, keep, step.awake() if awake else None)
        self._observer: Observer = Disturb((), 0.0, kept=keep.values)
        self._size = abs(self._value((), 0.0)) or 1.0

    def those(self, names: Sequence[str]) -> list[str]:
        """All where they have one together, which is the rule; else each that has one alone."""
        if self._is_one(names):
            return list(names)
        return [name for name in names if len(names) > 1 and self._is_one([name])]

    def _is_one(self, names: Sequence[str]) -> bool:
        return all(self._is_linear(names, far) for far in self._distances)

    def _is_linear(self, names: Sequence[str], far: float) -> bool:
        slope = self._slope(names, far / 4)
        return abs(slope) * far > self._rounding * self._size and all(
            abs(self._slope(names, by) - slope) <= _LINEAR * abs(slope) for by in (far / 2, far)
        )

    def _slope(self, names: Sequence[str], by: float) -> float:
        return (self._value(names, by) - self._value(names, -by)) / (2 * by)

    def _value(self, names: Sequence[str], by: float) -> float:
        parameters = [self._step.parameters[name] for name in names]
        change: Change = partial(nudge, parameters, by)
        return _loss(
            self._step, self._observer, self._step.awake(change) if self._awake else change
        )
