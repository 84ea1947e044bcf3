"""TRN204: gradients switched off for a whole run that trains."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.grad_bytes import MODES, mentions
from ..facts.grad_mode import own_nodes, scope_around
from ..facts.guards import is_inference_entry, runs_model
from ..facts.memo import once
from ..facts.names import last_name, self_name
from ..facts.trainable import returns_numbers, weights_made
from ..facts.walk import walk
from ..findings import STRATEGIES, Edit, Finding, Fix, Safety
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN204",
        name="gradients-off-everywhere",
        summary="Gradients are switched off, and never on again, in a program that trains.",
        why=(
            "set_grad_enabled(False) as a statement holds until something sets it again, and an "
            "enable_grad() around something else does not: for the "
            "whole program where it stands at the top of a file, even one that is only imported. "
            "No loss has a graph after it. What was meant is a scope around inference."
        ),
        before="""\
import torch
import torch.nn.functional as F

torch.set_grad_enabled(False)


def predict(model, image):
    return model(image).argmax(-1)


def train(model, optimizer, image, label):
    loss = F.cross_entropy(model(image), label)
    loss.backward()
    optimizer.step()
""",
        after="",
    ),
)

_OFF = re.compile(rb"set_grad_enabled\([ \t]*(?:mode[ \t]*=[ \t]*)?(?:False|0)\b|\.__enter__\(\)")


def _may_concern(data: bytes) -> bool:
    return any(
        (m.kind == "statement" and _OFF.search(m.line) is not None)
        or (m.kind == "import" and b"set_grad_enabled as " in m.line)
        for m in mentions(data)
    )


NEEDLES: tuple[Needle, ...] = (Look(MODES, _may_concern),)

_ON = re.compile(
    r"enable_grad\b|set_grad_enabled\(\s*(?!(?:mode\s*=\s*)?(?:False|0)\b)|\.__exit__\(|"
    r"inference_mode\(\s*(?:mode\s*=\s*)?False"
)
"""What may switch gradients on, in a function's text."""
_INFERS = re.compile(
    r"_?(detect|test|valid|eval|embed|extract|classif|segment|demo|inpaint|transl|transcri)",
)
_TRAINS = re.compile(r"loss|train|objective", re.IGNORECASE)
_JUDGES = re.compile(r"eval|valid|test|ppl|perplex|metric|infer", re.IGNORECASE)
_LOSS_CALL = re.compile(r"loss|cross_entropy|criterion|kl_div|\bnll", re.IGNORECASE)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    if _stays_on(module):
        return
    for statement, switched in module.grad_switches.items():
        if switched is None or switched.mode is None or switched.entered is not None:
            continue
        call = switched.call
        function = module.function(statement)
        if function is not None and _may_switch_on(module, function):
            continue
        place = _place(module, statement, function)
        if place == "import" and _trains_after_import(module):
            yield _finding(module, statement, call, None)
        elif (place == "run" and _reaches_training(module, statement, function)) or (
            place == "loop" and _trains_in_next_turn(module, statement, function)
        ):
            yield _finding(module, statement, call, function)


def _place(module: ModuleFacts, statement: ast.stmt, function: FunctionNode | None) -> str:
    """Where a switch stands: ``import`` for all who import the file, ``run`` for its own run.

    ``loop`` in a loop, whose next turn starts with it.  An empty string where it depends on
    something, or is inside a class or another scope.
    """
    parent = module.parent(statement)
    if parent is function:
        return "run"
    if parent is module.tree:
        return "import"
    if isinstance(parent, (ast.For, ast.AsyncFor, ast.While)) and statement in parent.body:
        return "loop"
    if isinstance(parent, ast.If) and module.parent(parent) is module.tree:
        return "run" if "__main__" in module.source(parent.test) else ""
    return ""


# -- what trains ----------------------------------------------------------------------------------


