"""TRN2xx: gradients switched off where they are wanted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.grad_mode import no_grad_scope
from ..facts.guards import (
    gradient_unwanted,
    inference_entries,
    is_forward,
    runs_model,
)
from ..facts.names import self_name
from ..facts.trainable import holds_weights, returns_numbers
from ..findings import STRATEGIES, Edit, Finding, Fix, Safety
from . import Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts import Project
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN201",
        name="forward-without-grad",
        summary="A module's forward always runs with gradients switched off.",
        why=(
            "Nothing computed in forward has a grad_fn, so backward() either raises (element 0 of "
            "tensors does not require grad) or, where the loss has another path, leaves every "
            "parameter of the module without a gradient. The scope belongs where inference starts, "
            "in generate or predict."
        ),
        before="""\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)

    @torch.inference_mode()
    def forward(self, x):
        return self.head(x)

    def generate(self, x):
        return self(x).argmax(-1)
""",
        after="""\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(x)

    @torch.inference_mode()
    def generate(self, x):
        return self(x).argmax(-1)
""",
    ),
    Rule(
        code="TRN202",
        name="loss-without-grad",
        summary="A loss is computed with gradients switched off, then backward() is called on it.",
        why=(
            "A tensor made under no_grad has no graph. backward() raises, or does nothing at all "
            "behind a check of requires_grad."
        ),
        before="""\
import torch

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
with torch.no_grad():
    loss = (x * x).sum()
loss.backward()
""",
        after="""\
import torch

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
loss = (x * x).sum()
loss.backward()
""",
    ),
    Rule(
        code="TRN203",
        name="inference-entry-without-scope",
        summary="Inference relied on a scope that moves out of the model's forward.",
        why=(
            "The model's own forward switches gradients off (TRN201). When that scope goes, the "
            "functions that start inference must have it, or generation builds a graph and runs "
            "out of memory."
        ),
        before="",
        after="",
    ),
)

_MODES = (b"no_grad", b"inference_mode", b"set_grad_enabled")
_ANY_MODE = rb"(?:%s)" % b"|".join(_MODES)
_ON_FORWARD = re.compile(
    rb"@[^\n]*" + _ANY_MODE + rb"[^\n]*\n(?:[ \t]*[@#][^\n]*\n)*[^\n]*\bdef forward"
)
_START = re.compile(
    rb"def _?(?:generate|sample|predict|evaluate|infer|complet|chat|stream|text_completion|"
    rb"beam_search|greedy_|profile|warm|dummy_run|capture)"
)
# One pattern for each mode: a search for a fixed string is ten times as fast.
_ALIASES = tuple(re.compile(mode + rb"(?: as |[ \t]*\n)") for mode in _MODES)


def _has_mode(data: bytes) -> bool:
    """Whether a file has a mode on a forward, or a loss near a mode."""
    return any(mode in data for mode in _MODES) and (
        b".backward(" in data
        or _ON_FORWARD.search(data) is not None
        or any(alias.search(data) for alias in _ALIASES)
    )


NEEDLES: tuple[Needle, ...] = (_has_mode, _START.search)


def concerns(data: bytes, path: str, project: Project) -> bool:
    """A file that merely starts inference matters where a forward near it has a scope."""
    return _has_mode(data) or any(project.summaries(path, _scopes, _ON_FORWARD.search))


_REFERENCE = re.compile(r"teacher|target|ema|frozen|ref(erence)?_|_ref\b|old_", re.IGNORECASE)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for function, decorator in _scoped_forwards(module):
        yield _forward(module, function, decorator)
    yield from _losses(module)
    yield from _entries(module)


# -- TRN201: forward ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Start:
    """A function that starts inference; ``scoped`` where it has a scope of its own already."""

    path: str
    line: int
    label: str
    scoped: bool


@dataclass(frozen=True)
class _Scope:
    """A forward that switches gradients off: ``mode(arguments)``."""

    forward: str
    mode: str
    arguments: str


def _starts(module: ModuleFacts) -> tuple[_Start, ...]:
    return tuple(
        _Start(module.path, f.lineno, _label(module, f), _is_scoped(module, f))
        for f in inference_entries(module)
    )


def _scopes(module: ModuleFacts) -> tuple[_Scope, ...]:
    found = []
    for function, decorator in _scoped_forwards(module):
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        mode = next(t.name for t in module.resolve(call, function)).rpartition(".")[2]
        mode = _moved(module, mode)
        arguments = module.source(decorator)[len(module.source(call)) :] or "()"
        found.append(_Scope(_label(module, function), mode, arguments))
    return tuple(found)


def _moved(module: ModuleFacts, text: str) -> str:
    """The scope as it stands at its new place.

    Tensors made under inference_mode cannot be written to in training, so a model that keeps some
    (``self.cache = self.cache.to(x)`` in a forward) gets no_grad.
    """
    for statement in module.statements:
        if not isinstance(statement, ast.Assign):
            continue
        function = module.function(statement)
        if function is not None and is_forward(function):
            if any(
                isinstance(t, ast.Attribute)
                and isinstance(t.value, ast.Name)
                and t.value.id == "self"
                for t in statement.targets
            ):
                return text.replace("inference_mode", "no_grad")
    return text


def _label(module: ModuleFacts, function: FunctionNode) -> str:
    cls = module.method_class(function)
    return f"{cls.name}.{function.name}" if cls is not None else function.name


def _scoped_forwards(module: ModuleFacts) -> Iterator[tuple[FunctionNode, ast.expr]]:
    """The forwards of trainable modules that a decorator switches gradients off for."""
    for function in module.functions:
        if not function.decorator_list or not is_forward(function):
            continue
        for decorator in function.decorator_list:
            if not no_grad_scope(module, decorator, function):
                continue
            cls = module.method_class(function)
            if cls is None or not holds_weights(module, cls) or returns_numbers(function):
                continue
            if not gradient_unwanted(module, cls):
                yield function, decorator


def _is_scoped(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether every run of the model in a function stands under a scope that is there already."""
    if any(no_grad_scope(module, d, function) for d in function.decorator_list):
        return True
    me = self_name(function)
    runs = [c for c in ast.walk(function) if isinstance(c, ast.Call) and runs_model(c, me)]
    return bool(runs) and all(_under_scope(module, call, function) for call in runs)


