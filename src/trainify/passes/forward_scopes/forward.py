"""TRN201: what is said of a covered forward, and its fix."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.grad_mode import Scope
from ...facts.guards import is_forward
from ...facts.instances import ClassId, Instances, class_id
from ...facts.scoped_methods import scoped_methods
from ...facts.trainable import holds_weights
from ...findings import Edit, Finding, Fix, Safety
from ..fused_calls.left_in_place import held_back
from .arrays import to_numpy
from .beside import other_ways, parts_to_learn
from .beside_starts import runs_beside
from .bodies import can_be_scoped
from .constants import constants
from .cover import Cover, is_decorator, label_of, owner_of
from .edits import follow_training, take_off
from .flat_outputs import flat_output
from .handed_on import handed_on
from .moved import own_scope_on
from .runs import Run, is_scoped_by, place_of
from .starts import (
    Start,
    can_run,
    classes_around,
    inference_functions,
    is_scoped,
    may_run,
    starts_in,
)
from .still_runs import raises_without, still_runs
from .words import may_start

if TYPE_CHECKING:
    from ...engine import Options
    from ...facts.module import FunctionNode


@dataclass(frozen=True)
class Known:
    """What the project shows of the models of a file.

    ``runs`` are those outside of training, ``scoped`` is what somebody runs under a scope, and
    ``parts`` are what losses run of one without its forward.
    """

    instances: Instances
    runs: Sequence[Run]
    scoped: Collection[ClassId]
    parts: Mapping[ClassId, Mapping[str, str]]


def covered_forward(
    module: ModuleFacts,
    cover: Cover,
    moved: Scope,
    known: Known,
    options: Options,
) -> Finding:
    """The finding for a forward under a scope; ``moved`` is what starts of inference get.

    ``known`` is what the project shows of the models of the file.
    """
    function, node = cover.function, cover.scope.node
    text = module.source(node)
    label = label_of(module, function)
    own = cover.each()
    where = f"`@{text}` on `{label}`" if is_decorator(cover) else f"`{text}` around `{label}`"
    if cover.more:
        where = f"`{text}`, the first of {len(own)} scopes around all of `{label}`"
    message = (
        f"{where}: nothing computed there has a gradient, so no parameter of the model learns."
    )
    flat = flat_output(module, function)
    if flat is not None:
        name, made, used = flat
        message += (
            f" Its `{name}` (line {made.lineno}) could not pass one on in any case: a loss needs "
            "what that is made from."
        )
        if used:  # one half of a repair would look like the whole
            return module.finding("TRN201", message, node)
    methods = {
        method: inner
        for scope in cover.scopes
        for method, inner in scoped_methods(module, function, scope)
    }
    parts = [Cover(method, scope) for method, scope in methods.items()]
    follow = take_off if options.callers_decide else follow_training
    followed_too = [follow(module, part) for part in parts]
    if parts:
        listed = ", ".join(f"`{label_of(module, part.function)}`" for part in parts)
        verb = "has" if len(parts) == 1 else "have"
        message += f" {listed}, which it trains through, {verb} a scope too."
    if not all(followed_too):  # one half of a repair again
        return module.finding("TRN201", message, node)
    starts = _starts(module, function, known)
    if starts.own or starts.others:
        removal = _each(own, lambda each: take_off(module, each))
        edits = [*removal, *_scopes_on(module, starts, moved)] if removal else []
        message += f" Inference starts in {_named(module, starts)} there."
        title = f"Take @{text} off {label}" if is_decorator(cover) else f"Take {text} off {label}"
        look_at = _left_without(module, cover, starts)
    else:
        edits = _each(own, lambda each: follow(module, each))
        scoped = _has_scopes_elsewhere(module, cover, starts, known)
        shown = (
            "Inference has a scope of its own" if scoped else "Where inference starts does not show"
        )
        message += f" {shown}, so let it follow the training flag."
        title = f"Let {label} record gradients while training"
        decided = options.callers_decide or options.training_decides or scoped
        look_at = "" if decided else _in_training_mode(module, function, starts, known)
    if not edits:
        return module.finding("TRN201", message, node)
    if not known.instances.are_all_seen:
        look_at = look_at or f"more files use {label} than were read: see to the others"
    besides = [*_besides(module, cover, starts, known), *_numbers(module, function)]
    look_at = "; ".join(filter(None, (look_at, *besides)))
    edits = [*edits, *(edit for each in followed_too for edit in each)]
    fix = Fix(title, tuple(edits), Safety.UNSAFE if look_at else Safety.SAFE, look_at)
    functions = [function, *(part.function for part in parts)]
    for scope in cover.scopes:
        fix = still_runs(module, fix, functions, scope)
        fix = raises_without(module, fix, functions, scope, options)
    covered = [s for each in functions for s in each.body]
    return module.finding("TRN201", message, node, held_back(module, fix, covered, options))


def _each(covers: Sequence[Cover], change: Callable[[Cover], list[Edit]]) -> list[Edit]:
    """The edits for each of some scopes; an empty list where one has to stay, or is in another."""
    found = [change(cover) for cover in covers]
    edits = [edit for each in found for edit in each]
    inside = sorted((edit.start, edit.end) for edit in edits)
    if len(covers) > 1 and any(end > start for (_, end), (start, _) in pairwise(inside)):
        return []
    return edits if all(found) else []


@dataclass(frozen=True)
class _Starts:
    """Where inference starts that runs a model: in ``own`` functions, in ``others`` of other files.

    ``left`` are runs of it in places that no scope is put on.
    """

    own: list[FunctionNode]
    others: list[Start]
    left: list[Run]

    @property
    def bare(self) -> list[Start]:
        return [start for start in self.others if not start.scoped]


def _starts(module: ModuleFacts, function: FunctionNode, known: Known) -> _Starts:
    cls = owner_of(module, function)
    classes = classes_around(module, cls) if cls is not None else frozenset()
    own = [f for f in inference_functions(module) if can_run(module, f, classes)]
    others = [
        start
        for found in module.project.summaries(module.path, starts_in, may_start)
        for start in found
        if may_run(module.project, start, module.path, classes)
    ]
    model = class_id(module, cls) if cls is not None else None
    runs = [run for run in known.runs if model in run.models]
    if own or others:  # that it moves to, and so to all that does nothing else
        more = {run.function for run in runs if not run.infers}
        infer = (r.function for r in runs if r.path == module.path and r.function not in more)
        own += [f for f in dict.fromkeys(infer) if f and f not in own and can_be_scoped(module, f)]
        runs += [
            *_beside(module, own, others),
            *(run for run in handed_on(known.instances) if model in run.models),
        ]
    scoped = {(module.path, f.lineno) for f in own if can_be_scoped(module, f)}
    scoped |= {(s.path, s.line) for s in others if not s.narrow and _in_roots(module, s.path)}
    return _Starts(own, others, [run for run in runs if not is_scoped_by(run, scoped)])


def _beside(
    module: ModuleFacts, own: Sequence[FunctionNode], others: Sequence[Start]
) -> Iterator[Run]:
    """What else runs the models that starts of inference run."""
    lines = {f.lineno for f in own}
    yield from (run for line, run in runs_beside(module) if line in lines)
    known = {(start.path, start.line) for start in others}
    for found in module.project.summaries(module.path, runs_beside, may_start) if known else ():
        yield from (run for line, run in found if (run.path, line) in known)


def _scopes_on(module: ModuleFacts, starts: _Starts, moved: Scope) -> Iterator[Edit]:
    """The scope on each function of this file that starts inference without one."""
    from ...rewrite.scopes import with_decorator

    for function in starts.own:
        if can_be_scoped(module, function) and not is_scoped(module, function):
            yield with_decorator(module, function, own_scope_on(module, function, moved))


def _named(module: ModuleFacts, starts: _Starts) -> str:
    """``generate``: move it to: the functions, and what becomes of the scope."""
    labels = [*(label_of(module, f) for f in starts.own), *(s.label for s in starts.others)]
    moves = starts.bare or not all(is_scoped(module, f) for f in starts.own)
    places = ", ".join(dict.fromkeys(f"`{label}`" for label in labels))
    return f"{places}: {'move it to' if moves else 'it stays on'}"


def _left_without(module: ModuleFacts, cover: Cover, starts: _Starts) -> str:
    """What to look at where a scope moves: the places that do not get it."""
    text, label = module.source(cover.scope.node), label_of(module, cover.function)
    for start in starts.bare:
        if not start.narrow and not _in_roots(module, start.path):
            place = f"{start.label} ({start.path}:{start.line})"
            return f"put @{text} on {place}, which relies on the scope of this forward"
    places = [place_of(run, module.path) for run in starts.left]
    places += _narrow(module, starts)
    if places:
        named = list(dict.fromkeys(places))
        listed = ", ".join(named[:_MAX_PLACES])
        more = f" and {len(named) - _MAX_PLACES} more" if len(named) > _MAX_PLACES else ""
        return f"put under {text} what runs {label} in {listed}{more}, too"
    if _is_called_beside(module, cover.function):
        return f"whoever else calls {label} now records a graph there"
    return ""


def _narrow(module: ModuleFacts, starts: _Starts) -> Iterator[str]:
    """The starts of inference that no decorator can cover, beside those in ``left``."""
    known = {(run.path, run.label) for run in starts.left}
    own = [f for f in starts.own if not can_be_scoped(module, f)]
    found = [(module.path, label_of(module, f), f.lineno) for f in own if not is_scoped(module, f)]
    found += [(start.path, start.label, start.line) for start in starts.bare if start.narrow]
    for path, label, line in found:
        if (path, f"`{label}`") not in known:
            at = f"line {line}" if path == module.path else f"{path}:{line}"
            yield f"`{label}` ({at})"


_MAX_PLACES = 3


def _has_scopes_elsewhere(module: ModuleFacts, cover: Cover, starts: _Starts, known: Known) -> bool:
    """Whether a model is run under scopes, and nothing else runs it but to train it."""
    cls = owner_of(module, cover.function)
    return cls is not None and not starts.left and class_id(module, cls) in known.scoped


def _in_training_mode(
    module: ModuleFacts, function: FunctionNode, starts: _Starts, known: Known
) -> str:
    """What to look at where a scope follows the training flag: inference in training mode."""
    fresh = next((run for run in starts.left if not run.evaluated), None)
    if fresh is not None:
        place = place_of(fresh, module.path)
        return f"call eval() before {place} runs it: in training mode it records a graph there now"
    if not _is_evaluated(module, owner_of(module, function), known.instances):
        return (
            "nothing here calls eval() on it: inference in training mode, as a new model is in, "
            "records a graph now"
        )
    return ""


def _besides(module: ModuleFacts, cover: Cover, starts: _Starts, known: Known) -> Iterator[str]:
    """What else to look at: another way to learn, and arrays made of what the model gives."""
    cls = owner_of(module, cover.function)
    if cls is None:
        return
    text, label = module.source(cover.scope.node), label_of(module, cover.function)
    if not holds_weights(module, cls):
        yield f"its modules are given to {cls.name}: where it only uses them, the scope is right"
    methods = other_ways(module, cls, cover.function)[:1]
    trained = known.parts.get(class_id(module, cls), {})
    all_learn = bool(trained) and parts_to_learn(module, cls, cover.function) <= trained.keys()
    elsewhere = next(iter(trained.values())) if all_learn else ""
    for place in (*(f"`{label_of(module, method)}`" for method in methods), elsewhere):
        if place:
            also = f"{place} runs the same modules with gradients on"
            yield f"{also}: the scope of {label} may be meant"
    arrays = to_numpy(module)
    if not starts.own and not starts.others:
        others = [run for run in starts.left if run.to_array and run.path != module.path]
        arrays = [*(f"{run.path}:{run.line}" for run in others), *arrays]
    if arrays:
        where = ", ".join(arrays)
        yield f"numpy() is called on what a model gives in {where}: put it under {text}"


def _numbers(module: ModuleFacts, function: FunctionNode) -> Iterator[str]:
    """What to look at where a forward goes on with numbers of what learns."""
    for node in sorted(constants(module, function), key=module.start):
        text = module.source(node).partition("\n")[0]
        yield f"`{text}` (line {node.lineno}) gives a constant: that much of the gradient is lost"


def _is_called_beside(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a function that a forward leaves its work to is called by something else, too."""
    if is_forward(function) or function.name == "__call__":
        return False
    callers = (module.function(call) for call in module.calls_named(function.name))
    return any(caller is None or not is_forward(caller) for caller in callers)


_COMES_IN_EVAL_MODE = re.compile(r"PreTrainedModel|ModelMixin")
"""Base classes whose ``from_pretrained`` gives a model in eval mode."""


def _is_evaluated(module: ModuleFacts, cls: ast.ClassDef | None, instances: Instances) -> bool:
    """Whether the project shows that a model, and not any other, is put into eval mode."""
    return cls is not None and (
        any(_COMES_IN_EVAL_MODE.search(module.source(base)) for base in cls.bases)
        or instances.is_evaluated(class_id(module, cls))
    )


def _in_roots(module: ModuleFacts, other: str) -> bool:
    """Whether the run that looks at ``module`` will look at another path too."""
    path = Path(other).absolute()
    for root in module.project.roots:
        base = root.absolute()
        if path == base or base in path.parents:
            return True
    return False
