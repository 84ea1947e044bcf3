"""TRN201: what is said of a covered forward, and its fix."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.grad_mode import Scope
from ...facts.guards import is_forward
from ...facts.scoped_methods import scoped_methods
from ...findings import STRATEGIES, Finding, Fix, Safety
from .arrays import to_numpy
from .beside import other_ways
from .cover import Cover, is_decorator, label_of
from .edits import follow_training, take_off
from .flat_outputs import flat_output
from .moved import own_scope_on
from .starts import classes_around, inference_functions, is_scoped, may_run, starts_in
from .words import may_start

if TYPE_CHECKING:
    from ...engine import Options
    from ...facts.module import FunctionNode


def covered_forward(module: ModuleFacts, cover: Cover, moved: Scope, options: Options) -> Finding:
    """The finding for a forward under a scope; ``moved`` is what starts of inference get."""
    from ...rewrite.scopes import can_decorate, with_decorator

    function, node = cover.function, cover.scope.node
    text = module.source(node)
    label = label_of(module, function)
    where = f"`@{text}` on `{label}`" if is_decorator(cover) else f"`{text}` around `{label}`"
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
    parts = [Cover(f, scope) for f, scope in scoped_methods(module, function, cover.scope)]
    follow = take_off if options.callers_decide else follow_training
    followed_too = [follow(module, part) for part in parts]
    if parts:
        listed = ", ".join(f"`{label_of(module, part.function)}`" for part in parts)
        verb = "has" if len(parts) == 1 else "have"
        message += f" {listed}, which it trains through, {verb} a scope too."
    if not all(followed_too):  # one half of a repair again
        return module.finding("TRN201", message, node)
    own = inference_functions(module)
    cls = module.method_class(function) or module.method_class(module.function(function))
    classes = classes_around(module, cls) if cls is not None else frozenset()
    others = [
        start
        for found in module.project.summaries(module.path, starts_in, may_start)
        for start in found
        if may_run(module.project, start, module.path, classes)
    ]
    look_at = ""
    if own or others:
        removal = take_off(module, cover)
        if not removal:
            return module.finding("TRN201", message, node)
        bare = [f for f in own if not is_scoped(module, f)]
        edits = [
            *removal,
            *(
                with_decorator(module, f, own_scope_on(module, f, moved))
                for f in bare
                if can_decorate(f)
            ),
        ]
        for start_ in bare:
            if not can_decorate(start_):
                look_at = f"`{label_of(module, start_)}` is async: put its work under {text}"
        for start in others:
            if not start.scoped and not _in_roots(module, start.path):
                place = f"{start.label} ({start.path}:{start.line})"
                look_at = f"put @{text} on {place}, which relies on the scope of this forward"
        if _is_called_beside(module, function):
            look_at = look_at or f"whoever else calls {label} now records a graph there"
        labels = [*(label_of(module, f) for f in own), *(s.label for s in others)]
        places = ", ".join(dict.fromkeys(f"`{label}`" for label in labels))
        moves = bare or any(not s.scoped for s in others)
        verb = "move it to" if moves else "it stays on"
        message += f" Inference starts in {places}: {verb} there."
        title = f"Take @{text} off {label}" if is_decorator(cover) else f"Take {text} off {label}"
    else:
        followed = follow(module, cover)
        if not followed:
            return module.finding("TRN201", message, node)
        edits = followed
        message += " Where inference starts does not show, so let it follow the training flag."
        title = f"Let {label} record gradients while training"
        chosen = options.callers_decide or options.flag == "training"
        if not chosen and not _is_evaluated(module, function):
            look_at = (
                "nothing here calls eval(): inference in training mode, as a new model is in, "
                "records a graph now"
            )
    ways = other_ways(module, cls, function) if cls is not None else []
    if ways:
        also = f"`{label_of(module, ways[0])}` runs the same modules with gradients on"
        look_at = "; ".join(filter(None, (look_at, f"{also}: the scope of {label} may be meant")))
    if arrays := to_numpy(module, function):
        where = ", ".join(arrays)
        numpy = f"numpy() is called on what {label} gives in {where}: put it under {text}"
        look_at = "; ".join(filter(None, (look_at, numpy)))
    edits = [*edits, *(edit for each in followed_too for edit in each)]
    fix = Fix(title, tuple(edits), Safety.UNSAFE if look_at else Safety.SAFE, look_at)
    return module.finding("TRN201", message, node, dict.fromkeys(STRATEGIES, fix))


def _is_called_beside(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a function that a forward leaves its work to is called by something else, too."""
    if is_forward(function) or function.name == "__call__":
        return False
    callers = (module.function(call) for call in module.calls_named(function.name))
    return any(caller is None or not is_forward(caller) for caller in callers)


_EVALUATES = rb"\.eval\(\)|\.train\((?:mode\s*=\s*)?False\)"
_COMES_IN_EVAL_MODE = re.compile(r"PreTrainedModel|ModelMixin")
"""Base classes whose ``from_pretrained`` gives a model in eval mode."""


def _is_evaluated(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether the project shows that a model is in eval mode when it is used."""
    cls = module.method_class(function)
    bases = (module.source(base) for base in cls.bases) if cls is not None else ()
    return (
        any(_COMES_IN_EVAL_MODE.search(base) for base in bases)
        or re.search(_EVALUATES.decode(), module.text) is not None
        or module.project.says(module, _EVALUATES)
    )


def _in_roots(module: ModuleFacts, other: str) -> bool:
    """Whether the run that looks at ``module`` will look at another path too."""
    path = Path(other).absolute()
    for root in module.project.roots:
        base = root.absolute()
        if path == base or base in path.parents:
            return True
    return False