def _under_scope(module: ModuleFacts, node: ast.AST, function: FunctionNode) -> bool:
    for ancestor in module.ancestors(node):
        if ancestor is function:
            return False
        if isinstance(ancestor, (ast.With, ast.AsyncWith)):
            if any(no_grad_scope(module, item.context_expr, ancestor) for item in ancestor.items):
                return True
    return False


def _forward(module: ModuleFacts, function: FunctionNode, decorator: ast.expr) -> Finding:
    cls = module.method_class(function)
    assert cls is not None
    text = module.source(decorator)
    moved_text = _moved(module, text)
    message = (
        f"`@{text}` on `{cls.name}.{function.name}`: nothing computed there has a gradient, so no "
        "parameter of the model learns."
    )
    own = inference_entries(module)
    others = [
        s for found in module.project.summaries(module.path, _starts, _START.search) for s in found
    ]
    look_at = ""
    if own or others:
        removal = _decorator_removal(module, decorator)
        if removal is None:
            return module.finding("TRN201", message, decorator)
        bare = [f for f in own if not _is_scoped(module, f)]
        edits = [removal, *(_decoration(module, f, moved_text) for f in bare if _can_decorate(f))]
        for start_ in bare:
            if not _can_decorate(start_):
                look_at = f"`{_label(module, start_)}` is async: put its work under {text}"
        for start in others:
            if not start.scoped and not _in_roots(module, start.path):
                where = f"{start.label} ({start.path}:{start.line})"
                look_at = f"put @{text} on {where}, which relies on the scope of this forward"
        labels = [*(_label(module, f) for f in own), *(s.label for s in others)]
        places = ", ".join(dict.fromkeys(f"`{label}`" for label in labels))
        moved = bare or any(not s.scoped for s in others)
        verb = "move it to" if moved else "it stays on"
        message += f" Inference starts in {places}: {verb} there."
        title = f"Take @{text} off {cls.name}.{function.name}"
    else:
        wrapped = _follow_training(module, function, decorator)
        if wrapped is None:
            return module.finding("TRN201", message, decorator)
        edits = wrapped
        message += " Nothing in the project starts inference, so let it follow the training flag."
        title = f"Let {cls.name}.{function.name} record gradients while training"
    fix = Fix(title, tuple(edits), Safety.UNSAFE if look_at else Safety.SAFE, look_at)
    return module.finding("TRN201", message, decorator, dict.fromkeys(STRATEGIES, fix))


