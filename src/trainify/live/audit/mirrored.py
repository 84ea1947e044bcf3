"""Terms of a loss that are computed twice, each time with another side stopped.

``kl(p.detach(), q) + 0.1 * kl(p, q.detach())``: what is stopped here learns there, of the same
values, in the same functions.  Whoever writes that weighs both sides, or gives each of two networks
the half that is its own.  Behind what both compute there are no layers that only one goes through.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set

from .cuts import Suspect
from .functions import SUMS
from .learning import Leaves, leaves_lost
from .trace import Call, Sight, Trace, made_by, own_name, result, tensor_of

_EITHER_WAY = {"sub", "__sub__", "rsub", "__rsub__", "add", "__add__", "__radd__", "mul",
               "__mul__", "__rmul__", "mse_loss", "l1_loss", "smooth_l1_loss",
               "cosine_similarity"}  # fmt: skip
"""Functions of two sides of which it does not matter, but for a sign, which comes first."""


def is_mirrored(
    trace: Trace, group: Sequence[Suspect], parameters: Set[int], behind: Mapping[int, Leaves]
) -> bool:
    """Whether all that becomes of what suspects at one site stop is such a term.

    ``parameters`` are given as :func:`~.trace.tensor_of` has them; ``behind`` is what each tensor
    learns by.
    """
    return _Mirror(trace, group, parameters, behind).covers()


class _Mirror:
    def __init__(
        self,
        trace: Trace,
        group: Sequence[Suspect],
        parameters: Set[int],
        behind: Mapping[int, Leaves],
    ) -> None:
        self._trace = trace
        self._parameters = parameters
        self._behind = behind
        self._lost = leaves_lost(behind, group)
        """What is made of stopped values alone, or is computed twice; what it would learn by."""
        self._terms = set[int]()
        """What only one of the two becomes."""
        self._computed: dict[Hashable, list[Call]] = {}
        for call in _of_the_loss(trace):
            self._computed.setdefault(self._what(call), []).append(call)

    def covers(self) -> bool:
        twice = False
        for call in self._trace.calls:
            numbers = set(map(tensor_of, call.ins))
            taken = numbers & self._lost.keys()
            of_terms = not self._terms.isdisjoint(numbers)
            if not (taken or of_terms) or call.function is result:
                continue
            attached = [tensor_of(sight) for sight in made_by(call) if sight.attached]
            lost = Leaves().union(*(self._lost[number] for number in taken))
            if not attached:
                made = (tensor_of(each) for each in made_by(call) if each.floating)
                self._lost.update(dict.fromkeys(made, lost))
            elif not of_terms and self._is_made_twice(call):
                twice = True
                self._lost.update(dict.fromkeys(attached, lost))
            elif self._is_term(call):
                self._terms.update(attached)
            else:
                return False
        return twice

    def _is_term(self, call: Call) -> bool:
        """Whether it goes on with one value that was computed twice, or adds such up."""
        learning = {tensor_of(sight) for sight in call.ins if sight.attached}
        stopped = {tensor_of(s) for s in call.ins if not s.attached} & self._lost.keys()
        layer = not self._parameters.isdisjoint(map(tensor_of, call.ins))
        return not (stopped or layer) and (len(learning) == 1 or own_name(call) in SUMS)

    def _is_made_twice(self, call: Call) -> bool:
        """Whether the same is made of the same values, of which those learn that do not here."""
        others = self._computed.get(self._what(call), ())
        return any(other is not call and self._learns(call.ins, other.ins) for other in others)

    def _learns(self, ins: Iterable[Sight], others: Iterable[Sight]) -> bool:
        left = list(others)
        for sight in ins:
            lost = self._lost.get(tensor_of(sight))
            found = [e for e in left if self._trace.digest(e) == self._trace.digest(sight)]
            if lost is not None:
                found = [e for e in found if e.attached and lost <= self._behind[tensor_of(e)]]
            if not found:
                return False
            left.remove(found[0])
        return True

    def _what(self, call: Call) -> Hashable:
        """What is computed by a call: the function, and the values."""
        values = [self._trace.digest(sight) for sight in call.ins]
        return call.function, tuple(sorted(values) if own_name(call) in _EITHER_WAY else values)


def _of_the_loss(trace: Trace) -> Iterable[Call]:
    """The calls that the history of the result goes back to."""
    wanted = set[int]()
    for call in reversed(trace.calls):
        made = {tensor_of(sight) for sight in made_by(call) if sight.attached}
        if call.function is result or not wanted.isdisjoint(made):
            wanted.update(tensor_of(sight) for sight in call.ins if sight.attached)
            yield call
