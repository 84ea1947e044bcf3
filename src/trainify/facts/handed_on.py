"""What the callers of a function cut off before it gets it: ``norm(x, self.weight.data)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts


def cut_off(
    module: ModuleFacts, node: ast.expr, at: ast.stmt
) -> Iterator[tuple[FunctionNode, ast.Attribute]]:
    """``x.data``, of attributes, that a function of the file is handed for a parameter.

    ``node`` is the use of the parameter, in the statement ``at``.
    """
    function = module.function(at)
    if not isinstance(node, ast.Name) or function is None or module.parent(function) != module.tree:
        return
    definition = module.flow(function).only_definition(node.id, at)
    if definition is None or not definition.is_parameter:
        return
    for call in module.calls:
        if module.function(call) is function or not _may_run(module, call, function):
            continue
        given = module.project.argument(module, function, call, node.id)
        if isinstance(given, ast.Attribute) and given.attr == "data":
            if isinstance(given.value, ast.Attribute):
                yield function, given


def _may_run(module: ModuleFacts, call: ast.Call, function: FunctionNode) -> bool:
    """Whether a call may run a function: by its name, or by what a function that picks it gave."""
    name = f"{module.module_name}.{function.name}".lstrip(".")
    if any(target.name == name for target in module.resolve(call.func)):
        return True
    statement = module.statement(call)
    caller = module.function(statement)  # of a decorator, the function around what it decorates
    if not isinstance(call.func, ast.Name) or caller is None:
        return False
    made = module.flow(caller).only_definition(call.func.id, statement)
    if made is None or not isinstance(made.value, ast.Call) or made.index is not None:
        return False
    picks = made.value.func
    return isinstance(picks, ast.Name) and any(
        isinstance(each, ast.Return)
        and isinstance(each.value, ast.Name)
        and each.value.id == function.name
        for other in module.functions
        if other.name == picks.id and module.parent(other) is module.tree
        for each in ast.walk(other)
    )
