"""TRN206: a scope that stands between what is to be trained and the loss."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.comments import explained
from ..facts.frozen import is_frozen
from ..facts.grad_bytes import MODES, Mention, mentions
from ..facts.grad_mode import (
    Scope,
    decorator_scope,
    scope_around,
    scope_at,
    scope_inside,
    scope_of_flag,
    wrapping,
)
from ..facts.graph import (
    Graph,
    Step,
    calls_any,
    effects,
    results,
    scope_of_results,
    under_scopes,
)
from ..facts.guards import gradient_unwanted, implies_unwanted, is_forward
from ..facts.leaving import leaving
from ..facts.memo import once
from ..facts.module import head
from ..facts.names import last_name, parameters, passed, self_name
from ..facts.scope_wrappers import only_switches
from ..facts.trainable import returns_numbers, submodules, trained_submodules
from ..facts.walk import walk
from ..facts.words import undeclared
from ..findings import STRATEGIES, Edit, Finding, Fix, Proven, Safety
from . import Look, Needle, Rule
from .caches import ends_on_purpose
from .forward_scopes.still_runs import still_runs
from .fused_calls.left_in_place import held_back

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN206",
        name="scope-before-loss",
        summary="What is to be trained reaches the loss only through a scope without gradients.",
        why=(
            "no_grad does not freeze a module: it cuts off everything in front of it. A projector "
            "before a frozen language model, or the keys before a cache, get no gradient at all. "
            "requires_grad_(False) freezes, and lets gradients through."
        ),
        before="""\
import torch
from torch import nn


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.projector = nn.Linear(8, 8)
        self.llm = nn.Linear(8, 100).requires_grad_(False)

    def forward(self, image):
        tokens = self.projector(image)
        with torch.no_grad():
            return self.llm(tokens)
""",
        after="""\
import torch
from torch import nn


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.projector = nn.Linear(8, 8)
        self.llm = nn.Linear(8, 100).requires_grad_(False)

    def forward(self, image):
        tokens = self.projector(image)
        return self.llm(tokens)
