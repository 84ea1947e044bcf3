"""TRN603: loops that step an optimizer whose gradients are gone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.learning import LOSS_CALL
from ..facts.names import is_none, passed
from ..facts.walk import walk
from ..findings import Finding
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options

RULES = (
    Rule(
        code="TRN603",
        name="step-without-backward",
        summary="A loop calls step() again and again, and nothing in it computes new gradients.",
        why=(
            "The gradients are gone after the first round: zero_grad() or the optimizer itself "
            "has set them to None. Every later step() walks over parameters that have none, "
            "skips them all, and returns as if it had worked. backward() belongs in the loop."
        ),
        before="""\
import torch


def train(model, x, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).pow(2).mean().backward()
    for _ in range(steps):
        optimizer.step()
        optimizer.zero_grad()
""",
        after="",
    ),
)

_MAKES = re.compile(rb"\boptim\.\w+\(|\boptimizer\w*[ \t]*=")
_STEPS = re.compile(rb"(?:for|while) [^\n]*:[^\n]*\n(?:[^\n]*\n){0,12}?[^\n]*\.step\(\)")


def _may_concern(data: bytes) -> bool:
    gone = b".zero_grad(" in data or b".grad = None" in data or b".grad, None" in data
    never = not any(word in data for word in _COMPUTES) and _MAKES.search(data) is not None
    return (gone or never) and _STEPS.search(data) is not None


_COMPUTES = (b"backward", b"grad(", b".grad", b"vjp", b"jacobian")
"""What a file has in it that computes gradients, or sets them."""


NEEDLES: tuple[Needle, ...] = (Look((b".step()",), _may_concern),)

_HARMLESS = frozenset("print len range enumerate tqdm trange float int str zip sum item".split())
"""Calls that no backward can hide in."""


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    data = module.usual.encode(errors="replace").replace(b".zero_grad(", b"")
    never = not any(word in data for word in _COMPUTES)
    for loop in module.statements:
        if isinstance(loop, (ast.For, ast.While)):
            idle = list(_idle(module, loop))
            yield from idle
            if never and not idle:
                yield from _without_backward(module, loop)


# -- no backward in the whole file ----------------------------------------------------------------


def _without_backward(module: ModuleFacts, loop: ast.For | ast.While) -> Iterator[Finding]:
    """A loss is computed, the optimizer steps, and nothing differentiates the one for the other."""
    calls = [c for c in _of_turn(loop) if isinstance(c, ast.Call)]
    step = next((c for c in calls if _method(c) == "step" and not c.args and not c.keywords), None)
    if step is None or not _is_torchs(module, step):
        return
    assert isinstance(step.func, ast.Attribute)
    optimizer = ast.unparse(step.func.value)
    losses = {
        s.targets[0].id: s
        for s in _of_turn(loop)
        if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)
        if isinstance(s.value, ast.Call) and _is_loss(module, s.value)
    }
    if not losses:
        return
    for call in calls:
        given = passed(call)
        names = {n.id for g in given for n in walk(g) if isinstance(n, ast.Name)}
        known = isinstance(call.func, ast.Name) and call.func.id in _HARMLESS
        if (names & {optimizer, *losses}) and not (known or _method(call) in _HARMLESS | _KEEPS):
            return  # it may differentiate
    name = next(iter(losses))
    message = (
        f"`{name}` is computed, `{optimizer}.step()` is called, and nothing in this file computes "
        f"gradients: no parameter changes. Call `{name}.backward()` before the step."
    )
    related = module.related("The loss.", losses[name])
    yield module.finding("TRN603", message, step, related=[related])


_KEEPS = frozenset("append add_scalar log update info write".split())


def _of_turn(loop: ast.For | ast.While) -> Iterator[ast.AST]:
    """What runs in one turn of a loop, without the loops in it."""
    pending: list[ast.AST] = list(loop.body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (ast.For, ast.While, ast.FunctionDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)


def _is_torchs(module: ModuleFacts, step: ast.Call) -> bool:
    """Whether a step is one of torch's own optimizers, by where it is made."""
    assert isinstance(step.func, ast.Attribute)
    if not isinstance(step.func.value, ast.Name):
        return False
    name = step.func.value.id
    for scope in (module.function(step), module.tree):
        flow = module.flow(scope) if scope is not None else None
        if flow is not None and name in flow.parameters:
            return False
        made = flow.all_definitions(name) if flow is not None else []
        if made:
            return all(
                isinstance(d.value, ast.Call)
                and any(t.name.startswith("torch.optim.") for t in module.resolve(d.value.func))
                for d in made
            )
    return False


