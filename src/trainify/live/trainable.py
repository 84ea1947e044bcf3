"""``trainify.trainify``: a model that serves becomes one that trains, in place."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import CodeType
from typing import Any, TypeVar

from torch import nn

from .apply import apply, restore
from .attach import CannotAttach, known_ops
from .audit import Cut, Report
from .audit.losses import Loss
from .audit.run import audit
from .inplace import name_of, original_code
from .loads import last_line
from .reach import Reached, reached
from .rewritten import Refused, Settings, original_place
from .source import Found, find
from .swap import Plan

STRATEGIES = ("auto", "flag", "replace", "attach")
WHEN = ("grad", "training")

Model = TypeVar("Model", bound=nn.Module)
Judge = Callable[[], Report]
Plans = Callable[[Plan | None, Sequence[Cut]], Plan | None]
"""What to try after a plan that left these cuts; what to begin with, after None."""


class NotTrainable(RuntimeError):
    """A model that could not be made trainable, and is as it was.

    ``report`` is what the audit found last, where one was made; ``remaining`` are findings in the
    source that have no fix, ``refused`` says why functions could not be rewritten.
    """

    def __init__(self, message: str, report: Report | None, found: Found) -> None:
        super().__init__(message)
        self.report = report
        self.remaining = found.remaining
        self.refused = found.refused


class NotEverything(UserWarning):
    """Something in a model's source cuts the gradient and has no fix."""


def trainify(
    model: Model,
    *inputs: Any,
    strategy: str = "auto",
    when: str = "grad",
    loss: Loss | None = None,
    allow: Iterable[str] = (),
    **keywords: Any,
) -> Model:
    """Make a model trainable in place, and return it.

    For each cut the lightest way that is right is taken.  A registered op gets a backward where it
    is, and a function around a kernel is made an op with one; neither changes a bit of the forward.
    For the rest (grad modes, ``detach()``, ``.data``, round trips, writes into views) functions are
    rewritten in memory as ``trainify fix`` would write them.  In ``no_grad`` the fused kernels run
    as before.

    With ``inputs`` the model is audited before and after (:func:`trainify.audit`), and nothing
    stays changed unless every parameter that the loss depends on gets its gradient.  Without, all
    is done that can be known from source, and what has no fix is warned of, with its place.

    The model keeps its class for ``isinstance``, its ``state_dict``, its hooks.  Copies and pickles
    of it are trainable too.  :func:`trainify.restore` undoes it, :func:`trainify.source_diff` shows
    the change of source that it stands for.

    Args:
        model: Any module; also one that is wrapped, compiled, sharded or has adapters.
        inputs: What the model is called with; ``keywords`` as well.
        strategy: ``"auto"``; ``"attach"``, the same without looking first at what is enough, so
            that kernels stay in the forward throughout; ``"flag"`` or ``"replace"``, by source
            alone, as the command line would.
        when: What a rewritten function asks: ``"grad"``, whether a gradient is wanted, or
            ``"training"``, whether its module is in training.
        loss: As for :func:`trainify.audit`, like ``allow``: where gradients stop on purpose.

    Raises:
        NotTrainable: With the places of what is left.  The model is as it was.
        ValueError: An unknown strategy.
        TypeError: That is no model.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}")
    if when not in WHEN:
        raise ValueError(f"when must be one of {', '.join(WHEN)}")
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is {type(model).__name__}, not a torch.nn.Module")
    restore(model)
    settings = Settings("attach" if strategy == "auto" else strategy, when)
    graph = reached(model, (*inputs, *keywords.values()))
    found = find(model, settings, graph)
    ops, symbols = ((), ()) if strategy in ("flag", "replace") else _kernels(graph)
    everything = replace(found.plan, ops=ops, symbols=symbols)
    if inputs or keywords:
        judge = partial(audit, model, *inputs, loss=loss, allow=allow, **keywords)
        _audited(model, judge, found, _plans(strategy, everything, graph, found.lasting))
    else:
        _unaudited(model, found, everything)
    return model


def _kernels(graph: Reached) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The registered ops, and the functions around other kernels, that get a backward as they are.

    By name, as far as the functions of the model show it; an op too many is one that never runs.
    """
    ops = tuple(op for op in known_ops() if op in graph.ops)
    symbols = tuple(
        name
        for name, kernel in graph.kernels.items()
        if kernel.row.equivalent is not None and kernel.ops.isdisjoint(ops)
    )
    return ops, symbols


