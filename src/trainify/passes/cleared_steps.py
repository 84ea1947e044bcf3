"""TRN606: gradients that are cleared between backward() and the step that needs them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.walk import walk
from ..findings import STRATEGIES, Edit, Finding, Fix, Safety
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options

RULES = (
    Rule(
        code="TRN606",
        name="gradients-cleared-before-step",
        summary="zero_grad() stands between backward() and step(): no step changes anything.",
        why=(
            "zero_grad() sets every gradient to None, and step() skips parameters that have none, "
            "without a word. The loss is computed, its gradients too, and nothing learns. They are "
            "to be cleared before backward(), or after step()."
        ),
        before="""\
import torch.nn.functional as F


def train(model, optimizer, loader):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
""",
        after="",
    ),
)

_CLEARED = re.compile(rb"\.zero_grad\((?=([^\n]*\n(?:[^\n]*\n){0,8}?[^\n]*\.step\())")
_NEAR = 1500
"""Bytes before a ``zero_grad`` in which the ``backward`` of the same turn stands."""


def _may_concern(data: bytes) -> bool:
    """Whether a step follows a ``zero_grad``, with no backward between, and one before."""
    return any(
        b"backward" not in match[1]
        and b"backward(" in data[max(match.start() - _NEAR, 0) : match.start()]
        for match in _CLEARED.finditer(data)
    )


NEEDLES: tuple[Needle, ...] = (Look((b".zero_grad(",), _may_concern),)

_KEEPS_GRADIENTS = re.compile(
    r"clip_grad_(?:norm|value)_|parameters$|unscale_|print|log\w*|item|float|write|info"
)
"""Calls between that compute no gradients and put none back."""


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for statement in module.statements:
        cleared = _cleared(statement)
        if cleared is None:
            continue
        block = module.block(statement)
        at = block.index(statement)
        if not _went_backward(block[:at]):
            continue
        stepped = _step_after(module, block[at + 1 :], cleared)
        if stepped is not None:
            message = (
                f"`{cleared}.zero_grad()` throws away what backward() has just computed: "
                f"`{module.source(stepped)}`, line {stepped.lineno}, finds no gradient and changes "
                "nothing."
            )
            yield _finding(module, statement, stepped, message)
            continue
        stepped = _step_after_turns(module, statement, block, cleared)
        if stepped is not None:
            message = (
                f"`{cleared}.zero_grad()` throws away what each turn of the loop has computed: "
                f"`{module.source(stepped)}`, line {stepped.lineno}, after the last one, finds no "
                "gradient and changes nothing."
            )
            yield _finding(module, statement, stepped, message)


def _method(statement: ast.stmt, name: str) -> ast.Call | None:
    """``x.name(...)`` as a statement."""
    call = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        return call if call.func.attr == name else None
    return None


def _cleared(statement: ast.stmt) -> str | None:
    """The text of the optimizer, or of the model, whose gradients a statement clears."""
    call = _method(statement, "zero_grad")
    return ast.unparse(call.func.value) if call and isinstance(call.func, ast.Attribute) else None


def _step_after(module: ModuleFacts, after: Sequence[ast.stmt], cleared: str) -> ast.stmt | None:
    """The step by what was cleared that nothing comes before which could make new gradients."""
    for statement in after:
        call = _method(statement, "step")
        if call is not None and isinstance(call.func, ast.Attribute):
            stepped = call.args[0] if call.args else call.func.value
            if ast.unparse(stepped) == cleared or _holds(module, stepped, cleared, statement):
                return statement
        if not _leaves_gradients(statement):
            return None
    return None


def _leaves_gradients(statement: ast.stmt) -> bool:
    """Whether a statement neither computes gradients nor has anything to do with those there."""
    if not isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign)):
        return False
    return not any(
        (isinstance(node, ast.Attribute) and node.attr == "grad")
        or (isinstance(node, ast.Call) and not _KEEPS_GRADIENTS.search(ast.unparse(node.func)))
        for node in walk(statement)
    )


def _step_after_turns(
    module: ModuleFacts, statement: ast.stmt, block: Sequence[ast.stmt], cleared: str
) -> ast.stmt | None:
    """The step behind a loop each turn of which ends with clearing what it has computed.

    ``for x in micro: loss(x).backward(); optimizer.zero_grad()``, and then ``optimizer.step()``.
    """
    loop = module.parent(statement)
    if not isinstance(loop, (ast.For, ast.While)) or block is not loop.body or loop.orelse:
        return None
    at = block.index(statement)
    went = max(i for i in range(at) if _method(block[i], "backward") is not None)
    if not all(_leaves_gradients(s) for s in (*block[went + 1 : at], *block[at + 1 :])):
        return None
    others = [n for s in block[:went] for n in walk(s) if isinstance(n, ast.Attribute)]
    if any(n.attr in ("backward", "grad", "step") for n in others):
        return None
    if "_hook(" in module.usual:  # which may keep them
        return None
    around = module.block(loop)
    return _step_after(module, around[around.index(loop) + 1 :], cleared)


def _holds(module: ModuleFacts, optimizer: ast.expr, model: str, at: ast.stmt) -> bool:
    """Whether an optimizer was made of a model's parameters: ``Adam(model.parameters())``."""
    if not isinstance(optimizer, ast.Name):
        return False
    for scope in (module.function(at), module.tree):
        if scope is None:
            continue
        flow = module.flow(scope)
        if optimizer.id in flow.parameters:
            return False
        values = [definition.value for definition in flow.all_definitions(optimizer.id)]
        if values:
            return all(
                isinstance(value, ast.Call)
                and value.args
                and ast.unparse(value.args[0]) == f"{model}.parameters()"
                for value in values
            )
    return False


def _went_backward(before: Sequence[ast.stmt]) -> bool:
    """Whether the last thing that happened to the gradients is that they were computed.

    Where ``.grad`` is read they may be kept elsewhere; an earlier step has used them.
    """
    for statement in reversed(before):
        for node in walk(statement):
            if isinstance(node, ast.Attribute) and node.attr in ("grad", "step", "first_step"):
                return False
        if _method(statement, "backward") is not None:
            return True
        if not isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign)):
            return False
    return False


def _finding(module: ModuleFacts, statement: ast.stmt, stepped: ast.stmt, message: str) -> Finding:
    from ..rewrite import layout, scopes

    fixes = {}
    removal = scopes.without_statement(module, statement)
    plain = "#" not in module.line_text(statement.lineno)
    if removal is not None and plain and layout.owns_lines(module, stepped):
        end = layout.line_end(module, stepped)
        line = f"{module.newline}{module.indentation(stepped)}{module.source(statement)}"
        moved = Edit(end, end, line)
        look_at = "the step changes parameters from now on: learning rates were never tried"
        fix = Fix("Clear the gradients after the step", (removal, moved), Safety.UNSAFE, look_at)
        fixes = dict.fromkeys(STRATEGIES, fix)
    related = module.related("This step finds no gradient.", stepped)
    return module.finding("TRN606", message, statement, fixes, [related])
