"""The forward of one object under a mode, where that object is trained."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from ...facts import ModuleFacts
from ...facts.grad_mode import own_nodes
from ...facts.graph import Graph
from ...facts.learning import backward_values, may_learn
from ...facts.names import parameters
from ...facts.trainable import is_reference
from ...findings import Finding, Fix
from ..fused_calls.left_in_place import held_back
from .cover import Cover
from .edits import take_off
from .still_runs import still_runs
from .wrappers import has_wrappers, wrappers

if TYPE_CHECKING:
    from ...engine import Options
    from ...facts.module import FunctionNode


def covered_instances(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    """``model.forward = torch.no_grad()(model.forward)``, where the same model is trained."""
    if not has_wrappers(module):
        return
    for statement, target, scope in wrappers(module):
        name = target.rpartition(".")[0]
        function = module.function(statement) or module.tree
        if not name.isidentifier() or name == "self":
            continue
        if not _learns_by(module, function, name, statement.lineno):
            continue
        text = module.source(scope.node)
        message = (
            f"`{text}` around `{target}`, which is trained: nothing that it computes has a "
            "gradient."
        )
        removal = take_off(module, Cover(cast("FunctionNode", function), scope, statement))
        fix = Fix(f"Leave {target} as it is", tuple(removal))
        fix = still_runs(module, fix, [function], scope)
        fixes = held_back(module, fix, [statement], options) if removal else {}
        yield module.finding("TRN201", message, scope.node, fixes)


def _learns_by(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    name: str,
    line: int = 0,
    depth: int = 0,
) -> bool:
    """Whether backward is called on what a model computes, behind a line or where it is handed."""
    if is_reference(name):
        return False
    if _is_differentiated(module, function, name, line):
        return True
    return depth < _MAX_CALLS and any(
        _learns_by(module, other, known, behind, depth + 1)
        for other, known, behind in _handed_on(module, function, name, line)
    )


_MAX_CALLS = 2


def _handed_on(
    module: ModuleFacts, function: FunctionNode | ast.Module, name: str, line: int
) -> Iterator[tuple[FunctionNode | ast.Module, str, int]]:
    """Who else in the file has a model, by which name, and from which line on.

    Functions that it is given to behind a line; callers that it came from, or that get it back.
    """
    for call in module.calls:
        caller = module.function(call) or module.tree
        callee = _function_named(module, call)
        if callee is None or callee is caller:
            continue
        if caller is function and call.lineno > line:
            for parameter in parameters(callee.args):
                given = module.project.argument(module, callee, call, parameter.arg)
                if isinstance(given, ast.Name) and given.id == name:
                    yield callee, parameter.arg, 0
        elif callee is function:
            given = module.project.argument(module, callee, call, name)
            made = module.statement(call)
            targets = made.targets if isinstance(made, ast.Assign) else []
            for known in (given, *targets):
                if isinstance(known, ast.Name):
                    yield caller, known.id, call.lineno
            if _gives_back(function, name):
                yield from _as_argument(module, call)


def _as_argument(
    module: ModuleFacts, call: ast.Call
) -> Iterator[tuple[FunctionNode | ast.Module, str, int]]:
    """The function of the file that gets what a call returns: ``train(freeze(model))``."""
    outer = module.parent(call)
    if isinstance(outer, ast.keyword):
        outer = module.parent(outer)
    user = _function_named(module, outer) if isinstance(outer, ast.Call) else None
    if user is not None and isinstance(outer, ast.Call):
        for parameter in parameters(user.args):
            if module.project.argument(module, user, outer, parameter.arg) is call:
                yield user, parameter.arg, 0


def _gives_back(function: FunctionNode | ast.Module, name: str) -> bool:
    return any(
        isinstance(node, ast.Return) and isinstance(node.value, ast.Name) and node.value.id == name
        for node in own_nodes(function)
    )


def _function_named(module: ModuleFacts, call: ast.Call) -> FunctionNode | None:
    """The function of the file that a call by name runs."""
    if not isinstance(call.func, ast.Name):
        return None
    nodes = [b.node for b in module.names.visible(call.func)]
    found = nodes[0] if len(nodes) == 1 else None
    return found if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)) else None


def _is_differentiated(
    module: ModuleFacts, function: FunctionNode | ast.Module, name: str, line: int
) -> bool:
    """Whether backward is called, behind a line, on what a model and no other computes."""
    values = [
        (value, module.statement(call))
        for value, call in backward_values(module, function)
        if call.lineno > line
    ]
    calls = [
        step.node
        for step in Graph(module, function).back_from(values)
        if isinstance(step.node, ast.Call) and step.cut is None
    ]
    own = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == name]
    return bool(own) and not any(may_learn(module, call) for call in calls if call not in own)
