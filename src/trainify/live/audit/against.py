"""Values that a gradient does not get past, and that what learns is held against.

The target of a critic, the features of a teacher, the policy that another is kept close to: such a
value meets one that learns in a loss, in a difference, in a product, and nothing that learns comes
behind that.  In the middle of a model layers come behind.  The source need not show which it is:
the loss may lie in another file, and the names are anybody's.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set

import torch

from .cuts import Suspect
from .functions import LINEAR, PICKS, SUMS
from .learning import Leaves, leaves_lost
from .report import Cause
from .runs import Step
from .shapes import of_one_shape
from .trace import Call, Sight, Trace, made_by, own_name, result, tensor_of

REFERENCE = re.compile(
    r"(?:^|[._])(?:teacher|target|ema|momentum|frozen|ref|reference|old)(?:[._\d]|$)", re.IGNORECASE
)
"""In the names of what others learn from."""

_LOSSES = ("loss", "similarity", "kl_div", "entropy")
"""What is in the names of functions that hold values against each other."""

DIFFERENCES = {"sub", "sub_", "rsub", "subtract", "__sub__", "__rsub__", "__isub__", "dist",
                "cdist", "pairwise_distance"}  # fmt: skip

_RANKINGS = {"logsigmoid", "log_sigmoid", "softplus"}
"""Functions that a loss makes one result larger than another by: both are to learn."""

_HINGES = {"relu", "relu_"}
"""Functions that do so as well, and bound one from below by another."""

_ADDS = {"add", "add_", "__add__", "__radd__", "__iadd__"}

_SUMS = {*_ADDS, "stack", "cat", "concat", "concatenate", "hstack", "vstack"}
"""What only puts beside each other: the other's gradient is the same whatever is added."""

_THE_SAME = {*PICKS, "to", "float", "double", "half", "bfloat16"}

_TAKES_AWAY = DIFFERENCES - {"dist", "cdist", "pairwise_distance"}

_PRODUCTS = {"mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__", "div", "div_", "divide",
             "true_divide", "__truediv__", "__itruediv__"}  # fmt: skip

_WEIGHS = {each for each in _PRODUCTS if "mul" in each}

_IN_PROPORTION = {*SUMS, "cat", "where", "max", "maximum", "amax", "min", "minimum", "amin",
                  "clamp", "clip", "__setitem__"}  # fmt: skip
"""What gives as much more of what is as much more: as a loss is summed up, or clipped."""


def is_held_against(
    step: Step, trace: Trace, group: Iterable[Suspect], others: Iterable[Suspect], whole: bool
) -> bool:
    """Whether what suspects at one site stand for is what a loss holds others against.

    Args:
        step: What was run.
        trace: The run that they are of.
        group: The suspects.
        others: All suspects: where a value leaves torch, it comes back at another one.
        whole: Whether the trace ends with the loss.  Where it ends with outputs of which nothing
            more is known, only functions that are losses by name tell.
    """
    suspects = list(group)
    if all(sight.fresh for each in suspects for sight in each.call.ins):
        whole = False  # a scale, say: no network whose result it is
    if any(each.cause is Cause.HOST for each in suspects):
        suspects += [each for each in others if each.cause is Cause.OPAQUE or each.hidden]
    flow = _Flow.of(trace, suspects)
    return (flow.alone if whole else flow.losses(whole)) and not flow.gates(step)


def may_be_held_against(trace: Trace, group: Iterable[Suspect]) -> bool:
    """Whether a loss holds something against a part of what suspects stop.

    Where another part goes on to layers, only who has written it knows whether that is meant.
    """
    return _Flow.of(trace, group).somewhere()


def is_of_its_own(trace: Trace, group: Iterable[Suspect]) -> bool:
    """Whether layers stand between what suspects stop and what is held against it.

    As between the values of a critic and the policy, or two results of one network.  A scale that
    is taken of a value to divide it, as in ``x / x.norm().detach()``, is a part of what is done to
    that value.
    """
    return _Flow.of(trace, group).apart()


def is_of_losses(trace: Trace, group: Iterable[Suspect]) -> bool:
    """Whether all that learns meets what suspects stop in losses, or is one not summed up yet.

    As it does the weights of a focal loss, which are made of what that is the loss of.  What the
    sum of a loss is multiplied with is no weight of its rows.
    """
    return _Flow.of(trace, group).in_losses()