def _in_roots(module: ModuleFacts, other: str) -> bool:
    """Whether the run that looks at ``module`` will look at another path too."""
    path = Path(other).absolute()
    for root in module.project.roots:
        base = root.absolute()
        if path == base or base in path.parents:
            return True
    return False


def _decorator_removal(module: ModuleFacts, decorator: ast.expr) -> Edit | None:
    """Delete the line of a decorator; None where it shares its lines with something."""
    first, last = decorator.lineno, decorator.end_lineno
    assert last is not None
    start = module.line_starts[first - 1]
    end = module.line_starts[last] if last < len(module.line_starts) else len(module.text)
    before = module.text[start : module.start(decorator)].strip()
    after = module.text[module.end(decorator) : end].strip()
    return Edit(start, end, "") if before == "@" and not after else None


def _can_decorate(function: FunctionNode) -> bool:
    """Whether a scope as a decorator holds while the function runs: not for a coroutine."""
    return not isinstance(function, ast.AsyncFunctionDef)


def _decoration(module: ModuleFacts, function: FunctionNode, text: str) -> Edit:
    """Put a decorator right above ``def``, below the ones that are there."""
    start = module.line_starts[function.lineno - 1]
    return Edit(start, start, f"{module.indentation(function)}@{text}{module.newline}")


def _follow_training(
    module: ModuleFacts, function: FunctionNode, decorator: ast.expr
) -> list[Edit] | None:
    """Take the decorator off and wrap the body in a scope that follows ``self.training``."""
    from ..rewrite import layout

    me = self_name(function)
    removal = _decorator_removal(module, decorator)
    body = function.body
    if ast.get_docstring(function, clean=False) is not None:
        body = body[1:]
    if me is None or removal is None or not body:
        return None
    if not layout.owns_lines(module, body[0]) or not layout.owns_lines(module, body[-1]):
        return None
    torch = layout.bound_at_top(module, "torch")
    if torch is None:
        return None
    wanted = f"{me}.training and {torch}.is_grad_enabled()"
    call = decorator.func if isinstance(decorator, ast.Call) else decorator
    if any(t.name.endswith("inference_mode") for t in module.resolve(call)):
        scope = f"{torch}.inference_mode(not ({wanted}))"
    else:
        scope = f"{torch}.set_grad_enabled({wanted})"
    ind, unit = module.indentation(body[0]), module.indent_unit
    first = module.position(layout.line_start(module, body[0]))[0]
    while module.line_text(first - 1).lstrip().startswith("#"):
        first -= 1  # comments above the first statement belong to it
    last = _end_line(body[-1])
    start = module.line_starts[first - 1]
    text = f"{ind}with {scope}:{module.newline}{layout.indent(module, first, last, unit)}"
    return [removal, Edit(start, layout.line_end(module, body[-1]), text)]


# -- TRN203: where inference starts ---------------------------------------------------------------


def _entries(module: ModuleFacts) -> Iterator[Finding]:
    """Functions in this file that rely on a scope which another file's forward is about to lose."""
    for scopes in module.project.summaries(module.path, _scopes, _ON_FORWARD.search):
        if scopes:
            starts = [f for f in inference_entries(module) if _can_decorate(f)]
            bare = [f for f in starts if not _is_scoped(module, f)]
            yield from (_entry(module, f, scopes[0]) for f in bare)
            return


def _entry(module: ModuleFacts, function: FunctionNode, scope: _Scope) -> Finding:
    from ..rewrite import layout

    edits: list[Edit] = []
    torch = layout.bound_at_top(module, "torch")
    if torch is None:
        torch = "torch"
        edits.append(layout.import_edit(module, "import torch"))
    text = f"{torch}.{scope.mode}{scope.arguments}"
    edits.insert(0, _decoration(module, function, text))
    message = (
        f"`{function.name}` relies on `{scope.forward}` to switch gradients off; that scope "
        "belongs here."
    )
    fix = Fix(f"Put @{text} on {function.name}", tuple(edits))
    return module.finding("TRN203", message, _name_node(function), dict.fromkeys(STRATEGIES, fix))


