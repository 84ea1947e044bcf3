"""TRN207: a loss that is told to require a gradient."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.flow import Definition
from ..facts.grad_mode import own_nodes, scope_around
from ..facts.graph import Cut, Graph, Step
from ..facts.guards import runs_model
from ..facts.names import last_name, passed
from ..facts.walk import walk
from ..facts.words import declare, places
from ..findings import Finding
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options

RULES = (
    Rule(
        code="TRN207",
        name="loss-made-a-leaf",
        summary="A loss is told to require a gradient, which hides that it has no graph.",
        why=(
            "requires_grad = True on a loss without a graph makes it a leaf: backward() runs, and "
            "gives a gradient to the loss and to nothing else. On a loss with a graph it does "
            "nothing. What cut the graph is to be repaired, and the line removed."
        ),
        before="""\
import torch.nn.functional as F


def step(model, x, y):
    logits = model(x).detach()
    loss = F.cross_entropy(logits, y)
    loss.requires_grad = True
    loss.backward()
""",
        after="",
    ),
)

(_TOLD,) = declare(b"requires_grad")
_LINE = re.compile(
    rb"(\w+)\.requires_grad(?:[ \t]*=[ \t]*True"
    rb"|_\([ \t]*(?:(?:requires_grad[ \t]*=[ \t]*)?True)?[ \t]*\))"
    rb"|(\w+)[ \t]*=[^\n]*(?:\.requires_grad_\(|\brequires_grad[ \t]*=[ \t]*True)"
)
_LOSS_NAME = (
    r"^(?!.*(?:weight|scale|coef|lambda|param|fn|func|matrix))"
    r".*(?:(?:^|_)(?:loss|losses|objective|nll|elbo)(?:_?\d|_|$)|loss$)"
)
_LOSS = re.compile(_LOSS_NAME, re.IGNORECASE)
_LOSS_BYTES = re.compile(_LOSS_NAME.encode(), re.IGNORECASE)


def _may_concern(data: bytes) -> bool:
    """Whether a name of a loss, or one that ``backward`` is called on, is told to require."""
    for position in places(data, _TOLD):
        start = data.rfind(b"\n", 0, position) + 1
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        for match in _LINE.finditer(data, start, end):
            name = match[1] or match[2]
            if _LOSS_BYTES.search(name) or b"%s.backward(" % name in data:
                return True
    return False


NEEDLES: tuple[Needle, ...] = (Look((_TOLD,), _may_concern),)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for statement in module.statements:
        name = _told(statement)
        if name is None or scope_around(module, statement) is not None:
            continue
        function = module.function(statement) or module.tree
        if _gradient_is_read(function, name) or _is_replayed(function, name, statement):
            continue
        made = _computed(module, name, statement)
        if made is None or not (_LOSS.search(name) or _goes_backward(function, name)):
            continue
        yield _finding(module, name, statement, made)


def _told(statement: ast.stmt) -> str | None:
    """The name that a statement tells to require a gradient, all by itself."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
            told = isinstance(value, ast.Constant) and value.value is True
            return target.value.id if told and isinstance(target.value, ast.Name) else None
        if isinstance(target, ast.Name) and isinstance(value, ast.Call) and _requires(value):
            return target.id
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            return function.value.id if _requires(statement.value) else None
    return None


