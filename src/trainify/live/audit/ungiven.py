"""Parameters that get no gradient: whether one is due to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from .cuts import Suspect
from .influence import Disturb, Keep, Kept
from .runs import Change, Step
from .state import nudge
from .trace import Observer, Unseen
from .widen import Widening, widened

_FINE, _LESS_FINE, _COARSE = (1e-5,), (1e-2,), (1.0, 10.0)
"""How far a parameter is moved, in nudges: in float64, and in what has fewer bits.

From afar, many small steps look like a slope, so less fine is only asked where a nudge of one is
nothing to the loss as it is.
"""
_FAR = 30.0
"""Nudges, by which more is seen in few bits.  By many more a model may ask for any memory: of what
it computes, a size may be made."""
_LINEAR = 0.1
"""The share by which a slope may be another at a half and at a fourth of the distance."""


@dataclass(frozen=True)
class Ungiven:
    """Of parameters without a gradient: those on which the loss does not depend, and the others.

    ``meant`` are those on which it depends by nothing but values that are stopped on purpose,
    ``stepwise`` those with which it changes, but by steps, as a comparison makes them, or by too
    little to tell; ``coarse`` are those of them of which more bits could not be asked.  To the
    rest, ``lost``, a gradient is due.  ``faint`` are those that go into the loss, and of which that
    has too few bits to tell; ``unknown`` they are where it is another one in each run.
    """

    unused: tuple[str, ...] = ()
    meant: tuple[str, ...] = ()
    stepwise: tuple[str, ...] = ()
    coarse: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    faint: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def beside(self, other: Ungiven) -> Ungiven:
        """What is said of these and of others; ``unused`` are its own."""
        return replace(
            self,
            meant=self.meant + other.meant,
            stepwise=self.stepwise + other.stepwise,
            coarse=self.coarse + other.coarse,
            lost=self.lost + other.lost,
        )


def ungiven(
    step: Step,
    names: Sequence[str],
    loss: float,
    stops: Sequence[Suspect],
    used: Collection[str],
    reaching: Collection[str],
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
        reaching: Those of them that go into the loss by any way, also where gradients end.
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
    if shut := [name for name in found.unused if name in used] if step.zeros else []:
        behind = _Point(step, None, stops).told(shut)
        unused = tuple(name for name in found.unused if name not in shut or name in behind.unused)
        found = replace(found.beside(behind), unused=unused)
    hidden = [name for name in found.unused if name in reaching]
    fainter = _in_float64(step, hidden, stops) if hidden else Ungiven()
    # What no call is given may be computed where nobody looks, in a thread say.
    asked = [name for name in found.unused if name not in used]
    asked += hidden if fainter is None else []
    far = point.told(asked, _FAR) if asked else Ungiven()
    refused = hidden if fainter is None else []
    faint = tuple(name for name in refused if name in far.unused)
    fainter = fainter or Ungiven(unused=tuple(hidden))
    rest = [n for n in found.unused if n not in hidden or n in fainter.unused]
    rest = [n for n in rest if n not in asked or (n in far.unused and n not in faint)]
    return replace(found.beside(fainter).beside(far), unused=tuple(rest), faint=faint)


def _in_float64(step: Step, names: Sequence[str], stops: Sequence[Suspect]) -> Ungiven | None:
    """What more bits say of parameters with which no bit of the loss changes; None if refused."""
    try:
        with Widening(torch.float64):
            wide = widened(step, torch.float64)
            point = _Point(wide, _loss(wide, Unseen(), None), stops)
            moved, held = point.moving(names, 1.0)
    except Exception:  # a kernel that refuses float64, a model that cannot be copied
        return None
    sloping, _ = _sloping(step, held, stops, False, _LESS_FINE)
    return Ungiven(
        unused=tuple(name for name in names if name not in moved),
        meant=tuple(name for name in moved if name not in held),
        stepwise=tuple(name for name in held if name not in sloping),
        lost=tuple(sloping),
    )


class _Point:
    """The parameters around which the loss is looked at.

    As they are, where it is ``loss``; where that is None, with none that is zero throughout.
    """

    def __init__(self, step: Step, loss: float | None, stops: Sequence[Suspect]) -> None:
        self._step, self._stops = step, stops
        self._awake = loss is None
        self._loss = _loss(step, Unseen(), step.awake()) if loss is None else loss

    def told(self, names: Sequence[str], times: float = 1.0) -> Ungiven:
        """What is to be said of parameters, by so many nudges of each."""
        moved, held = self.moving(names, times)
        finest = _FINE if times == 1.0 else _LESS_FINE
        sloping, fine = _sloping(self._step, held, self._stops, self._awake, finest)
        stepwise = tuple(name for name in held if name not in sloping)
        return Ungiven(
            unused=tuple(name for name in names if name not in moved),
            meant=tuple(name for name in moved if name not in held),
            stepwise=stepwise,
            coarse=() if fine else stepwise,
            lost=tuple(sloping),
        )

    def moving(self, names: Sequence[str], times: float) -> tuple[list[str], list[str]]:
        """Those with which the loss changes; and those that do it past what is stopped."""
        moved = those(names, lambda group: self.changed(group, times=times))
        if not (moved and self._stops):
            return moved, moved
        keep = Keep(self._stops)
        _loss(self._step, keep, self._step.awake() if self._awake else None)
        held = those(moved, lambda group: self.changed(group, keep.values, times))
        seen = {n for each in self._stops if each.where[0] != "out" for n in each.parameters}
        return moved, [name for name in held if name not in seen]

    def changed(self, names: Sequence[str], kept: Kept | None = None, times: float = 1.0) -> bool:
        """Whether the loss is another one once these parameters are a little off, or far."""
        observer = Unseen() if kept is None else Disturb((), 0.0, kept=kept)
        change = self._step.nudge(names, times)
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
    step: Step,
    names: Sequence[str],
    stops: Sequence[Suspect],
    awake: bool,
    finest: Sequence[float],
) -> tuple[list[str], bool]:
    """Those along which the loss has a slope: which changes with them, and the less the closer.

    And whether that was seen in float64.
    """
    if not names:
        return [], True
    try:
        with Widening(torch.float64):
            wide = widened(step, torch.float64)
            return _Slopes(wide, stops, awake, finest, 1e-13).those(names), True
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
        """All where they have one together, which is the rule; else each that has one alone.

        None where nothing changes with all of them.
        """
        if all(self._slope(names, far / 4) == 0 for far in self._distances):
            return []
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
