"""``trainify.trainify``: a model that serves becomes one that trains, in place."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import CodeType
from typing import Any, TypeVar

from torch import nn

from ..catalog.own import registered
from ..findings import Finding, Safety
from ..passes import not_rewritten
from .apply import apply, changed, in_effect, put_back, take_back
from .attach import CannotAttach, attached_ops, computed_again, known_ops
from .audit import Cut, Report
from .audit.allowed import named_places
from .audit.alone import step_alone
from .audit.copied import said_of_copies
from .audit.losses import Loss
from .audit.messages import STOPS, if_meant, not_meant, with_scope
from .audit.places import Places, raised
from .audit.run import audit
from .audit.runs import refuse_no_model
from .computed import Computed, computed
from .confirm import Mistakes, StopRemoved
from .equal import Unequal, own_ops, unequal
from .inplace import name_of, original_code
from .loads import covers
from .lock import LOCK
from .needed import settle
from .reach import Kernel, Member, Reached, kernels_at, reached
from .rewritten import Refused, Settings, by_file, original_place
from .source import Found, as_written, find, names_of
from .swap import Plan
from .symbol import can_be_op

STRATEGIES = ("auto", "flag", "replace", "attach")
WHEN = ("grad", "training")

Model = TypeVar("Model", bound=nn.Module)
Judge = Callable[[], Report]
Look = Callable[..., Computed | None]


class NotTrainable(RuntimeError):
    """A model that could not be made trainable, and is as it was.

    ``report`` is what the audit found last, where one was made; ``remaining`` are findings in the
    source that have no fix, ``refused`` says why functions could not be rewritten.  Where cuts are
    left, only what concerns the functions around them is among these.
    """

    def __init__(self, message: str, report: Report | None, found: Found) -> None:
        super().__init__(message)
        self.report = report
        self.remaining = found.remaining
        self.refused = found.refused


class NotEverything(UserWarning):
    """Something in a model's source cuts the gradient and has no fix, or it has no parameters.

    Or what was registered for an op of one's own is not quite what the op computes.
    """


def trainify(
    model: Model,
    *inputs: Any,
    strategy: str = "auto",
    when: str = "grad",
    loss: Loss | None = None,
    allow: Iterable[str] = (),
    through: Iterable[str] = (),
    **keywords: Any,
) -> Model:
    """Make a model trainable in place, and return it.

    For each cut the lightest way that is right is taken.  A registered op gets a backward where it
    is, and a function around a kernel is made an op with one; neither changes a bit of the forward.
    For the rest (grad modes, ``detach()``, ``.data``, round trips, writes into views) functions are
    rewritten in memory as ``trainify fix`` would write them.  In ``no_grad`` the fused kernels run
    as before.

    With ``inputs`` the model is audited before and after (:func:`trainify.audit`), and nothing
    stays changed unless every parameter that the loss depends on gets its gradient, and what each
    module computes is held against what it computed before.  Where the equivalent of an op of your
    own takes its place, so is each call of it.
    Without, all is done that can be known from source, and what has no fix is warned of, with its
    place.

    The code alone often does not tell whether a ``no_grad``, a ``detach()``, ``.data`` or a round
    trip in the middle of a model is a mistake.  With ``inputs`` it is taken for one, and is
    rewritten, if parameters that require a gradient get none at all because of it; of a scope only
    what these need leaves it.  :class:`StopRemoved` warns of each such place.  Where everything
    behind it learns by another way (targets of a loss, a critic's, a codebook's) it is taken for a
    stop-gradient, and stays: then it is among the places of the error until it is allowed, unless
    the audit sees that it is meant.  What is allowed, what a comment explains, what is kept for the
    next call and not read by this one, and what runs a teacher, a target or a discriminator by its
    name is never rewritten so.  Nor, unless ``through`` names it, is what a loss holds something
    that learns against, with no layer behind, or what stops a whole network that others call: these
    may be the targets of a critic, or the features of a head that learns alone, and the error asks.

    The model keeps its class for ``isinstance``, its ``state_dict``, its hooks.  Copies and pickles
    of it are trainable too.  :func:`trainify.restore` undoes it, :func:`trainify.source_diff` shows
    the change of source that it stands for.

    Args:
        model: Any module; also one that is wrapped, compiled, sharded or has adapters.
        inputs: What the model is called with; ``keywords`` as well.
        strategy: ``"auto"``; ``"attach"``, the same without looking first at what is enough, so
            that kernels stay in the forward throughout; ``"flag"`` or ``"replace"``, by source
            alone, as the command line would, with the formulas that it registers for custom ops.
        when: What a rewritten function asks: ``"grad"``, whether a gradient is wanted, or
            ``"training"``, whether its module is in training.
        loss: As for :func:`trainify.audit`, like ``allow``: where gradients stop on purpose.
        through: Where they do not, in the same notation: files, lines and functions.

    Raises:
        NotTrainable: With the places of what is left.  The model is as it was.
        ValueError: An unknown strategy.
        TypeError: That is no model, or ``allow`` and ``through`` name no places.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}")
    if when not in WHEN:
        raise ValueError(f"when must be one of {', '.join(WHEN)}")
    allow, through = named_places(allow, "allow"), named_places(through, "through")
    refuse_no_model(model)
    with LOCK:
        take_back(model)
        try:
            settings = Settings("attach" if strategy == "auto" else strategy, when)
            graph = reached(model, (*inputs, *keywords.values()))
            plans = _Plans(model, graph, settings, strategy, through, allow)
            if inputs or keywords:
                judge = partial(audit, model, *inputs, loss=loss, allow=allow, **keywords)
                look = partial(computed, model, inputs, keywords, loss)
                held = _unequal(model, inputs, keywords, loss, graph)
                by_source = strategy in ("flag", "replace")
                _audited(model, judge, look, plans, held.other if by_source else [])
                if held.near:
                    warnings.warn(_NEARLY + _listed(held.near), NotEverything, stacklevel=2)
            else:
                _unaudited(model, plans)
            settle(model, changed(model))
        finally:
            put_back(model)
    return model


