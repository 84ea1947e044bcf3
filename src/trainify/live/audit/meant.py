"""Stops that are meant, by what is computed: which kinds there are, and which site is of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from .against import (
    REFERENCE,
    is_given_twice,
    is_held_against,
    is_of_a_return,
    is_of_its_own,
    is_of_losses,
    is_scored,
)
from .cancelled import Cancelled
from .cuts import Suspect, by_site
from .explained import is_explained
from .given import given_in
from .heads import is_of_a_head
from .learning import Leaves, learning_by
from .mirrored import is_mirrored
from .remainders import is_of_a_remainder
from .report import Cause
from .running import moves_buffers
from .runs import Step
from .stages import is_of_a_stage
from .steps import is_of_a_sample, is_of_a_step
from .trace import Trace

_SAID = (Cause.GRAD_MODE, Cause.DETACH, Cause.DATA)
"""By which somebody says that a value is to have no gradient."""

_SEVERAL = 16
"""Stops at one site, up to which each is judged for itself as well."""


class Meant:
    """What a run of a step, and one with other parameters, show of its stops."""

    def __init__(self, step: Step, trace: Trace, nudged: Trace) -> None:
        self._step, self._trace, self._nudged = step, trace, nudged
        self._whole = not step.projected

    def parts_of_the_loss(
        self, suspects: Sequence[Suspect], got: Mapping[str, bool]
    ) -> Iterator[Suspect]:
        """Stops of what learns by another way, or serves as a reference by its name.

        A loss holds what learns against what is stopped there.  ``got`` is which parameters get a
        gradient.
        """
        beside = Cancelled(self._trace, self._nudged, suspects, self._step.projected)
        for group in by_site([each for each in suspects if not each.weak]):
            names = {name for each in group for name in each.parameters}
            rest = [name for name in names if not got[name]]
            stops = [e for e in group if e.cause in (*_SAID, Cause.OPAQUE) or e.hidden]
            straight = [each for each in stops if beside.covers(each)]
            yield from straight
            group = [each for each in group if each not in straight]
            if not group or any(e.cause not in _SAID or e.where[0] != "out" for e in group):
                continue
            if not names or not all(map(REFERENCE.search, rest)):
                continue
            learns = not rest
            if self._is_part(group, suspects, learns):
                yield from group
            elif 1 < len(group) <= _SEVERAL:  # a line may stop this and that
                yield from (each for each in group if self._is_part([each], suspects, learns))

    def _is_part(self, group: Sequence[Suspect], suspects: Sequence[Suspect], learns: bool) -> bool:
        """Whether a site is of one kind, of which most are so where all behind it ``learns``."""
        step, trace, whole = self._step, self._trace, self._whole
        judged = step, trace, group, suspects
        if is_of_its_own(trace, group) and is_held_against(*judged, whole):
            return True
        return learns and (
            is_explained(trace, group)
            or moves_buffers(trace, group, self._buffers)
            or is_of_losses(trace, group)
            or is_given_twice(trace, group, self._sizes.keys(), self._behind)
            or is_of_a_step(trace, group, self._sizes.keys())
            or (whole and is_of_a_head(step, trace, group, self._sizes))
            or (whole and is_of_a_return(trace, group, self._given))
            or is_of_a_remainder(trace, group, self._given)
            or is_scored(trace, group)
            or (whole and is_mirrored(trace, group, self._sizes.keys(), self._behind))
            or (whole and is_of_a_stage(*judged, self._given))
        )

    def of_samples(self, suspects: Sequence[Suspect]) -> list[Suspect]:
        """Those at which nothing ends: a gradient of an input ends where that was taken.

        What comes before them goes on, other than before what is allowed.
        """
        bare = [e for e in suspects if not e.parameters and e.where[0] == "out"]
        bare = [e for e in bare if e.cause in _SAID and e.call.function is not torch.autograd.grad]
        return bare if bare and is_of_a_sample(self._trace, suspects, self._sizes.keys()) else []

    @cached_property
    def _known(self) -> list[tuple[int, Tensor]]:
        """The tensors that were there from the start, by :func:`~.trace.tensor_of`."""
        return list(self._step.known(self._trace))

    @cached_property
    def _sizes(self) -> dict[int, int]:
        """How many numbers each parameter holds."""
        return {n: tensor.numel() for n, tensor in self._known if isinstance(tensor, nn.Parameter)}

    @cached_property
    def _buffers(self) -> set[int]:
        """The buffers of the model."""
        own = {id(buffer) for buffer in self._step.model.buffers()}
        return {number for number, tensor in self._known if id(tensor) in own}

    @cached_property
    def _behind(self) -> dict[int, Leaves]:
        """What each tensor learns by."""
        return learning_by(self._trace)

    @cached_property
    def _given(self) -> set[int]:
        """What the model is given."""
        model = self._step.model
        own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        return given_in(self._trace, {n for n, tensor in self._known if id(tensor) in own})