def _requires(call: ast.Call) -> bool:
    """``x.requires_grad_()``, ``Variable(x, requires_grad=True)``, of a value, not of numbers."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
        given = passed(call)
        return all(isinstance(v, ast.Constant) and v.value is True for v in given)
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
    return name in ("Variable", "tensor", "as_tensor") and any(
        k.arg == "requires_grad" and isinstance(k.value, ast.Constant) and k.value.value is True
        for k in call.keywords
    )


def _computed(module: ModuleFacts, name: str, statement: ast.stmt) -> list[Definition] | None:
    """What a told name was computed by; None where it may be a leaf in its own right."""
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        assert isinstance(statement.value, ast.Call)
        made = [Definition(name, statement, statement.value)]
        of_loss = _of_loss(statement.value) or _sums_losses(module, statement)
        return made if of_loss else None
    flow = module.flow(module.function(statement) or module.tree)
    made = [d for d in flow.reaching(name, statement) if not _is_fresh(module, d.value)]
    if not made or (len(made) == 1 and made[0].is_parameter and not _LOSS.search(name)):
        return None
    return made


def _of_loss(value: ast.expr) -> bool:
    """Whether an expression is made from a loss: ``loss.clone()``, ``tensor(loss.item())``."""
    for node in walk(value):
        if isinstance(node, ast.Name) and _LOSS.search(node.id):
            return True
        if isinstance(node, ast.Call) and node is not value:
            called = last_name(node.func)
            if re.search(r"loss|criterion|cross_entropy|nll|bce", called, re.IGNORECASE):
                return True
    return False


def _sums_losses(module: ModuleFacts, statement: ast.Assign) -> bool:
    """Whether losses were added up in what a tensor is made of: ``total += loss.item()``."""
    used = {n.id for n in walk(statement.value) if isinstance(n, ast.Name)}
    for node in own_nodes(module.function(statement) or module.tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            if node.target.id in used and _of_loss(node.value):
                return True
    return False


def _is_fresh(module: ModuleFacts, value: ast.expr | None) -> bool:
    """Whether a value is made from numbers: ``torch.zeros(1)``, ``0.0``."""
    if not isinstance(value, ast.Call):
        return isinstance(value, ast.Constant)
    return any(t.name.startswith("torch.") for t in module.resolve(value.func)) and not any(
        isinstance(node, ast.Name) for argument in value.args for node in walk(argument)
    )


def _gradient_is_read(function: ast.AST, name: str) -> bool:
    """Whether ``name.grad`` is wanted: then it is meant to be a leaf."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "grad"
        and isinstance(node.value, ast.Name)
        and node.value.id == name
        for node in own_nodes(function)
    )


def _is_replayed(function: ast.AST, name: str, statement: ast.stmt) -> bool:
    """Whether a loss went backward before it was made a leaf, or a hook on the leaf does that.

    So losses over more than one batch are computed with cached gradients.
    """
    if not isinstance(statement, ast.Assign):
        return False
    for node in own_nodes(function):
        if isinstance(node, ast.ListComp) and getattr(_innermost(node), "attr", None) == "grad":
            return True  # cache = [[rep.grad for rep in reps] for reps in batches]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == name and (
                node.attr == "register_hook"
                or (node.attr == "backward" and node.lineno < statement.lineno)
            ):
                return True
    return False


def _innermost(node: ast.expr) -> ast.expr:
    return _innermost(node.elt) if isinstance(node, ast.ListComp) else node


def _goes_backward(function: ast.AST, name: str) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "backward"
        and isinstance(node.value, ast.Name)
        and node.value.id == name
        for node in own_nodes(function)
    )


def _finding(
    module: ModuleFacts, name: str, statement: ast.stmt, made: list[Definition]
) -> Finding:
    cut = _cut(module, made, statement)
    text = " ".join(module.source(statement).split())
    message = f"`{text}` does not give `{name}` a graph: "
    if cut is not None:
        where = f"`{module.source(cut.node).splitlines()[0]}`, line {cut.node.lineno}"
        if cut.scope is not None and cut.scope.node is not cut.node:
            off = module.source(cut.scope.node).splitlines()[0]
            where += f" (gradients are off by `{off}`, line {cut.scope.node.lineno})"
        message += (
            f"it hides that the graph ends at {where}, so that nothing in front of that learns."
        )
    else:
        message += "it does nothing where there is one, and hides the cut where there is none."
    related = () if cut is None else (module.related("The graph ends here.", cut.node),)
    return module.finding("TRN207", message, statement, related=related)


def _cut(module: ModuleFacts, made: list[Definition], statement: ast.stmt) -> Cut | None:
    """What really ends the graph of a loss, where the function shows it."""
    graph = Graph(module, module.function(statement) or module.tree)
    values = [(d.value, d.statement) for d in made if d.value is not None and d.statement]
    steps = graph.back_from(values)
    if any(step.cut is None and _works(step, graph.me) for step in steps):
        return None  # what is cut off is something beside
    behind = [s for s in steps if s.cut is not None]
    # The nearest to the loss of those that take away a model's work, else of all.
    first = min(behind, key=lambda step: not _works(step, graph.me), default=None)
    return first.cut if first is not None else None


def _works(step: Step, me: str | None) -> bool:
    return isinstance(step.node, ast.Call) and runs_model(step.node, me)