def _is_loss(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call is of a loss of torch's: ``F.cross_entropy``, ``nn.MSELoss()`` by its name."""
    names = {t.name for t in module.resolve(call.func)}
    if any(name.startswith("torch.nn.functional.") and LOSS_CALL.search(name) for name in names):
        return True
    if not isinstance(call.func, ast.Name):
        return False
    made = [b.value for b in module.names.visible(call.func)]
    return bool(made) and all(
        isinstance(value, ast.Call)
        and any(
            t.name.startswith("torch.nn.") and t.name.endswith("Loss")
            for t in module.resolve(value.func)
        )
        for value in made
    )


# -- no backward in a loop ------------------------------------------------------------------------


def _idle(module: ModuleFacts, loop: ast.For | ast.While) -> Iterator[Finding]:
    calls = [c for s in loop.body for c in walk(s) if isinstance(c, ast.Call)]
    step = next((c for c in calls if _method(c) == "step" and not c.args and not c.keywords), None)
    if step is None or any(isinstance(n, ast.stmt) and _sets_gradient(n) for n in _inside(loop)):
        return
    assert isinstance(step.func, ast.Attribute)
    optimizer = ast.unparse(step.func.value)
    if any(not _is_harmless(c, optimizer) for c in calls if c is not step):
        return
    clears = any(_method(c) == "zero_grad" for c in calls)
    if not _takes_gradients(module, step, clears):
        return
    message = (
        "nothing in this loop computes new gradients: from the second round on "
        f"`{optimizer}.step()` finds none and changes nothing. Call backward() in the loop."
    )
    yield module.finding("TRN603", message, step)


def _inside(loop: ast.For | ast.While) -> Iterator[ast.AST]:
    return (n for s in loop.body for n in walk(s))


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _is_harmless(call: ast.Call, optimizer: str) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in _HARMLESS
    if isinstance(call.func, ast.Attribute):
        if ast.unparse(call.func.value) == optimizer:
            return call.func.attr == "zero_grad"
        return call.func.attr in _HARMLESS
    return False


def _sets_gradient(statement: ast.stmt) -> bool:
    """``p.grad = torch.randn(4)``."""
    return isinstance(statement, ast.Assign) and any(
        isinstance(t, ast.Attribute) and t.attr == "grad" and not is_none(statement.value)
        for t in statement.targets
    )


def _takes_gradients(module: ModuleFacts, step: ast.Call, clears: bool) -> bool:
    """Whether ``step()`` is an optimizer's, after which there are no gradients any more."""
    assert isinstance(step.func, ast.Attribute)
    value = step.func.value
    if isinstance(value, ast.Name):
        statement = module.statement(step)
        flow = module.flow(module.function(step) or module.tree)
        made = [d.value for d in flow.reaching(value.id, statement)]
    else:
        return False
    if len(made) != 1 or not isinstance(made[0], ast.Call):
        return False
    target = made[0].func
    if clears and any(t.name.startswith("torch.optim.") for t in module.resolve(target)):
        return True
    own = isinstance(target, ast.Name) and next(
        (c for c in module.classes if c.name == target.id), None
    )
    if not own:
        return False
    method = next(
        (n for n in own.body if isinstance(n, ast.FunctionDef) and n.name == "step"), None
    )
    return method is not None and (clears or _consumes(method)) and ".grad" in ast.unparse(method)


def _consumes(method: ast.FunctionDef) -> bool:
    """Whether a function takes gradients away: ``g, p.grad = p.grad, None``."""
    for node in walk(method):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if _clears(target, node.value):
                    return True
    return False


def _clears(target: ast.expr, value: ast.expr) -> bool:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return any(map(_clears, target.elts, value.elts))
    return isinstance(target, ast.Attribute) and target.attr == "grad" and is_none(value)
