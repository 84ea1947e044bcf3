"""Stops beside which the same value stands with its history, by what is computed.

As :mod:`.straight` has it from the source of a line, but whoever stops it: ``x + sg(q - x)``, where
``sg`` is somebody's function, or several stops on one line, which are not of one kind.  And however
it comes there: ``lp[mask] - old[mask]``, where ``old`` is ``lp``, stopped, is zero whatever the
parameters are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from .cuts import Suspect
from .trace import Call, Trace, made_by, own_name, result, tensor_of

Terms = Mapping[tuple[int, bool], int]
"""Of a sum: how often each tensor is in it, and as what: with its history, or stopped."""

_SUMS = {"add": 1, "__add__": 1, "__radd__": 1, "sub": -1, "subtract": -1, "__sub__": -1}
_TURNED = {"rsub", "__rsub__"}
_RATIOS = {"div", "true_divide", "divide", "__truediv__"}
_VIEWS = {"reshape", "view", "view_as", "permute", "transpose", "unsqueeze", "squeeze", "clone",
          "contiguous", "flatten", "movedim"}  # fmt: skip
"""Functions that put what they are given in another order, at most."""

_PICKS = {*_VIEWS, "__getitem__", "select", "narrow", "gather", "index_select", "masked_select",
          "take_along_dim", "unbind", "chunk", "split"}  # fmt: skip
"""Functions that give some of the numbers that they are given."""

_PASSING = {*_SUMS, *_TURNED, *_VIEWS}

_HELD = {"sub", "sub_", "subtract", "__sub__", "__isub__", *_TURNED,
         *_RATIOS, "div_", "__itruediv__"}  # fmt: skip
"""Functions that give a number which is known, of two that are the same."""


class Cancelled:
    """The sums of a run, and what goes into them."""

    def __init__(
        self, trace: Trace, nudged: Trace, suspects: Sequence[Suspect], projected: bool
    ) -> None:
        """Made of a run, and of the same one with other parameters.

        ``projected`` is whether all that the model returns goes into the loss.
        """
        self._trace, self._nudged, self._projected = trace, nudged, projected
        self._stops = {
            id(each.call)
            for each in suspects
            if each.where[0] == "out" and _is_passed_on(trace, each.call)
        }
        self._terms: dict[int, Terms] = {}
        self._users: dict[int, list[Call]] = {}
        self._made = {tensor_of(each) for call in trace.calls for each in made_by(call)}
        for call in trace.calls if suspects else ():
            self._note(call)

    def covers(self, suspect: Suspect) -> bool:
        """Whether all that becomes of a stopped value takes away, or is divided by, its own."""
        if suspect.where[0] != "out":
            return False
        waiting = [tensor_of(suspect.call.outs[suspect.where[1]])]
        seen = set(waiting)
        own = {number for number, _ in self._of(waiting[0])}
        found = False
        while waiting:
            number = waiting.pop()
            for call in self._users.get(number, ()):
                made = [each for each in made_by(call) if each.floating or each.narrow]
                if self._cancels(call, own) or self._is_the_same(call, number, suspect):
                    found = True
                    continue
                learns = any(each.attached for each in made)
                if call.leaves or call.written or (learns and own_name(call) not in _PASSING):
                    return False
                if call.function is result and self._projected:
                    return False
                new = {tensor_of(each) for each in made} - seen
                seen |= new
                waiting += new
        return found

    def _note(self, call: Call) -> None:
        """What a call returns, as a sum."""
        ins = list(map(tensor_of, call.ins))
        for number in ins:
            self._users.setdefault(number, []).append(call)
        if len(call.outs) != 1 or call.scaled:
            return
        name, number = own_name(call), tensor_of(call.outs[0])
        given = list(map(self._of, ins))
        if id(call) in self._stops:
            self._terms[number] = {(n, True): times for (n, _), times in given[0].items()}
        elif len(given) == 1 and name in _VIEWS:
            self._terms[number] = given[0]
        elif len(given) == 2 and name in _SUMS:
            self._terms[number] = _sum(given[0], given[1], _SUMS[name])
        elif len(given) == 2 and name in _TURNED:
            self._terms[number] = _sum(given[1], given[0], -1)

    def _of(self, number: int) -> Terms:
        return self._terms.get(number, {(number, False): 1})

    def _cancels(self, call: Call, own: Set[int]) -> bool:
        if call.written or len(call.outs) != 1:
            return False
        return _cancels(self._of(tensor_of(call.outs[0])), own) or self._is_ratio(call, own)

    def _is_ratio(self, call: Call, own: Set[int]) -> bool:
        """Whether a value is divided by itself, stopped: what is stopped is made of ``own``."""
        if own_name(call) not in _RATIOS or len(call.ins) != 2:
            return False
        over, under = map(self._of, map(tensor_of, call.ins))
        meant = any((number, False) in over and (number, True) in under for number in own)
        return meant and under == {(n, True): times for (n, _), times in over.items()}

    def _is_the_same(self, call: Call, number: int, suspect: Suspect) -> bool:
        """Whether a stopped value is held against the same one, made of what was stopped.

        In both runs, so that it is not by chance.  What was stopped may not be made of that one in
        turn: a mean of one number is that number.
        """
        twin = self._nudged.by_key.get(call.key)
        if own_name(call) not in _HELD or call.scaled or len(call.ins) != 2 or twin is None:
            return False
        ours, theirs = (
            [trace.digest(sight) for sight in each.ins]
            for trace, each in ((self._trace, call), (self._nudged, twin))
        )
        if ours[0] != ours[1] or len(theirs) != 2 or theirs[0] != theirs[1] or ours == theirs:
            return False
        others = [tensor_of(each) for each in call.ins if each.attached]
        if len(others) != 1 or others[0] == number:
            return False
        stopped = {tensor_of(s) for s in suspect.call.ins if s.attached} & self._made
        return others[0] in self._from(stopped, _PICKS) or (
            not self._behind({others[0]}).isdisjoint(self._from(stopped) & self._made)
            and others[0] not in self._behind(stopped)
        )

    def _from(self, numbers: Set[int], names: Set[str] | None = None) -> Set[int]:
        """These, and what they are made of alone, by functions with such names."""
        found = set(numbers)
        for call in reversed(self._trace.calls):
            if not found.isdisjoint(map(tensor_of, call.outs)):
                given = {tensor_of(each) for each in call.ins if each.floating}
                if len(given) == 1 and (names is None or own_name(call) in names):
                    found |= given
        return found

    def _behind(self, numbers: Set[int]) -> Set[int]:
        """These, and all that they are made of."""
        found = set(numbers)
        for call in reversed(self._trace.calls):
            if not found.isdisjoint(map(tensor_of, made_by(call))):
                found.update(tensor_of(each) for each in call.ins if each.floating)
        return found


def _is_passed_on(trace: Trace, call: Call) -> bool:
    return (
        len(call.ins) == len(call.outs) == 1
        and not call.written
        and trace.digest(call.ins[0]) == trace.digest(call.outs[0])
    )


def _sum(one: Terms, other: Terms, sign: int) -> Terms:
    terms = dict(one)
    for term, times in other.items():
        terms[term] = terms.get(term, 0) + sign * times
    return terms


def _cancels(terms: Terms, own: Set[int]) -> bool:
    """Whether one of ``own`` is taken away.  That another is excuses none: ``a - a' + b'``."""
    return any(
        (times := terms.get((number, True))) and terms.get((number, False)) == -times
        for number in own
    )
