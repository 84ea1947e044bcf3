"""Stops beside which the same value stands with its history, by what is computed.

As :mod:`.straight` has it from the source of a line, but whoever stops it: ``x + sg(q - x)``, where
``sg`` is somebody's function, or several stops on one line, which are not of one kind.  And however
it comes there: ``lp[mask] - old[mask]``, where ``old`` is ``lp``, stopped, is zero whatever the
parameters are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cached_property

from .cuts import MISSING, Suspect
from .functions import LINEAR, PICKS, SUMS, VIEWS
from .places import Place
from .report import Cause
from .trace import Call, Trace, is_passed_on, made_by, own_name, result, tensor_of

Terms = Mapping[tuple[int, bool], int]
"""Of a sum: how often each tensor is in it, and as what: with its history, or stopped."""

_SUMS = {"add": 1, "__add__": 1, "__radd__": 1, "sub": -1, "subtract": -1, "__sub__": -1}
_TURNED = {"rsub", "__rsub__"}
_RATIOS = {"div", "true_divide", "divide", "__truediv__"}
_STOPS = {"detach", "data"}
_ALIASES = {*PICKS, *_STOPS, "view_as", "expand", "expand_as", "T", "mT", "t", "__iter__"}

_SETS = {"data", "set_"}

_PASSING = {*_SUMS, *_TURNED, *VIEWS}

_EACH = {*VIEWS, *_SUMS, *_TURNED, *_RATIOS, *_STOPS, "mul", "multiply", "__mul__", "__rmul__",
         "__rtruediv__", "exp", "log", "neg", "__neg__", "pow", "__pow__", "__rpow__", "square",
         "sqrt", "sigmoid", "logsigmoid", "tanh", "abs", "clamp", "clip", "clamp_min", "clamp_max",
         "minimum", "maximum", "min", "max", "where", "masked_fill", "to", "float", "double",
         "expm1", "log1p", "nan_to_num"}  # fmt: skip
"""Functions of which each number is made of those in the same place."""

_ROW_BY_ROW = {*_EACH, *PICKS}

_OF_TWO = {"min", "max"}
"""Functions that are of that kind where they take two tensors."""

_DISTRIBUTIONS = {"softmax", "log_softmax"}

_PRODUCTS = {"mul", "multiply", "__mul__", "__rmul__"}

_MEANS = {"sum", "mean"}

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
        self._suspects = suspects
        self._stops = {
            id(each.call)
            for each in suspects
            if each.where[0] == "out" and is_passed_on(trace, each.call)
        }
        self._position = {id(call): at for at, call in enumerate(trace.calls)}
        self._back = [
            (self._position[id(each.call)], tensor_of(sight))
            for each in suspects
            if each.cause is Cause.OPAQUE
            for sight in made_by(each.call)
        ]
        """What comes back into torch, and when."""
        self._terms: dict[int, Terms] = {}
        self._users: dict[int, list[Call]] = {}
        self._made = {tensor_of(each) for call in trace.calls for each in made_by(call)}
        for call in trace.calls if suspects else ():
            self._note(call)

    def covers(self, suspect: Suspect) -> bool:
        """Whether all that becomes of a stopped value takes away, or is divided by, its own.

        Where values leave torch, that is all that comes back after it.
        """
        what, i = suspect.where
        call = suspect.call
        at = self._position.get(id(call))
        if at is None:  # what a checkpoint computes again
            return False
        if what == "out":
            first = {tensor_of(call.outs[i])}
        elif what == "written" and i in call.written:
            first = self._sharing({tensor_of(call.written[i][0])})
        elif what == "in" and suspect.hidden and suspect.kind == MISSING:
            first, at = {tensor_of(call.ins[i])}, at - 1  # it was written before the call
        else:
            return False
        waiting = [(number, at) for number in first]
        since = dict(waiting)
        own = {number for each in first for number, _ in self._of(each)}
        stopped = self._stopped(suspect)
        sums = set[int]()
        """With what learns, of which nothing has been taken away so far."""
        found = False
        while waiting:
            number, position = waiting.pop()
            for user in self._users.get(number, ()):
                at = self._position[id(user)]
                if at <= position:
                    continue
                made = [each for each in made_by(user) if each.floating or each.narrow]
                if (
                    self._cancels(user, own)
                    or self._is_the_same(user, number, stopped)
                    or self._weighs(user, stopped)
                ):
                    found = True
                    continue
                if any(each.attached for each in made) and own_name(user) not in _PASSING:
                    return False
                if user.function is result and (self._projected or number in sums):
                    return False
                new = [(tensor_of(each), at) for each in made]
                sums.update(tensor_of(each) for each in made if each.attached)
                written = {tensor_of(each) for each, _ in user.written.values()}
                sets = own_name(user) in _SETS  # which lets go what it has shared
                new += [(n, at) for n in (written if sets else self._sharing(written))]
                if user.leaves:
                    new += [(n, p) for p, n in self._back if p > at]
                for other, moment in new:
                    if moment < since.get(other, moment + 1):
                        since[other] = moment
                        waiting.append((other, moment))
        return found

    def _sharing(self, numbers: Set[int]) -> set[int]:
        """These, and what may lie in the same memory."""
        return set(numbers).union(*(self._alike.get(number, ()) for number in numbers))

    @cached_property
    def _alike(self) -> dict[int, set[int]]:
        """Of each tensor that has an alias, all of them."""
        found: dict[int, set[int]] = {}
        for call in self._trace.calls:
            sets = own_name(call) in _SETS
            if call.ins and (sets or own_name(call) in _ALIASES):
                given = call.ins if sets else call.ins[:1]
                numbers = {*map(tensor_of, given), *map(tensor_of, call.outs)}
                alike = numbers.union(*(found.get(number, ()) for number in numbers))
                found.update(dict.fromkeys(alike, alike))
        return found

    def _stopped(self, suspect: Suspect) -> set[int]:
        """What a suspect stops; of what comes back into torch, all that has left it before.

        What is written unseen is stopped in the same place.
        """
        call = suspect.call
        calls = [call] if not suspect.hidden else self._stopping_at(suspect.place)
        given: Set[int] = {tensor_of(s) for each in calls for s in each.ins if s.attached}
        if not given:
            before = self._trace.calls[: self._position[id(call)]]
            left = {tensor_of(each) for user in before if user.leaves for each in user.ins}
            given = self._from(left, {*PICKS, *_STOPS})
        return {*given} & self._made

    def _stopping_at(self, place: Place) -> list[Call]:
        return [e.call for e in self._suspects if e.place == place and not e.hidden]

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
            self._terms[number] = _stopped(given[0])
        elif len(given) == 1 and name in VIEWS:
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
        terms = self._of(tensor_of(call.outs[0]))
        return _cancels(terms, own) or self._is_of(terms, own) or self._is_ratio(call, own)

    def _is_of(self, terms: Terms, own: Set[int]) -> bool:
        """Whether a mean of values, or a sum, has the gradient of the values themselves.

        ``a.mean().detach() + a - a.detach()``, as the ratio of a sequence has that of each token.
        """
        values = [number for number in own if (number, True) in terms]
        through = [n for (n, stopped), t in terms.items() if not stopped]
        return bool(values) and any(
            terms[n, False] and terms.get((n, True)) == -terms[n, False]
            and all(self._is_mean_of(each, n) for each in values)
            for n in through
        )  # fmt: skip

    def _is_mean_of(self, number: int, source: int) -> bool:
        """Whether all that learns in it comes from there, in proportion, and is summed up."""
        summed = False
        while number != source:
            call = self._makers.get(number)
            learning = [tensor_of(s) for s in call.ins if s.attached] if call is not None else []
            if call is None or len(learning) != 1 or own_name(call) not in LINEAR:
                return False
            summed |= own_name(call) in _MEANS
            (number,) = learning
        return summed

    def _is_ratio(self, call: Call, own: Set[int]) -> bool:
        """Whether a value is divided by itself, stopped: what is stopped is made of ``own``."""
        if own_name(call) not in _RATIOS or len(call.ins) != 2:
            return False
        over, under = map(self._of, map(tensor_of, call.ins))
        meant = any((number, False) in over and (number, True) in under for number in own)
        return meant and under == _stopped(over)

    def _is_the_same(self, call: Call, number: int, stopped: set[int]) -> bool:
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
        return others[0] in self._from(stopped, PICKS) or (
            not self._behind({others[0]}).isdisjoint(self._from(stopped) & self._made)
            and others[0] not in self._behind(stopped)
        )

    def _weighs(self, call: Call, stopped: Set[int]) -> bool:
        """Whether a term of the loss has a weight that is made, row by row, of what it is made of.

        As the ratio that log-probabilities are weighed by, or how sure a prediction is, in a focal
        loss: both are an ``exp``.  In the middle of a model it would be a gate.  Over a whole
        distribution nothing is learned by log-probabilities that are weighed by how likely they
        are.
        """
        if own_name(call) not in _PRODUCTS or len(call.outs) != 1 or len(call.ins) != 2:
            return False
        terms = {tensor_of(each) for each in call.ins if each.attached}
        one, other = call.ins
        if len(terms) != 1 or not (one.several and other.several):
            return False
        if self._trace.digest(one) == self._trace.digest(other):
            return False
        if any(own_name(self._makers[n]) in _DISTRIBUTIONS for n in self._rows(terms, _EACH)):
            return False
        common = self._rows(terms, _ROW_BY_ROW) & self._rows(stopped, _ROW_BY_ROW)
        (weight,) = {tensor_of(each) for each in call.ins} - terms or {0}
        return "exp" in self._made_by(weight, common) and self._is_summed(tensor_of(call.outs[0]))

    def _rows(self, numbers: Set[int], names: Set[str]) -> set[int]:
        """What learns, without being a parameter, of which these are made in the same places."""
        found, attached = set(numbers), set(numbers)
        for call in reversed(self._trace.calls):
            name = own_name(call)
            if found.isdisjoint(map(tensor_of, made_by(call))) or name not in names:
                continue
            given = [each for each in call.ins if each.floating]
            if name in _OF_TWO and len(given) != 2:
                continue
            found.update(map(tensor_of, given))
            attached.update(tensor_of(each) for each in given if each.attached and not each.fresh)
        return attached & self._made

    def _made_by(self, number: int, sources: Set[int]) -> set[str]:
        """The names of the functions by which it is made, row by row, of one of the sources."""
        found, names = {number}, set[str]()
        for call in reversed(self._trace.calls):
            made = set(map(tensor_of, made_by(call)))
            if found.isdisjoint(made - sources) or own_name(call) not in _ROW_BY_ROW:
                continue
            names.add(own_name(call))
            found.update(tensor_of(each) for each in call.ins if each.floating)
        return names if not found.isdisjoint(sources) else set()

    @cached_property
    def _makers(self) -> dict[int, Call]:
        return {tensor_of(each): call for call in self._trace.calls for each in made_by(call)}

    def _is_summed(self, number: int) -> bool:
        """Whether the loss is linear in what becomes of it."""
        terms = {number}
        for call in self._trace.calls:
            taken = [tensor_of(each) for each in call.ins if each.attached]
            if terms.isdisjoint(taken) or call.function is result:
                continue
            made = {tensor_of(each) for each in made_by(call) if each.attached}
            if made and own_name(call) not in (SUMS if len(taken) > 1 else LINEAR):
                return False
            terms |= made
        return not self._projected

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


def _stopped(terms: Terms) -> Terms:
    found: dict[tuple[int, bool], int] = {}
    for (number, _), times in terms.items():
        found[number, True] = found.get((number, True), 0) + times
    return found


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
