"""Values that one stage is taught by a loss of its own, and that the next stage takes as they are.

The boxes that a detector proposes, and its queries, the guess that a model goes on to refine: a
loss holds the value itself against what was given, and beside that the value goes on, stopped.
What is picked by scores that are taught so goes on as well.  Where no loss is about the value, only
about what other layers make of it, most of a model may have been cut off from it by mistake.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from .against import DIFFERENCES, is_loss
from .cuts import MISSING, Suspect
from .parted import Parted
from .report import Cause
from .runs import Step
from .trace import Call, Trace, made_by, own_name, tensor_of

_SUMS = {"add", "add_", "__add__", "__radd__", "__iadd__", "sub", "__sub__", "stack"}
"""By which the terms of a loss come together."""

_BESIDE = {"stack", "cat", "concat", "concatenate", "hstack", "vstack"}
"""Functions that put tensors beside each other in one."""


def is_of_a_stage(
    step: Step,
    trace: Trace,
    group: Sequence[Suspect],
    suspects: Sequence[Suspect],
    given: Set[int],
) -> bool:
    """Whether that is what all suspects at one site stop.

    ``suspects`` are all there are; ``given`` is what the model is given.
    """
    if any(each.where[0] != "out" for each in group):
        return False
    stages = _Stages(step, trace, group, suspects, given)
    return all(map(stages.covers, group))


class _Stages:
    def __init__(
        self,
        step: Step,
        trace: Trace,
        group: Sequence[Suspect],
        suspects: Sequence[Suspect],
        given: Set[int],
    ) -> None:
        self._step, self._group, self._suspects = step, group, suspects
        self._trace = trace
        self._calls = trace.calls
        self._makers: dict[int, Call] = {}
        for call in trace.calls:
            for sight in call.outs:
                self._makers.setdefault(tensor_of(sight), call)
        self._weights = set[int]()
        """What is made of parameters alone."""
        self._given = given
        self._stopped = {tensor_of(each.call.outs[each.where[1]]) for each in group}
        for call in trace.calls:
            ins = {tensor_of(sight): sight for sight in call.ins}
            outs = made_by(call)
            self._weights |= {n for n, s in ins.items() if s.fresh}
            if ins and self._weights.issuperset(ins):
                self._weights.update(map(tensor_of, outs))

    def covers(self, suspect: Suspect) -> bool:
        """Whether a loss of its own teaches what is stopped, or by what scores that is picked."""
        origin, picked_by = self._origin(suspect.call)
        behind, taught = self._behind(origin)
        if behind is None:
            return False
        return taught or any(
            scores and behind.issuperset(scores) and self._behind(scores)[1]
            for scores in map(self._scores, picked_by)
        )

    def _origin(self, call: Call) -> tuple[list[int], list[int]]:
        """What a call takes, and what that is made of alone, back from there.

        And the integers that it is picked by.
        """
        found: list[int] = []
        integers: list[int] = []
        while True:
            learning = {tensor_of(sight) for sight in call.ins if sight.attached}
            if len(learning) != 1 or not self._weights.isdisjoint(learning):
                return found, integers
            (number,) = learning
            integers += [tensor_of(sight) for sight in call.ins if sight.whole]
            found.append(number)
            maker = self._makers.get(number)
            if maker is None:
                return found, integers
            call = maker

    def _scores(self, integer: int) -> list[int]:
        """What integers were chosen by, as :meth:`_origin` has it; nothing where it is unclear."""
        waiting, seen = [integer], set[int]()
        while waiting:
            number = waiting.pop()
            call = self._makers.get(number)
            if call is None or number in seen:
                continue
            seen.add(number)
            if any(sight.attached for sight in call.ins):
                return self._origin(call)[0]
            waiting += [tensor_of(sight) for sight in call.ins if sight.whole]
        return []

    def _behind(self, origin: Sequence[int]) -> tuple[set[int] | None, bool]:
        """What is made of values with their history, and whether a loss teaches them as they are.

        None where that meets what becomes of the stopped ones otherwise than as terms of a loss, or
        beside each other in one tensor, of which parts are taken; and where nothing learns by the
        stopped ones, as another stage does.
        """
        found, as_it_is = set(origin), set(origin)
        following = set(self._stopped)
        """What becomes of stopped values."""
        both: set[int] = set()
        of_losses: set[int] = set()
        ends = set[int]()
        """Losses, with terms that are made of stopped values."""
        goes_on = False
        parted = self._parted(origin)
        for call in self._calls:
            numbers = {tensor_of(sight) for sight in call.ins}
            made = made_by(call)
            learning = {tensor_of(sight) for sight in call.ins if sight.attached}
            values = {tensor_of(sight) for sight in call.ins if sight.floating}
            if values and values <= both and parted is not None and not call.written:
                for out in call.outs:
                    of_found, of_next = parted.behind(call, out)
                    part = {tensor_of(out)}
                    both |= part if of_found and of_next else set()
                    found |= part if of_found else set()
                    following |= part if of_next else set()
                    as_it_is |= part if of_found and learning <= as_it_is else set()
                continue
            before = not following.isdisjoint(numbers)
            if before:
                following.update(tensor_of(each) for each in made if each.floating)
            outs = {tensor_of(sight) for sight in made if sight.attached}
            terms = [sight for sight in call.ins if sight.attached]
            joins = own_name(call) in _SUMS and not any(sight.several for sight in terms)
            if before and (joins or learning <= found | ends):
                ends |= outs
            elif before and outs:
                goes_on = True
            if found.isdisjoint(numbers) or not outs:
                continue
            if before and own_name(call) in _BESIDE and numbers.isdisjoint(of_losses):
                both |= outs
                found |= outs
                if learning <= as_it_is | following:
                    as_it_is |= outs
                continue
            terms = [s for s in call.ins if s.attached and tensor_of(s) in found]
            if before:
                if own_name(call) in _SUMS and not any(sight.several for sight in terms):
                    continue
                return None, False
            through_layers = not self._weights.isdisjoint(numbers)
            if through_layers and not of_losses.isdisjoint(numbers):
                return None, False
            direct = learning <= as_it_is
            met = is_loss(call) or own_name(call) in DIFFERENCES
            teaches = direct and met and not self._given.isdisjoint(numbers - found)
            if teaches or not of_losses.isdisjoint(numbers):
                of_losses |= outs
            if direct:
                as_it_is |= outs
            found |= outs
        return (found, bool(of_losses)) if goes_on else (None, False)

    def _parted(self, origin: Sequence[int]) -> Parted | None:
        """What tells parts of a tensor apart; None where that cannot be tried."""
        first = self._makers.get(origin[-1]) if origin else None
        if first is None:
            return None
        at = [tensor_of(sight) for sight in first.outs].index(origin[-1])
        source = Suspect(Cause.DETACH, MISSING, first, ("out", at))
        return Parted(self._step, self._trace, source, self._group, self._suspects)