def _unaudited(model: nn.Module, found: Found, plan: Plan) -> None:
    if not plan and found.refused:
        raise NotTrainable(_message([], found), None, found)
    try:
        apply(model, plan)
    except (Refused, CannotAttach) as error:
        raise NotTrainable(str(error), None, found) from error
    if found.remaining or found.refused:
        warnings.warn(_message([], found), NotEverything, stacklevel=3)


def _audited(model: nn.Module, judge: Judge, found: Found, plans: Plans) -> None:
    """Apply as little as makes the audit clean, from light to heavy; or raise, with all undone."""
    error: Exception | None = None
    report: Report | None = None
    try:
        report = judge()
        if report.ok:
            return
    except Exception as failed:  # it does not even run where gradients are recorded
        error = failed
    plan = plans(None, ())
    while plan is not None:
        try:
            apply(model, plan)
            report, error = judge(), None
            if report.ok:
                return
        except Exception as failed:
            error = failed  # a heavier way may well run
        except BaseException:
            restore(model)
            raise
        plan = plans(plan, report.cuts if report else ())
    restore(model)
    report = report and _by_file(report, found.plan.settings)
    cuts = report.cuts if report else ()
    said = f"running it: {type(error).__name__}: {error}" if error else ""
    said = said or (report.error if report else "")
    raise NotTrainable(_message(cuts, found, said), report, found) from error


def _by_file(report: Report, settings: Settings) -> Report:
    """A report whose places are those in the files, of which the model runs again."""
    cuts = []
    for cut in report.cuts:
        path, line = original_place(cut.path, cut.line, settings)
        cuts.append(replace(cut, path=path, line=line))
    return replace(report, cuts=tuple(cuts))


def _plans(strategy: str, everything: Plan, graph: Reached, lasting: frozenset[str]) -> Plans:
    """From light to heavy: kernels as they are, then the functions in which cuts lie, then all.

    An audit of one step does not see what is ``lasting``; that is always part of it.
    """

    def after(plan: Plan | None, cuts: Sequence[Cut]) -> Plan | None:
        if plan is None:
            light = _only(everything, lasting)
            return light if strategy == "auto" and light else everything or None
        if plan == everything:
            return None
        more = _with_cuts(plan, everything, graph, cuts)
        return more if more != plan else everything

    return after


def _with_cuts(plan: Plan, everything: Plan, graph: Reached, cuts: Sequence[Cut]) -> Plan:
    """A plan that also rewrites the functions in which cuts, or the grad modes over them, lie."""
    places = {(cut.path, cut.line) for cut in cuts}
    for cut in cuts:
        path, _, line = (cut.scope or "").rpartition(":")
        places |= {(path, int(line))} if line.isdigit() else set()
    here = {
        name_of(member)
        for member in (*graph.methods, *graph.helpers)
        if any(_covers(original_code(member.function), *place) for place in places)
    }
    return _only(everything, {*plan.methods, *plan.helpers, *here})


def _only(plan: Plan, functions: Collection[str]) -> Plan:
    """A plan less the functions that are not among these."""
    return replace(
        plan,
        methods=tuple(name for name in plan.methods if name in functions),
        helpers=tuple(name for name in plan.helpers if name in functions),
    )


def _covers(code: CodeType, path: str, line: int) -> bool:
    """Whether a function of a file holds a line."""
    return code.co_filename == path and code.co_firstlineno <= line <= last_line(code)


def _message(cuts: Sequence[Cut], found: Found, error: str = "") -> str:
    """What is left, a place a line."""
    lines = [f"{cut.place}: {cut.message}" for cut in cuts]
    lines += [
        f"{finding.path}:{finding.line}: {finding.rule} {finding.message}"
        for finding in found.remaining
    ]
    lines += found.refused
    lines += [error] if error else []
    what = "cannot be made trainable" if cuts or error else "is not trainable by source alone"
    return f"the model {what}:" + "".join(f"\n  {line}" for line in dict.fromkeys(lines))