""",
    ),
)

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_HELPS = re.compile(
    rb"\n(?:[ \t]+@[^\n]*(?:no_grad|inference_mode)[^\n]*\n"
    rb"[ \t]+def (?!_|get_|init|reset)\w+\(\s*self,"
    rb"|@[^\n]*(?:no_grad|inference_mode)[^\n]*\n"
    rb"def (?!_?(?:get|init|reset|eval|test|gen|sampl|pred|main|run|valid|load|save|convert|copy"
    rb"|update|print|plot|comput|infer)|main\b)\w+\()"
)
"""A method, or a function, under a mode that a forward in another file may hand something to."""

_WORKS = re.compile(rb"\bself\.[\w.\[\]]+\(|\bself\.\w+ *@|@ *self\.|\breturn\b")
_GIVES = re.compile(rb"\b(?:return|yield)\b")
_NOT_USED = (b"forward", b"generate", b"_init", b"init_", b"reset_", b"evaluate", b"get_")


def _may_concern(data: bytes) -> bool:
    """Whether a forward has a scope, or uses what a function with a mode on it gives back."""
    found = mentions(data)
    if not found:
        return False
    if b"def forward" not in data:
        return any(mention.kind == "decorator" and _HELPS.search(data) for mention in found)
    return any(_matters(data, mention) for mention in found)


def _matters(data: bytes, mention: Mention) -> bool:
    in_forward = mention.function.startswith(b"forward")
    if mention.kind == "with" and in_forward:
        return b"training" in mention.before or _WORKS.search(mention.block) is not None
    if mention.kind == "with":
        return _GIVES.search(mention.block) is not None and _is_used(data, mention.function)
    if mention.kind == "statement":
        if in_forward:
            return True
        return mention.line.startswith(b"return") and _is_used(data, mention.function)
    return mention.kind == "decorator" and _is_used(data, mention.function)


_USES = re.compile(rb"(?:=|return|with|\().*(?<!\w)$")


def _is_used(data: bytes, name: bytes) -> bool:
    """Whether the result of a function that may be part of a forward is used in the file."""
    if not name or name.startswith(_NOT_USED):
        return False
    for at in undeclared(data, name + b"("):
        line = data[data.rfind(b"\n", 0, at) + 1 : at].rpartition(b"#")[2]
        if _USES.search(line):
            return True
    return False


NEEDLES: tuple[Needle, ...] = (Look(MODES, _may_concern),)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    scoped = module.scoped_functions
    without = frozenset(function.name for function in under_scopes(module))
    for function in module.functions:
        if not is_forward(function):
            if function.decorator_list or module.grad_wrappers:
                yield from _handed_back(module, function)
            continue
        if function in scoped:
            yield from _gated(module, function)
        if function in scoped or calls_any(module, function, without):
            yield from _cut_off(module, function, options)


# -- a scope on the only way ----------------------------------------------------------------------


def _cut_off(module: ModuleFacts, function: FunctionNode, options: Options) -> Iterator[Finding]:
    """Scopes that something computed with gradients has to pass, in one forward."""
    cls = module.method_class(function)
    if cls is None or decorator_scope(module, function) or returns_numbers(function):
        return
    adapted = _adapted(module, cls)
    trained = trained_submodules(module, cls) | adapted
    if not trained:
        return
    graph = Graph(module, function)
    steps = graph.back_from([*results(function), *effects(function)])
    cut: dict[str, Step] = {}
    learning: set[str] = set()
    through: set[ast.AST] = {function}
    for step in steps:
        under = scope_inside(module, step.at, function) is not None
        names = _attributes(module, graph, step, through) & (adapted if under else trained)
        if not names:
            continue
        scope = step.cut.scope if step.cut is not None else None
        if scope is not None and scope.wraps is not None and _is_inside(module, graph, step, scope):
            continue
        if step.cut is not None and step.cut.scope is not None:
            cut.update({name: step for name in names if name not in cut})
        else:
            learning |= names
    by_scope: dict[ast.stmt, list[str]] = {}
    scopes: dict[ast.stmt, Scope] = {}
    for name, step in cut.items():
        assert step.cut is not None and step.cut.scope is not None
        owner = step.cut.scope.owner
        place = owner if step.cut.node is step.cut.scope.node else step.cut.node
        if name in learning or _learns_elsewhere(module, cls, through, name):
            continue
        if not gradient_unwanted(module, place):
            by_scope.setdefault(owner, []).append(name)
            scopes[owner] = step.cut.scope
    for owner, behind in by_scope.items():
        yield _finding(module, graph, function, steps, scopes[owner], sorted(behind), options)


_ADAPTS = re.compile(
    r"get_peft_model$|inject_adapter_in_model$|(?<![a-z])(?:LoRA|Lora|DoRA)[A-Z]\w*$"
)
_IS_ADAPTER = re.compile(r"(?<![a-z])(?:LoRA|Lora|DoRA|Adapter)(?![a-z])|^(?:LORA|DORA)")
_ADAPTER_IS_LOADED = re.compile(r"merge_and_unload|load_adapter|load_state_dict")


@once
def _adapted(module: ModuleFacts, cls: ast.ClassDef) -> frozenset[str]:
    """The attributes of a class that are adapters, or given some: new weights, to be trained.

    Under a scope the adapters learn nothing, whatever becomes of the network around them.
    """
    text = module.source(cls)
    if _ADAPTER_IS_LOADED.search(text):
        return frozenset()
    return frozenset(
        name
        for name, bindings in module.names.attributes(cls).items()
        if f"{name}.eval()" not in text and not is_frozen(module, cls, name)
        if any(
            isinstance(b.value, ast.Call)
            and (
                _ADAPTS.search(last_name(b.value.func))
                or (_IS_ADAPTER.search(cls.name) and _is_new_weight(b.value))
            )
            for b in bindings
        )
    )


def _is_new_weight(made: ast.Call) -> bool:
    """``nn.Parameter(...)`` that requires a gradient."""
    return last_name(made.func) == "Parameter" and not any(
        keyword.arg == "requires_grad" for keyword in made.keywords
    )


def proven(module: ModuleFacts, place: Proven) -> Iterator[Finding]:
    """A scope in which something is computed that has to learn."""
    from ..rewrite import scopes as rewrite

    if place.kind != "scope":
        return
    scope = scope_at(module, place.line) or scope_of_flag(module, place.line)
    if scope is None or explained(module, scope.node) or gradient_unwanted(module, scope.owner):
        return
    if scope.node in getattr(scope.owner, "decorator_list", ()):
        if not only_switches(module, scope.node):
            return
    lines = set(place.lines)

    def needed(statement: ast.stmt) -> bool:
        ran = range(statement.lineno, (statement.end_lineno or 0) + 1)
        return not lines.isdisjoint(ran) and not ends_on_purpose(module, statement)

    edits = rewrite.freed(module, scope, needed)
    if not edits:
        return
    text = module.source(scope.node)
    message = f"What is computed under `{text}` is trained through, and its gradient ends there."
    fix = Fix(f"Compute it outside {text}", tuple(edits))
    home = scope.owner if isinstance(scope.owner, _FUNCTIONS) else module.function(scope.owner)
    with_repairs = still_runs(module, fix, [home] if home is not None else [], scope)
    fix = replace(fix, edits=with_repairs.edits)  # what more it takes, a run shows
    yield module.finding("TRN206", message, scope.node, dict.fromkeys(STRATEGIES, fix))


def _attributes(
    module: ModuleFacts, graph: Graph, step: Step, through: set[ast.AST], depth: int = 3
) -> set[str]:
    """The attributes of ``self`` that a step works with, those of an own method's result too.

    Such methods are added to ``through``.
    """
    name = graph.attribute(step.node, step.at)
    found = {name} if name is not None else set()
    callee = graph.callee(step.node) if isinstance(step.node, ast.Call) else None
    cls = module.method_class(graph.function)
    if callee is None or depth == 0 or cls is None or module.method_class(callee) is not cls:
        return found
    if scope_of_results(module, callee) is not None:
        return found
    inside, methods = _attributes_of_result(module, callee, depth - 1)
    through |= methods
    return found | inside


@once
def _attributes_of_result(
    module: ModuleFacts, method: FunctionNode, depth: int
) -> tuple[frozenset[str], frozenset[ast.AST]]:
    """The attributes of ``self`` that a method's result is made with, and the methods for it."""
    found: set[str] = set()
    through: set[ast.AST] = {method}
    graph = Graph(module, method)
    for step in graph.back_from([*results(method), *effects(method)]):
        if step.cut is None:
            found |= _attributes(module, graph, step, through, depth)
    return frozenset(found), frozenset(through)