def _kernels(graph: Reached) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The registered ops, and the functions around other kernels, that get a backward as they are.

    By name, as far as the functions of the model show it; an op too many is one that never runs.
    What has one already has it for as long as another model needs it.
    """
    ops = tuple(op for op in (*known_ops(), *attached_ops()) if op in graph.ops)
    symbols = tuple(name for name, each in graph.kernels.items() if _is_symbol(name, each, ops))
    return ops, symbols


def _is_symbol(name: str, kernel: Kernel, ops: Collection[str]) -> bool:
    """Whether a function is made an op itself, and not by one in it that gets a backward."""
    return kernel.row.equivalent is not None and kernel.ops.isdisjoint(ops) and can_be_op(name)


def _unaudited(model: nn.Module, plans: _Plans) -> None:
    plan, found = plans.everything, plans.found
    if not plan and found.refused:
        raise NotTrainable(_message([], found, audited=False), None, found)
    try:
        apply(model, plan)
    except (Refused, CannotAttach) as error:
        raise NotTrainable(str(error), None, found) from error
    given = {as_written(name) for name in (*plan.ops, *plan.symbols)}
    left = (f for f in found.remaining if given.isdisjoint(names_of(f.op)))
    found = replace(found, remaining=tuple(left))
    if found.remaining or found.refused:
        warnings.warn(_message([], found, audited=False), NotEverything, stacklevel=3)


def _unequal(
    model: nn.Module, inputs: Any, keywords: Any, loss: Loss | None, graph: Reached
) -> Unequal:
    """The calls that do not compute what is registered for them."""
    if not registered():
        return Unequal([], [])
    with step_alone(model, inputs, keywords, loss) as step:
        return Unequal([], []) if step is None else unequal(step, graph)


def _audited(
    model: nn.Module, judge: Judge, look: Look, plans: _Plans, other: Sequence[str]
) -> None:
    """Apply as little as makes the audit clean, from light to heavy; or raise, with all undone.

    ``other`` is what says that the model, rewritten, is another one.
    """
    error: Exception | None = None
    report: Report | None = None
    plan: Plan | None = None
    before: Computed | None = None
    for _ in range(_MOST_PLANS):
        try:
            if plan is not None:
                apply(model, plan)
            report, error = judge(), None
            if report.ok:
                if report.copies and (wider := plans.with_copies(plan, report)):
                    before = look() if plan is None else before
                    plan = wider
                    continue
                if plan is None and plans.owe_others() and (source := plans.after(None, report)):
                    before, plan = look(), source
                    continue
                if plan is None:
                    apply(model, in_effect(plans.everything))
                elif other or (other := _another(before, look)):
                    take_back(model)
                    raise NotTrainable(_lines(other), report, plans.found)
                if not (report.trainable or report.frozen):
                    warnings.warn(_lines(report.notes), NotEverything, stacklevel=3)
                if report.copies:
                    warnings.warn(said_of_copies(report.copies), NotEverything, stacklevel=3)
                if plans.mistakes.told:
                    warnings.warn(plans.mistakes.told, StopRemoved, stacklevel=3)
                return
        except NotTrainable:
            raise
        except Exception as failed:  # a heavier way may well run
            error = failed
        except BaseException:
            take_back(model)
            raise
        before = look() if plan is None else before
        plan = plans.after(plan, report)
        if plan is None:
            break
    take_back(model)
    cuts = report.cuts if report else ()
    said = by_file(f"running it: {raised(error, Places(model.modules()))}") if error else ""
    said = said or plans.mistakes.undecided or (report.error if report else "")
    hindered = plans.mistakes.hindrances(report) if report and not error else []
    found = plans.found
    if cuts and not error:
        ops = {as_written(cut.op) for cut in cuts if cut.op}
        found = found.of(plans.around(cuts), ops)
        cuts = tuple(cut for cut in cuts if plans.around([cut]) or not _is_called(cut, found))
    lines = [*_told(cuts, plans.mistakes), *hindered]
    raise NotTrainable(_message(lines, found, said), report, found) from error


def _another(before: Computed | None, look: Look) -> list[str]:
    now = look(rewritten=True) if before is not None else None
    found = before.another(now) if before is not None and now is not None else ""
    return [found] if found else []


_MOST_PLANS = 16
"""What has not become clean after so many will not."""


class _Plans:
    """What to try, from light to heavy: kernels as they are, then the functions in which cuts lie.

    Then, with what the code does not tell, those in which an audit has confirmed mistakes; all that
    the source shows comes last.  An audit of one step does not see what is lasting in it (see
    :class:`~.source.Found`): that is always part of it.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Reached,
        settings: Settings,
        strategy: str,
        through: Iterable[str],
        allow: Iterable[str],
    ) -> None:
        self._model, self._graph, self._strategy = model, graph, strategy
        self._ops, self._symbols = ((), ()) if strategy in ("flag", "replace") else _kernels(graph)
        self._ops += computed_again(graph.ops.difference(self._ops))
        self._own = tuple(name for row in own_ops(graph) for name in row.names)
        self.mistakes = Mistakes(model, settings, through, allow)
        self._find()

    def _find(self) -> None:
        self.found = find(self._model, self.mistakes.settings, self._graph)
        self.everything = replace(
            self.found.plan, ops=self._ops, symbols=self._symbols, own=self._own
        )

    def after(self, plan: Plan | None, report: Report | None) -> Plan | None:
        """What to try after a plan that left a report's cuts; what to begin with, after None."""
        cuts = report.cuts if report is not None else ()
        self._learn_kernels(cuts)
        everything = self.everything
        if plan is None:
            light = _only(everything, self.found.lasting)
            if everything:
                return light if self._strategy == "auto" and light else everything
            plan = everything
        wider = self._with_cuts(plan, everything, cuts)
        if wider != plan:
            return wider
        if report is not None and self.mistakes.learn(report):
            self._find()
            return self._with_cuts(plan, self.everything, cuts)
        if plan == everything and not self.mistakes.settings.copies:
            self.mistakes.settings = replace(self.mistakes.settings, copies=True)
            self._find()
        return self.everything if plan != self.everything else None

    def owe_others(self) -> bool:
        """Whether kernels have a backward by what others need, where it is to be by source."""
        if self._strategy not in ("flag", "replace"):
            return False
        ops, symbols = _kernels(self._graph)
        return bool(in_effect(replace(self.everything, ops=ops, symbols=symbols)))

    def with_copies(self, plan: Plan | None, report: Report) -> Plan | None:
        """A plan after which unused weights are used that copies stood for; None where none is."""
        if not self.mistakes.learn(report):
            return None
        self._find()
        if plan is None:
            plan = in_effect(self.everything)
        wider = replace(plan, settings=self.everything.settings)
        return replace(wider, methods=self._with_cuts(wider, self.everything, ()).methods)

    def _learn_kernels(self, cuts: Collection[Cut]) -> None:
        """Kernels that the source does not show by name, and that ran all the same."""
        ran = {cut.op for cut in cuts if cut.op and "::" in cut.op} - {*self._ops}
        self._ops += computed_again(ran)
        if self._strategy in ("flag", "replace"):
            self.everything = replace(self.everything, ops=self._ops)
            return
        ran.difference_update(self._ops)
        if ran:
            self._ops += tuple(op for op in (*known_ops(), *attached_ops()) if op in ran)
        for cut in cuts:
            for name, kernel in kernels_at(cut.path, cut.line, cut.op or "").items():
                if name not in self._symbols and _is_symbol(name, kernel, self._ops):
                    self._symbols += (name,)
        self.everything = replace(self.everything, ops=self._ops, symbols=self._symbols)

    def around(self, cuts: Iterable[Cut]) -> set[CodeType]:
        """The functions in which cuts, or the grad modes over them, lie."""
        return {original_code(member.function) for member in self._around(cuts)}

    def _around(self, cuts: Iterable[Cut]) -> Iterator[Member]:
        places = {original_place(*place) for cut in cuts for place in _places(cut)}
        for member in (*self._graph.methods, *self._graph.helpers):
            if any(covers(original_code(member.function), *place) for place in places):
                yield member

    def _with_cuts(self, plan: Plan, everything: Plan, cuts: Iterable[Cut]) -> Plan:
        """A plan that also rewrites the functions around cuts."""
        here = map(name_of, self._around(cuts))
        return _only(everything, {*plan.methods, *plan.helpers, *self.found.lasting, *here})


