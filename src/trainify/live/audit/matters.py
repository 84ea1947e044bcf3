"""Whether a cut matters: whether the loss depends on the values that it keeps from autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any

import torch

from .chosen import choices
from .cuts import Suspect
from .influence import Disturb, Keep, Kept
from .report import Cause
from .runs import Step
from .trace import Observer, Trace
from .widen import Widening, widened

_TRIES = 2
"""Disturbances, of which one may happen to leave the loss where it was."""
_MUCH, _LITTLE, _LEAST = 0.5, 0.5 / 256, 0.5 / 256**2
"""Shares of a value's size."""
_LESS = 0.3
"""By how much less the loss is disturbed to see whether it changes by steps."""
_SEEN = 0.5
"""How many times what rounding may make of a loss: of a few bits, none are the same by chance."""


class Trials:
    """Trials with the parameters as they are, and where it takes that with none of zeros alone."""

    def __init__(self, step: Step, trace: Trace, allowed: Sequence[Suspect]) -> None:
        """``trace`` and ``allowed`` as for :class:`Trial`."""
        self._step, self._trace, self._allowed = step, trace, allowed
        self._trial = Trial(step, trace, allowed)
        self._awake: Trial | None = None

    def matters(self, group: Sequence[Suspect]) -> bool:
        """Whether the loss changes with what suspects at one site stand for."""
        if self._trial.matters(group):
            return True
        if not self._step.zeros:
            return False
        if self._awake is None:
            self._awake = Trial(self._step, self._trace, self._allowed, awake=True)
        return self._awake.matters(group)


class Trial:
    """Runs in which values are disturbed; those of few bits in more, if the model can.

    A parameter in float32 does not help where its values are cast before they are used.
    """

    def __init__(
        self,
        step: Step,
        trace: Trace,
        allowed: Sequence[Suspect],
        awake: bool = False,
        least: torch.dtype = torch.float32,
    ) -> None:
        """``allowed`` are those at which a gradient may end; ``trace`` is a run of the step.

        What has fewer bits than ``least`` is run in that.
        """
        self._step, self._trace, self._allowed = step, trace, allowed
        self._is_awake = awake
        self._precision: AbstractContextManager[Any] = nullcontext()
        self._smallest = min((p.element_size() for p in step.parameters.values()), default=4)
        if self._smallest < least.itemsize or step.rounding > torch.finfo(least).eps:
            wide = Widening(least)
            try:
                other = widened(step, least) if self._smallest < least.itemsize else step
                keep = Keep(allowed)
                with wide:
                    self._value = self._of(other, keep)
            except Exception:  # the model cannot be copied, or its kernels refuse the type
                pass
            else:
                self._step, self._precision = other, wide
                self._smallest = max(least.itemsize, self._smallest)
                self._kept = keep.values
                return
        keep = Keep(allowed)
        self._value = self._of(step, keep)
        self._kept = keep.values

    def matters(self, group: Sequence[Suspect]) -> bool:
        """Whether the loss changes with what suspects at one site stand for."""
        if any(each.where[0] in ("saved", "kept", "weight") for each in group):
            return True
        # An alias only makes it possible to write without being seen, so it is tried on its own.
        aliases = [each for each in group if each.cause in (Cause.DATA, Cause.DETACH)]
        others = [each for each in group if each not in aliases]
        return any(
            self._moves(some, seed) and not self._is_chosen_by(some)
            for some in (others, aliases)
            if some
            for seed in range(_TRIES)
        )

    def _moves(self, group: Sequence[Suspect], seed: int) -> bool:
        """Whether the loss changes by more than rounding does, and the more the disturbance.

        A softmax from which another maximum is subtracted rounds otherwise, but not the more so.
        Where a model refuses negative numbers, as a distribution does for its width, they change in
        proportion.
        """
        for in_proportion in (False, True):
            disturb = partial(Disturb, group, seed=seed, in_proportion=in_proportion)
            much = self._loss(disturb(share=_MUCH, kept=self._kept))
            if much is not None:
                return self._moves_by(disturb, much, all(map(_rounds, group)))
        return False

    def _moves_by(self, disturb: Callable[..., Disturb], much: float, rounded: bool) -> bool:
        if not self._differ(much, self._value):
            return False
        if not rounded and not self._far(much, self._value) and self._by_steps(disturb, much):
            return False
        far = much
        for share in (_LITTLE, _LEAST):
            near = self._loss(disturb(share=share, kept=self._kept))
            if near is None:
                return True
            if near == self._value and not rounded and self._far(far, self._value):
                return False  # by steps: what is chosen by it has no derivative
            if abs(far - near) <= 10 * abs(near - self._value) or not self._differ(far, near):
                return False
            if rounded or not self._differ(near, self._value):
                return True
            far = near  # noise of another shape is now and then near by chance, but not twice
        return True

    def _is_chosen_by(self, group: Sequence[Suspect]) -> bool:
        """Whether the loss stays what it is to the bit, where what is chosen does."""
        if any(map(_rounds, group)):
            return False
        return all(
            self._loss(Disturb(group, _MUCH, seed, self._choices)) == self._value
            for seed in range(_TRIES)
        )

    @cached_property
    def _choices(self) -> Kept:
        """What is kept, and what the run chooses as it is."""
        keep = Keep([*self._allowed, *choices(self._trace)])
        with self._precision:
            self._of(self._step, keep)
        return keep.values

    def _by_steps(self, disturb: Callable[..., Disturb], much: float) -> bool:
        """Whether less of a disturbance does to the bit the same, or nothing.

        What is chosen by a value has no derivative by it.
        """
        seen = _LESS * abs(much - self._value) > _SEEN * self._rounding * abs(self._value)
        less = self._loss(disturb(share=_MUCH * (1 - _LESS), kept=self._kept)) if seen else None
        return less is not None and less in (much, self._value)

    def _loss(self, observer: Disturb) -> float | None:
        try:
            with self._precision:
                return self._of(self._step, observer)
        except Exception:  # the model does not take what it is given
            return None
        finally:
            if observer.writes:
                self._step.state.restore(thorough=True)

    def _of(self, step: Step, observer: Observer) -> float:
        change = step.awake() if self._is_awake else None
        return step.run(observer, change)[1].detach().double().item()

    def _differ(self, a: float, b: float, times: float = 1.0) -> bool:
        if a != a or b != b:
            return (a != a) != (b != b)
        return abs(a - b) > times * self._rounding * max(abs(a), abs(b), 1e-3)

    def _far(self, a: float, b: float) -> bool:
        """Whether losses differ by so much that a small share of it would still be seen."""
        return self._differ(a, b, times=_MUCH / _LITTLE)

    @property
    def _rounding(self) -> float:
        return {2: 2**-5, 4: 2**-19}.get(self._smallest, 2**-47)


def _rounds(suspect: Suspect) -> bool:
    return suspect.cause is Cause.QUANTIZATION
