"""Stops beside which the same value stands with its history, by what is computed.

As :mod:`.straight` has it from the source of a line, but whoever stops it: ``x + sg(q - x)``, where
``sg`` is somebody's function, or several stops on one line, which are not of one kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from .cuts import Suspect
from .trace import Call, Trace, own_name, tensor_of

Terms = Mapping[tuple[int, bool], int]
"""Of a sum: how often each tensor is in it, and as what: with its history, or stopped."""

_SUMS = {"add": 1, "__add__": 1, "__radd__": 1, "sub": -1, "subtract": -1, "__sub__": -1}
_TURNED = {"rsub", "__rsub__"}
_RATIOS = {"div", "true_divide", "divide", "__truediv__"}
_VIEWS = {"reshape", "view", "view_as", "permute", "transpose", "unsqueeze", "squeeze", "clone",
          "contiguous", "flatten", "movedim"}  # fmt: skip
"""Functions that put what they are given in another order, at most."""

_PASSING = {*_SUMS, *_TURNED, *_VIEWS}


class Cancelled:
    """The sums of a run, and what goes into them."""

    def __init__(self, trace: Trace, suspects: Iterable[Suspect]) -> None:
        self._stops = {
            id(each.call)
            for each in suspects
            if each.where[0] == "out" and _is_passed_on(trace, each.call)
        }
        self._terms: dict[int, Terms] = {}
        self._users: dict[int, list[Call]] = {}
        for call in trace.calls if self._stops else ():
            self._note(call)

    def covers(self, suspect: Suspect) -> bool:
        """Whether all that becomes of a stopped value takes away, or is divided by, its own."""
        if id(suspect.call) not in self._stops or suspect.where[0] != "out":
            return False
        waiting, seen = [tensor_of(suspect.call.outs[0])], set[int]()
        own = {number for number, _ in self._of(waiting[0])}
        found = False
        while waiting:
            number = waiting.pop()
            for call in self._users.get(number, ()):
                if call.written or len(call.outs) != 1:
                    return False
                made = tensor_of(call.outs[0])
                if _cancels(self._of(made), own) or self._is_ratio(call, own):
                    found = True
                elif own_name(call) not in _PASSING:
                    return False
                elif made not in seen:
                    seen.add(made)
                    waiting.append(made)
        return found

    def _note(self, call: Call) -> None:
        """What a call returns, as a sum."""
        ins = list(map(tensor_of, call.ins))
        for number in ins:
            self._users.setdefault(number, []).append(call)
        if len(call.outs) != 1:
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

    def _is_ratio(self, call: Call, own: Set[int]) -> bool:
        """Whether a value is divided by itself, stopped: what is stopped is made of ``own``."""
        if own_name(call) not in _RATIOS or len(call.ins) != 2:
            return False
        over, under = map(self._of, map(tensor_of, call.ins))
        meant = any((number, False) in over and (number, True) in under for number in own)
        return meant and under == {(n, True): times for (n, _), times in over.items()}


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