def is_of_a_return(trace: Trace, group: Iterable[Suspect], given: Set[int]) -> bool:
    """Whether a loss holds what learns against a sum of what is given and what suspects stop.

    As a critic is held against rewards and its own values of later states, and a policy is weighed
    by a reward of which a distance to another one is taken away.  ``given`` is what the model is
    given.  What layers take as well is no reward, but the way on that a residual goes.
    """
    return _Flow.of(trace, group).in_returns(given)


def is_given_twice(
    trace: Trace, group: Sequence[Suspect], parameters: Set[int], behind: Mapping[int, Leaves]
) -> bool:
    """Whether layers take what suspects stop, and the same with its history beside.

    So does a discriminator: what was generated comes to it once for its own loss, and once for that
    of the generator.  It may be given mixtures of it as well, and be frozen for the generator.

    ``behind`` is what each tensor learns by.
    """
    lost = Leaves().union(*leaves_lost(behind, group).values())
    return _Flow.of(trace, group).twice(trace, parameters, behind, lost)


def is_scored(trace: Trace, group: Iterable[Suspect]) -> bool:
    """Whether what is drawn is held against what it was drawn from, as its log-probability does.

    So a policy learns: by how likely its actions were, not through them.
    """
    for suspect in group:
        source = {trace.digest(sight) for sight in suspect.call.ins if sight.attached}
        drawn = {trace.digest(sight) for sight in _stopped(suspect)}
        if not suspect.zeros or not any(
            (taken := {trace.digest(sight) for sight in call.ins}) & source and taken & drawn
            for call in trace.calls
        ):
            return False
    return True


def is_loss(call: Call) -> bool:
    """Whether a function is one by its name."""
    return any(each in own_name(call) for each in _LOSSES)


def _stopped(suspect: Suspect) -> Iterable[Sight]:
    what, i = suspect.where
    call = suspect.call
    if what == "out":
        return (call.outs[i],)
    if what == "in":
        return (call.ins[i],)
    return (call.written[i][0],) if what == "written" and i in call.written else ()