def _learns_elsewhere(
    module: ModuleFacts, cls: ast.ClassDef, through: set[ast.AST], name: str
) -> bool:
    """Whether something else in the file runs a submodule where gradients are recorded.

    ``through`` is a forward, with the methods of its own that it goes through.
    """
    forward = {getattr(function, "name", "") for function in through}
    names = {name} | {n for n in forward if not n.startswith("forward")}
    for node in walk(module.tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in names or module.function(node) in through:
            continue
        owner = node.func.value
        other = module.names.self_class(owner)
        if other in (None, cls) and scope_around(module, node) is None:
            return True
    return False


def _finding(
    module: ModuleFacts,
    graph: Graph,
    function: FunctionNode,
    steps: list[Step],
    scope: Scope,
    names: list[str],
    options: Options,
) -> Finding:
    cls = module.method_class(function)
    assert cls is not None
    text = module.source(scope.node)
    listed = ", ".join(f"`self.{name}`" for name in names)
    verb = "reaches" if len(names) == 1 else "reach"
    what = f"`{text}`"
    if isinstance(scope.owner, _FUNCTIONS):
        what = f"`{scope.owner.name}`, which runs under {what}"
    message = (
        f"{listed} {verb} the result of `{cls.name}.{function.name}` only through {what}, and "
        "so learns nothing."
    )
    message = message if len(names) == 1 else message.replace("so learns", "so learn")
    fix = _fix(module, graph, function, steps, scope)
    fixes = {}
    if fix is not None:
        home = scope.owner if isinstance(scope.owner, _FUNCTIONS) else function
        fix = still_runs(module, fix, [home], scope, parting=True)
        fixes = held_back(module, fix, _covered(graph, scope), options)
    related = module.related("Its result is what they are to learn from.", head(function))
    return module.finding("TRN206", message, scope.node, fixes, [related])


def _written(module: ModuleFacts, function: FunctionNode, scope: Scope) -> str:
    """A mode on a function as it stands there: as a decorator, or called in a statement."""
    return "@" * (scope.node in function.decorator_list) + module.source(scope.node)


def _fix(
    module: ModuleFacts, graph: Graph, function: FunctionNode, steps: list[Step], scope: Scope
) -> Fix | None:
    from ..rewrite import scopes as rewrite

    text = module.source(scope.node)
    owner = scope.owner
    if isinstance(owner, _FUNCTIONS):
        removal = rewrite.without_decorator(module, scope.node)
        if removal is None:
            return None
        look_at = f"whoever else calls {owner.name} now records a graph there"
        title = f"Take {_written(module, owner, scope)} off {owner.name}"
        return Fix(title, (removal,), Safety.UNSAFE, look_at)
    inside = [s for s in steps if s.cut is not None and s.cut.scope == scope]
    doubt = ""
    if isinstance(owner, (ast.With, ast.AsyncWith)) and scope.wraps is None:
        values = list(results(function))
        towards = [s for s in graph.back_from(values) if s.cut and s.cut.scope == scope]
        if towards:
            inside = towards
        else:
            values += effects(function)
        left = leaving(module, graph, scope, values)
        edits, doubt = rewrite.left(module, owner, scope.node, left), left.doubt
    else:
        edits = rewrite.removal(module, scope)
    if not edits:
        return None
    used = {graph.attribute(s.node, s.at) for s in inside if _is_inside(module, graph, s, scope)}
    cls = module.method_class(function)
    assert cls is not None
    meant = _adapted(module, cls)
    thawed = [
        name
        for name in submodules(module, cls)
        if name in used and name not in meant and not is_frozen(module, cls, name)
    ]
    title = f"Compute it outside {text}"
    doubts = [doubt] if doubt else []
    if thawed:
        listed = ", ".join(f"self.{name}" for name in thawed)
        doubts.append(f"{listed} can learn too now: requires_grad_(False) is what freezes")
    elif module.grad_switches.get(owner) is not None and len(_until_switched(module, owner)) > 1:
        doubts.append(f"what else ran after {text} now records a graph")
    if not doubts:
        return Fix(title, tuple(edits))
    return Fix(title, tuple(edits), Safety.UNSAFE, "; ".join(doubts))


def _covered(graph: Graph, scope: Scope) -> list[ast.stmt]:
    """The statements under a scope of a forward, or all of what may be."""
    if isinstance(scope.owner, (ast.With, ast.AsyncWith)) and scope.wraps is None:
        return scope.owner.body
    if isinstance(scope.owner, _FUNCTIONS):
        return scope.owner.body
    return [scope.owner] if scope.wraps is not None else list(graph.function.body)


def _until_switched(module: ModuleFacts, statement: ast.stmt) -> list[ast.stmt]:
    """The statements of a block that run after one has set the mode, until another sets it."""
    block = module.block(statement)
    return list(
        takewhile(lambda s: s not in module.grad_switches, block[block.index(statement) + 1 :])
    )


def _is_inside(module: ModuleFacts, graph: Graph, step: Step, scope: Scope) -> bool:
    """Whether something stands in a scope itself, not merely before it."""
    if scope.wraps is not None:
        call = step.node
        if isinstance(call, ast.Call) and wrapping(module, call.func, step.at) == scope:
            return True
        return any(node is call for node in walk(scope.wraps))
    return scope_inside(module, step.at, graph.function) == scope


# -- a scope on a method that forwards of other files call ----------------------------------------


def _handed_back(module: ModuleFacts, function: FunctionNode) -> Iterator[Finding]:
    """A function under a mode that gives its arguments back, to a forward that learns by them."""
    cls = module.method_class(function)
    scope = decorator_scope(module, function)
    if scope is None or gradient_unwanted(module, function) or returns_numbers(function):
        return
    if cls is None and module.parent(function) is not module.tree:
        return
    steps = Graph(module, function).back_from(results(function))
    given = {argument.arg for argument in parameters(function.args)} - {self_name(function)}
    if not any(
        step.cut is None and isinstance(step.node, ast.Name) and step.node.id in given
        for step in steps
    ):
        return
    name = cls.name.lower().encode() if cls is not None else b""
    called = re.compile(rb"\.\s*%s\s*\(" % function.name.encode())

    def calls_one(data: bytes) -> bool:
        """Whether the bytes of a file have what :func:`_may_be_of` looks for, and a forward."""
        if cls is None:
            return b"def forward" in data and b"import " in data
        before = (data[max(0, m.start() - _NEAR) : m.start()] for m in called.finditer(data))
        owners = {_NO_WORD.split(text.rstrip())[-1].strip(b"_").lower() for text in before}
        return any(owner in name for owner in owners) and b"def forward" in data

    for other, call in module.project.calls_of(module, function, calls_one, elsewhere=True):
        caller = other.function(call)
        if caller is None or not is_forward(caller):
            continue
        if cls is not None and not _may_be_of(call, cls):
            continue
        if gradient_unwanted(other, call):
            continue
        names = _learning_through(other, caller, call)
        if names:
            yield _stored(module, function, scope, other, caller, names)
            return


_NO_WORD = re.compile(rb"\W+")
_NEAR = 80
"""Bytes before a call in which the name of the object may begin."""


def _may_be_of(call: ast.Call, cls: ast.ClassDef) -> bool:
    """Whether a call is of a method of this class, by what the object is called: ``cache``."""
    if not isinstance(call.func, ast.Attribute):
        return False
    name = ast.unparse(call.func.value).rpartition(".")[2].strip("_").lower()
    return len(name) > 3 and name in cls.name.lower()


def _learning_through(module: ModuleFacts, caller: FunctionNode, call: ast.Call) -> list[str]:
    """The submodules that reach the result of a forward only as arguments of a call."""
    cls = module.method_class(caller)
    if cls is None or decorator_scope(module, caller) or returns_numbers(caller):
        return []
    graph, other = Graph(module, caller), Graph(module, caller, avoided=[call])
    reaching = {graph.attribute(s.node, s.at) for s in graph.back_from(results(caller))}
    otherwise = {
        other.attribute(s.node, s.at) for s in other.back_from([*results(caller), *effects(caller)])
    }
    trained = trained_submodules(module, cls)
    return sorted(name for name in trained if name in reaching - otherwise)


def _stored(
    module: ModuleFacts,
    function: FunctionNode,
    scope: Scope,
    other: ModuleFacts,
    caller: FunctionNode,
    names: list[str],
) -> Finding:
    from ..rewrite import scopes as rewrite

    cls = other.method_class(caller)
    assert cls is not None
    text = module.source(scope.node)
    listed = " and ".join(f"`self.{name}`" for name in names)
    verb = ("reaches", "learns") if len(names) == 1 else ("reach", "learn")
    message = (
        f"{listed} of `{cls.name}` {verb[0]} its result only through `{function.name}`, which runs "
        f"under `{text}`, and so {verb[1]} nothing."
    )
    removal = rewrite.without_decorator(module, scope.node)
    fixes = {}
    if removal is not None:
        look_at = f"whoever else calls {function.name} now records a graph there"
        title = f"Take {_written(module, function, scope)} off {function.name}"
        fix = Fix(title, (removal,), Safety.UNSAFE, look_at)
        fixes = dict.fromkeys(STRATEGIES, fix)
    related = other.related("Its result is what they are to learn from.", head(caller))
    return module.finding("TRN206", message, scope.node, fixes, [related])


# -- a scope behind self.training -----------------------------------------------------------------


def _gated(module: ModuleFacts, function: FunctionNode) -> Iterator[Finding]:
    """``if self.training: y = f(x)``, else the same under ``no_grad``."""
    for node in walk(function):
        if not isinstance(node, ast.If) or "training" not in module.source(node.test):
            continue
        recording, scoped = _arms(module, node)
        scope = scoped[0] if len(scoped) == 1 else None
        if not isinstance(scope, ast.With) or len(scope.items) != 1:
            continue
        entered = scope_inside(module, scope.body[0], function)
        if entered is None or entered.owner is not scope or not _same(recording, scope.body):
            continue
        if not _takes_input(module, function, scope):
            continue
        text = module.source(entered.node)
        message = (
            f"Outside of training the same work runs under `{text}`: `training` is about dropout, "
            "and a frozen part in eval mode still has to pass gradients on."
        )
        edits = _ungated(module, node, scope, recording)
        fixes = {}
        if edits:
            look_at = "evaluation that counted on this needs a no_grad of its own"
            fix = Fix("Do it once, for both", tuple(edits), Safety.UNSAFE, look_at)
            fixes = dict.fromkeys(STRATEGIES, fix)
        yield module.finding("TRN206", message, entered.node, fixes)


def _takes_input(module: ModuleFacts, function: FunctionNode, scope: ast.With) -> bool:
    """Whether anything in a scope works on what a forward is given: weights alone pass none on."""
    given = set(module.flow(function).parameters) - {self_name(function)}
    values = [
        (argument, module.statement(node))
        for statement in scope.body
        for node in walk(statement)
        if isinstance(node, ast.Call)
        for argument in passed(node)
    ]
    steps = Graph(module, function).back_from(values)
    return any(isinstance(step.node, ast.Name) and step.node.id in given for step in steps)


def _arms(module: ModuleFacts, node: ast.If) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statements for training, and those for the rest of the time."""
    rest = node.orelse
    if not rest and isinstance(node.body[-1], ast.Return):
        block = module.block(node)
        rest = block[block.index(node) + 1 :]
    if implies_unwanted(module, node.test, False):
        return node.body, rest
    if implies_unwanted(module, node.test, True):
        return rest, node.body
    return [], []


def _same(left: list[ast.stmt], right: list[ast.stmt]) -> bool:
    return bool(left) and [ast.dump(s) for s in left] == [ast.dump(s) for s in right]


def _ungated(
    module: ModuleFacts, node: ast.If, scope: ast.With, recording: list[ast.stmt]
) -> list[Edit]:
    """Keep the arm that records, one level out, in place of both."""
    from ..rewrite import layout
    from ..rewrite.scopes import end_line

    first, last = recording[0], recording[-1]
    whole_end = max(end_line(node), end_line(scope), end_line(last))
    lone = not isinstance(module.parent(node), ast.If) or module.line_text(
        node.lineno
    ).lstrip().startswith("if")
    if not lone or not all(layout.owns_lines(module, s) for s in (node, scope, first, last)):
        return []
    if first.lineno == node.lineno:
        return []
    outer, inner = module.indentation(node), module.indentation(first)
    unit = inner[len(outer) :] if inner.startswith(outer) else ""
    start = first.lineno
    while start > node.lineno + 1 and module.line_text(start - 1).lstrip().startswith("#"):
        start -= 1
    edits = [Edit(module.line_starts[node.lineno - 1], module.line_starts[start - 1], "")]
    edits += layout.dedent_edits(module, start, end_line(last), unit) if unit else []
    if end_line(last) < whole_end:
        stop = len(module.text)
        if whole_end < len(module.line_starts):
            stop = module.line_starts[whole_end]
        edits.append(Edit(module.line_starts[end_line(last)], stop, ""))
    return edits