def _trains(module: ModuleFacts, function: ast.AST) -> bool:
    """Whether a function calls ``backward``, or hands a model to a trainer."""
    for node in own_nodes(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("backward", "manual_backward"):
                return scope_around(module, node) is None
            if node.func.attr in ("train", "fit") and not node.args:
                if "rainer" in module.source(node.func.value):
                    return True
    return False


def _gives_loss(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a function returns a loss as it is, for someone else to differentiate."""
    if not _TRAINS.search(function.name) or _JUDGES.search(function.name):
        return False
    flow = module.flow(function)
    for node in own_nodes(function):
        if isinstance(node, ast.Return) and node.value is not None:
            value = node.value
            if isinstance(value, ast.Name):
                definition = flow.only_definition(value.id, node)
                value = definition.value if definition and definition.value else value
            if isinstance(value, ast.Call) and _LOSS_CALL.search(module.source(value.func)):
                return True
    return False


def _is_from_scratch(module: ModuleFacts) -> bool:
    """Whether a file makes weights and loads none: a loss is of no use then but to train."""
    if re.search(r"pretrained|load_state_dict|torch\.load|hub\.load", module.usual):
        return False
    return any(next(weights_made(module, call), None) is not None for call in module.calls)


@once
def _training_functions(module: ModuleFacts) -> frozenset[str]:
    """The functions that train, unless gradients may be on again in them, below or above them."""
    training = frozenset(f.name for f in module.functions if _trains(module, f))
    switching = {f.name for f in module.functions if _may_switch_on(module, f)}
    if not training or not switching:
        return training
    calls = {f.name: _called(f) for f in module.functions}
    return frozenset(
        name
        for name in training
        if switching.isdisjoint(_closure(calls, name))
        and not any(name in _closure(calls, other) for other in switching)
    )


def _closure(calls: Mapping[str, set[str]], name: str) -> set[str]:
    """A function and all that it calls, of one file, by name."""
    seen: set[str] = set()
    pending = {name}
    while pending:
        seen |= pending
        pending = {each for n in pending for each in calls.get(n, ())} - seen
    return seen


def _may_switch_on(module: ModuleFacts, function: FunctionNode) -> bool:
    return any(_ON.search(module.source(each)) for each in (function, *function.decorator_list))


def _stays_on(module: ModuleFacts) -> bool:
    """Whether gradients may be switched on for the rest of a run: by a statement, or at import.

    One that another statement of its block takes back is over by then.
    """
    if _ON.search(module.usual) is None:
        return False
    for statement, switched in module.grad_switches.items():
        if switched is not None and switched.mode is None:
            block = module.block(statement)
            after = (module.grad_switches.get(s) for s in block[block.index(statement) + 1 :])
            if not any(later is not None and later.mode is not None for later in after):
                return True
    return any(
        _ON.search(module.source(statement))
        for statement in module.tree.body
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    )


def _trains_after_import(module: ModuleFacts) -> bool:
    """Whether the file trains, or another one that imports it."""
    if _trains(module, module.tree) or _training_functions(module):
        return True
    if _is_from_scratch(module):
        giving = (f for f in module.functions if _gives_loss(module, f))
        if any(not _may_switch_on(module, f) for f in giving):
            return True
    name = module.module_name
    summaries = module.project.summaries(module.path, _training_imports, _BACKWARD.search)
    return any(name in imported for imported in summaries)


_BACKWARD = re.compile(rb"\.backward\(")


def _training_imports(module: ModuleFacts) -> frozenset[str]:
    """What a file that trains imports; nothing where gradients are switched on again there."""
    if _stays_on(module) or not (_trains(module, module.tree) or _training_functions(module)):
        return frozenset()
    names: set[str] = set()
    for node in walk(module.tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = module.project.absolute_import(module, node)
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def _reaches_training(
    module: ModuleFacts, statement: ast.stmt, function: FunctionNode | None
) -> bool:
    """Whether something trains in the run after a switch: here, in a callee, or in a caller."""
    training = _training_functions(module)
    block = module.block(statement)
    after = block[block.index(statement) + 1 :]
    called = {name for node in after for name in _called(node)}
    if any(isinstance(n, ast.stmt) and _trains(module, n) for n in after):
        return True
    bodies = {f.name: f for f in module.functions}
    seen: set[str] = set()
    while called - seen:
        name = (called - seen).pop()
        seen.add(name)
        if name in training:
            return True
        if name in bodies:
            called |= set(_called(bodies[name]))
    if function is None:
        return False
    return any(function.name in _called(bodies[name]) for name in training)


def _trains_in_next_turn(
    module: ModuleFacts, statement: ast.stmt, function: FunctionNode | None
) -> bool:
    """Whether a loop around a switch trains: what comes first in its body comes after it, too."""
    if _reaches_training(module, statement, function):
        return True
    block = module.block(statement)
    after = block[block.index(statement) + 1 :]
    if any(isinstance(s, (ast.Break, ast.Return, ast.Raise)) for s in after):
        return False  # there is no next turn
    training = _training_functions(module)
    return any(
        _trains(module, inner) or not training.isdisjoint(_called_by_name(inner))
        for around in module.ancestors(statement)
        if isinstance(around, (ast.For, ast.AsyncFor, ast.While))
        and module.function(around) is function
        for inner in around.body
    )


def _called_by_name(node: ast.AST) -> set[str]:
    """The functions that code calls, and methods of ``self``: not ``optimizer.step()``."""
    calls = [ast.unparse(n.func) for n in walk(node) if isinstance(n, ast.Call)]
    return {name.removeprefix("self.") for name in calls}


def _called(node: ast.AST) -> set[str]:
    """The names that code calls, as functions or as methods."""
    calls = [n for n in walk(node) if isinstance(n, ast.Call)]
    return {last_name(c.func) for c in calls}


# -- the fix --------------------------------------------------------------------------------------


def _finding(
    module: ModuleFacts, statement: ast.stmt, call: ast.Call, function: FunctionNode | None
) -> Finding:
    text = module.source(call)
    since = "From its import on" if function is None else f"From `{function.name}` on"
    if function is None and module.parent(statement) is not module.tree:
        since = "From here on"
    never = "not undone for what trains" if _ON.search(module.usual) else "never undone"
    message = f"`{text}` is {never}. {since}, no loss has a graph, in training either."
    fix = _fix(module, statement, call, function)
    fixes = dict.fromkeys(STRATEGIES, fix) if fix is not None else {}
    return module.finding("TRN204", message, statement, fixes)


def _fix(
    module: ModuleFacts, statement: ast.stmt, call: ast.Call, function: FunctionNode | None
) -> Fix | None:
    from ..rewrite import layout, scopes

    removal = scopes.without_statement(module, statement)
    torch = layout.bound_at_top(module, "torch")
    if removal is None or torch is None or isinstance(statement, ast.Assign):
        return None
    mode = f"{torch}.no_grad()"
    if isinstance(call.func, ast.Attribute) and call.func.attr == "__enter__":
        mode = module.source(call.func.value)
    places = _inference(module, function)
    edits = [removal]
    for place in places:
        edits.append(_decoration(module, place, mode))
    title = f"Switch gradients off in {', '.join(f.name for f in places)} only"
    if not places:
        title = "Leave gradients on"
    look_at = "whatever else ran without gradients now records a graph"
    return Fix(title, tuple(edits), Safety.UNSAFE, look_at)


def _decoration(module: ModuleFacts, function: FunctionNode, mode: str) -> Edit:
    from ..rewrite import scopes

    return scopes.with_decorator(module, function, mode)


def _inference(module: ModuleFacts, function: FunctionNode | None) -> list[FunctionNode]:
    """The functions that the switch was for: those that run a model and do not train."""
    from ..rewrite.scopes import can_decorate

    training = _training_functions(module)
    found = []
    for each in module.functions:
        if each.name in training or training & _called(each) or not can_decorate(each):
            continue
        if scope_around(module, each.body[0]) is not None or _gives_loss(module, each):
            continue
        if (
            (each is function and each.name != "__init__")
            or is_inference_entry(module, each)
            or (_runs(each) and (_INFERS.match(each.name) or returns_numbers(each)))
        ):
            found.append(each)
    return found


def _runs(function: FunctionNode) -> bool:
    me = self_name(function)
    return any(isinstance(n, ast.Call) and runs_model(n, me) for n in own_nodes(function))