def _only(plan: Plan, functions: Collection[str]) -> Plan:
    """A plan less the functions that are not among these."""
    return replace(
        plan,
        methods=tuple(name for name in plan.methods if name in functions),
        helpers=tuple(name for name in plan.helpers if name in functions),
    )


def _places(cut: Cut) -> Iterator[tuple[str, int]]:
    """Where a cut lies, and what switches gradients off there."""
    yield cut.path, cut.line
    if cut.scope_place is not None:
        yield cut.scope_place
    yield from cut.wrapped_places


def _is_called(cut: Cut, found: Found) -> bool:
    """Whether what is found has the call of a cut's op, which lies in the code of a library."""
    name = as_written(cut.op or "")
    return any(name in names_of(finding.op) for finding in found.remaining)


def _told(cuts: Iterable[Cut], mistakes: Mistakes) -> Iterator[str]:
    """The cuts that are left; of those that the caller calls mistakes not how to allow them."""
    for cut in cuts:
        told, otherwise = with_scope(cut), ""
        if mistakes.is_said(cut):
            told = not_meant(told)
        elif cut.cause in STOPS:
            told = if_meant(told)
            if mistakes.is_mendable(cut):
                otherwise = " If not, name the place: through= or --through."
        yield f"{cut.place}: {told.message}{otherwise}"


def _message(cuts: Sequence[str], found: Found, error: str = "", *, audited: bool = True) -> str:
    """What is left, a place a line."""
    lines = list(cuts)
    lines += [
        f"{finding.path}:{finding.line}: {finding.rule} {finding.message}{_not_rewritten(finding)}"
        for finding in found.remaining
    ]
    lines += found.refused
    lines += [error] if error else []
    return _lines(
        lines, "cannot be made trainable" if audited else "is not trainable by source alone"
    )


def _not_rewritten(finding: Finding) -> str:
    """Why the fix of a finding was not applied, where a person has to look at it first."""
    looked_at = (fix.look_at for fix in finding.fixes.values() if fix.safety is Safety.UNSAFE)
    look_at = next(looked_at, "")
    return not_rewritten(look_at) if look_at else ""


_NEARLY = "the model trains, with gradients of what is registered for its ops, and these differ:"


def _lines(lines: Iterable[str], what: str = "cannot be made trainable") -> str:
    return f"the model {what}:{_listed(lines)}"


def _listed(lines: Iterable[str]) -> str:
    return "".join(f"\n  {line}" for line in dict.fromkeys(lines))