def _name_node(function: FunctionNode) -> ast.expr:
    """A node that covers ``def name``, to point at."""
    prefix = "async def " if isinstance(function, ast.AsyncFunctionDef) else "def "
    node = ast.Name(id=function.name)
    node.lineno = node.end_lineno = function.lineno
    node.col_offset = function.col_offset
    node.end_col_offset = function.col_offset + len((prefix + function.name).encode())
    return node


# -- TRN202: losses -------------------------------------------------------------------------------


def _losses(module: ModuleFacts) -> Iterator[Finding]:
    if ".backward(" not in module.text:
        return
    for call in module.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
            continue
        loss = call.func.value
        if not isinstance(loss, ast.Name) or gradient_unwanted(module, call):
            continue
        statement = module.statement(call)
        flow = module.flow(module.function(call) or module.tree)
        definition = flow.only_definition(loss.id, statement)
        if definition is None or definition.statement is None or definition.value is None:
            continue
        scope = _scope_around(module, definition.statement)
        if scope is None or scope in module.ancestors(call):
            continue
        yield _loss(module, scope, definition.statement, loss.id)


def _scope_around(module: ModuleFacts, statement: ast.stmt) -> ast.With | None:
    """The ``with`` right around a statement, when it switches gradients off."""
    parent = module.parent(statement)
    if isinstance(parent, ast.With) and any(
        no_grad_scope(module, item.context_expr, parent) for item in parent.items
    ):
        return parent
    return None


def _loss(module: ModuleFacts, scope: ast.With, statement: ast.stmt, name: str) -> Finding:
    item = next(i for i in scope.items if no_grad_scope(module, i.context_expr))
    text = module.source(item.context_expr)
    message = (
        f"`{name}` is computed under `{text}`, so `{name}.backward()` has no graph to go through: "
        "nothing gets a gradient."
    )
    needed = _slice(scope.body, statement)
    edits = _lift(module, scope, item, needed)
    if edits is None:
        return module.finding("TRN202", message, statement)
    fix = Fix(f"Compute {name} outside {text}", tuple(edits))
    return module.finding("TRN202", message, statement, dict.fromkeys(STRATEGIES, fix))


def _slice(body: Sequence[ast.stmt], statement: ast.stmt) -> list[ast.stmt]:
    """The statements that a value needs, up to its own; references (teachers, targets) stay."""
    wanted = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
    kept = [statement]
    for previous in reversed(body[: body.index(statement)]):
        stores = {
            n.id
            for n in ast.walk(previous)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        if stores & wanted and not _is_reference(previous):
            kept.append(previous)
            wanted |= {n.id for n in ast.walk(previous) if isinstance(n, ast.Name)}
    return kept[::-1]


def _is_reference(statement: ast.stmt) -> bool:
    names = [n.id for n in ast.walk(statement) if isinstance(n, ast.Name)]
    names += [n.attr for n in ast.walk(statement) if isinstance(n, ast.Attribute)]
    return any(_REFERENCE.search(name) for name in names)


def _lift(
    module: ModuleFacts, scope: ast.With, item: ast.withitem, needed: Sequence[ast.stmt]
) -> list[Edit] | None:
    """Take the needed statements out of the scope, order and comments kept."""
    from ..rewrite import layout

    if not layout.owns_lines(module, scope) or scope.body[0].lineno == scope.lineno:
        return None
    if len(scope.items) > 1 or item.optional_vars is not None:
        return None
    outer, inner = module.indentation(scope), module.indentation(scope.body[0])
    if not inner.startswith(outer):
        return None
    unit = inner[len(outer) :]
    head_start = module.line_starts[scope.lineno - 1]
    # comments between the head and the first statement belong to that statement
    header_line = module.position(module.end(item.context_expr))[0]
    comment_start = module.line_starts[header_line]
    head = module.text[head_start:comment_start]
    edits: list[Edit] = []
    inside: bool | None = None
    for i, statement in enumerate(scope.body):
        begin = header_line + 1 if i == 0 else _end_line(scope.body[i - 1]) + 1
        stays = statement not in needed
        if stays and inside is not True and i > 0:
            offset = module.line_starts[begin - 1]
            edits.append(Edit(offset, offset, head))
        if not stays:
            edits += layout.dedent_edits(module, begin, _end_line(statement), unit)
        if i == 0 and not stays:
            edits.append(Edit(head_start, comment_start, ""))
        inside = stays
    return edits


def _end_line(statement: ast.stmt) -> int:
    assert statement.end_lineno is not None
    return statement.end_lineno