class _Flow:
    """What becomes of values in the calls behind them."""

    def __init__(self, stopped: Iterable[Sight]) -> None:
        self._stopped = {tensor_of(sight) for sight in stopped}
        self._first = frozenset(self._stopped)
        self._calls: list[Call] = []
        self._layers: set[int] = set()
        """The calls, by their index, that something made of parameters alone goes into."""
        self._taking: list[Call] = []
        """Those of them that take a stopped value as it is."""
        self._active: set[int] = set()
        """What has a history."""
        self._weights: set[int] = set()
        """What is made of parameters alone."""
        self._met: dict[int, set[int]] = {}
        """Results of what is in ``_meetings``, by number."""
        self._meetings: list[str] = []
        self._learning: list[set[int]] = []
        """What stopped values meet there."""
        self._at: list[Call] = []
        """The calls of the meetings."""
        self._held: list[set[int]] = []
        """What has been made of stopped values by then."""
        self._bent: set[int] = set()
        """Meetings of which something is made that is not in proportion to them."""
        self._used: set[int] = set()
        """Meetings that go into the loss."""
        self._summed: set[int] = set()
        """Those that are summed up before."""
        self._compares = False
        """Whether it is ranked by the difference from what is stopped."""
        self._hinges: set[int] = set()
        """Differences of which a hinge is made."""
        self._rows: set[int] = set()
        """What functions that are losses by name give, row by row."""
        self._before_layers: set[int] = set()
        self._learns = False
        """Whether a layer takes a stopped value as it is."""

    @staticmethod
    def of(trace: Trace, suspects: Iterable[Suspect]) -> _Flow:
        """The flow of what suspects stop through a whole run."""
        flow = _Flow(sight for each in suspects for sight in _stopped(each))
        for call in trace.calls:
            flow.through(call)
        return flow

    def losses(self, whole: bool) -> bool:
        """Whether each meeting is a loss, or a difference, behind which nothing learns."""
        return self.alone and all(
            any(each in self._meetings[n] for each in _LOSSES)
            or (whole and self._meetings[n] in DIFFERENCES)
            for n in self._used
        )

    def somewhere(self) -> bool:
        """Whether there is a loss, or a difference, behind which nothing learns."""
        return not self._compares and any(
            any(each in self._meetings[n] for each in _LOSSES)
            or (self._meetings[n] in DIFFERENCES and not self._is_term(n))
            for n in self._used - self._before_layers
        )

    @property
    def alone(self) -> bool:
        """Whether nothing that learns comes behind any meeting, and none is a sum."""
        if not self._used or self._compares or self._learns or self._before_layers:
            return False
        return not any(map(self._is_term, self._used)) and not any(map(self._ranks, self._hinges))

    def _ranks(self, meeting: int) -> bool:
        """Whether the same layers have made both sides, as a model does of rewards."""
        one, other = (self._behind(e) for e in (self._held[meeting], self._learning[meeting]))
        return one == other

    def _behind(self, tensors: Iterable[int]) -> set[int]:
        """The parameters that these are made of."""
        found, weights = set(tensors), set[int]()
        for call in reversed(self._calls):
            if not found.isdisjoint(map(tensor_of, made_by(call))):
                found.update(tensor_of(sight) for sight in call.ins if sight.floating)
                weights.update(tensor_of(sight) for sight in call.ins if sight.fresh)
        return weights

    def _is_term(self, meeting: int) -> bool:
        """Whether others learn the same whatever comes to them there, as by another term."""
        name = self._meetings[meeting]
        taken_away = name in _TAKES_AWAY and meeting not in self._bent
        return name in _SUMS or (taken_away and not self._is_weighed(meeting))

    def _is_weighed(self, meeting: int) -> bool:
        """Whether a difference goes nowhere but into a product with what it takes others from.

        So it does in a divergence that is written out: ``p * (log(p) - log(q))`` is the product of
        ``p`` and ``-log(q)``, and a number.
        """
        if self._meetings[meeting] not in _TAKES_AWAY:
            return False

        def weighs(call: Call) -> bool:
            held = [h for at, h in zip(self._at, self._held, strict=True) if at is call]
            return own_name(call) in _WEIGHS and any(taken <= self._before(each) for each in held)

        made = set(map(tensor_of, made_by(self._at[meeting])))
        taken = self._before(self._held[meeting]) & self._first
        takers = [c for c in self._calls if not made.isdisjoint(map(tensor_of, c.ins))]
        return bool(takers) and all(map(weighs, takers))

    def gates(self, step: Step) -> bool:
        """Whether what learns is weighed by a stopped value, and a loss is made of the result.

        A loss that is summed up may have weights.  A similarity is a product as well, of two of one
        shape, summed up.  So is what is stopped, divided by what learns: the widths of two normal
        distributions, say.
        """
        weighed = [n for n in self._bent if self._meetings[n] in _PRODUCTS]
        if not all(n in self._summed or self._divides(n) for n in weighed):
            return True
        return bool(weighed) and not of_one_shape(step, [self._at[n] for n in weighed])

    def _divides(self, meeting: int) -> bool:
        """Whether it is a quotient of a stopped value by what learns."""
        call = self._at[meeting]
        return "div" in own_name(call) and tensor_of(call.ins[0]) in self._held[meeting]

    def in_losses(self) -> bool:
        """Whether each meeting is a loss, behind which nothing learns."""
        return self.alone and all(
            any(each in self._meetings[n] for each in _LOSSES) or self._learning[n] <= self._rows
            for n in self._used
        )

    def in_returns(self, given: Set[int]) -> bool:
        """Whether each meeting is with a sum of what is given, and a part of a loss."""
        return self.alone and all(
            self._is_part(n) and self._is_sum(self._held[n], given) for n in self._used
        )

    def _is_part(self, meeting: int) -> bool:
        """Whether a loss is made of a difference, or is in proportion to what is weighed."""
        name = self._meetings[meeting]
        if name in _PRODUCTS:
            return meeting not in self._bent
        return name in DIFFERENCES or any(each in name for each in _LOSSES)

    def _is_sum(self, stopped: Set[int], given: Set[int]) -> bool:
        """Whether something that is given is in what was stopped, and no layer takes the same."""
        taken = {tensor_of(s) for n in self._layers for s in self._calls[n].ins}
        for call in self._calls:
            if own_name(call) in _THE_SAME and not taken.isdisjoint(map(tensor_of, call.ins)):
                taken.update(map(tensor_of, call.outs))
        given, before = given - taken, self._before(stopped)
        for call in self._calls:
            operands = {tensor_of(sight) for sight in call.ins}
            sums = own_name(call) in _ADDS | _TAKES_AWAY and not given.isdisjoint(operands)
            if sums and not before.isdisjoint(map(tensor_of, made_by(call))):
                return True
        return False

    def apart(self) -> bool:
        """Whether nothing with a history is made into both sides of a meeting without layers."""
        stopped = self._before(self._first)
        weighed = filter(self._is_weighed, range(len(self._at)))
        told = {tensor_of(sight) for n in weighed for sight in made_by(self._at[n])}
        return not any(stopped & self._before(e - told) & self._active for e in self._learning)

    def _before(self, tensors: Iterable[int]) -> set[int]:
        """These, and what they are made of, as far back as the next layers."""
        found = set(tensors)
        for number in reversed(range(len(self._calls))):
            call = self._calls[number]
            if number not in self._layers and not found.isdisjoint(map(tensor_of, made_by(call))):
                found.update(tensor_of(sight) for sight in call.ins if sight.floating)
        return found

    def twice(
        self, trace: Trace, parameters: Set[int], behind: Mapping[int, Leaves], lost: Leaves
    ) -> bool:
        """Whether each layer that takes a stopped value takes it with its history as well.

        That goes back to what is ``lost``, and not only as far as what was stopped before.
        """

        def given(call: Call) -> Hashable:
            return call.function, tuple(
                tensor_of(sight) if tensor_of(sight) in parameters else trace.digest(sight)
                for sight in call.ins
            )

        def layer(call: Call) -> Hashable:
            return call.function, tuple(n for n in map(tensor_of, call.ins) if n in parameters)

        def learns(call: Call) -> bool:
            values = [s for s in call.ins if s.floating and tensor_of(s) not in parameters]
            found = Leaves().union(*(behind.get(tensor_of(sight), Leaves()) for sight in values))
            attached = all(sight.attached for sight in values)
            return call not in self._taking and attached and lost <= found

        if self._meetings or not self._taking:
            return False
        others = {given(call) for call in self._calls if learns(call)}
        layers = {layer(call) for call in self._taking if given(call) in others}
        return all(layer(call) in layers for call in self._taking)

    def through(self, call: Call) -> None:
        """Go through a call; in the order in which they were made."""
        ins = [(sight, tensor_of(sight)) for sight in call.ins]
        made = made_by(call)
        self._calls.append(call)
        if is_loss(call):
            self._rows.update(tensor_of(sight) for sight in made if sight.several)
        self._active.update(tensor_of(s) for s in made if s.attached and not s.fresh)
        weights = [n for s, n in ins if (s.fresh or n in self._weights) and n not in self._stopped]
        if weights and len(weights) == len(ins):
            self._weights.update(map(tensor_of, made))
            return
        if weights:
            self._layers.add(len(self._calls) - 1)
        met = {number for _, n in ins for number in self._met.get(n, ())}
        if met:
            self._follow(call, met)
        if any(n in self._stopped for _, n in ins):
            learning = [s for s, n in ins if s.attached and n not in self._stopped]
            if call.function is torch.autograd.grad:
                pass  # the slope at a stopped value is a value of its own
            elif not (learning and any(sight.attached for sight in made)):
                self._stopped.update(tensor_of(sight) for sight in made if sight.floating)
            elif weights and not is_loss(call) and not _is_multiplier(call, ins, weights):
                self._learns = True
                self._taking.append(call)
            else:
                met.add(len(self._meetings))
                self._meetings.append(own_name(call))
                self._at.append(call)
                self._held.append({n for _, n in ins if n in self._stopped})
                self._learning.append({tensor_of(sight) for sight in learning})
                weights = []
        differences = {n for n in met if self._meetings[n] in DIFFERENCES}
        if own_name(call) in _RANKINGS:
            self._compares |= bool(differences)
        if own_name(call) in _HINGES:
            self._hinges |= differences
        if own_name(call) == "margin_ranking_loss":
            self._hinges |= met
        if weights:
            self._before_layers |= met
        if met and not any(sight.attached for sight in made):
            self._stopped.update(tensor_of(sight) for sight in made if sight.floating)
            return
        for sight in made if met else ():
            self._met.setdefault(tensor_of(sight), set()).update(met)

    def _follow(self, call: Call, met: set[int]) -> None:
        """Note what a call makes of meetings."""
        name = own_name(call)
        if call.function is result:
            self._used |= met
        if name in ("sum", "mean"):
            self._summed |= met - self._bent
        several = sum(sight.attached for sight in call.ins) > 1
        kept = name in _IN_PROPORTION or (name in LINEAR and not several)
        if not kept and any(sight.attached for sight in made_by(call)):
            self._bent |= met


def _is_multiplier(call: Call, ins: Iterable[tuple[Sight, int]], weights: Sequence[int]) -> bool:
    """Whether a number that learns is the weight of a term, as that of a constraint is."""
    several = any(sight.several for sight, number in ins if number in weights)
    return own_name(call) in _PRODUCTS and not several
