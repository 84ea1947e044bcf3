"""Classes whose objects are made under a grad mode only, and given up there: a rollout's caches."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .grad_mode import scope_around
from .memo import once
from .names import is_none, last_name
from .walk import walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts


@once
def made_for_serving(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether every object of a class is made, and dies, where gradients are off.

    It is a local of a function under ``no_grad`` that does not return it, or an attribute that the
    same function sets to None again.
    """
    made = f"{cls.name}("
    calls = [
        (home, call)
        for home in module.project.mentioning(module, made)
        for call in home.calls_named(cls.name)
    ]
    return bool(calls) and all(_dies_in_scope(home, call) for home, call in calls)


def _dies_in_scope(module: ModuleFacts, call: ast.Call) -> bool:
    function = module.function(call)
    if function is None or function.name == "__init__" or scope_around(module, call) is None:
        return False
    statement = module.statement(call)
    if isinstance(statement, ast.Expr):
        return True
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return all(_is_given_up(module, function, target, statement) for target in targets)


def _is_given_up(
    module: ModuleFacts, function: FunctionNode, target: ast.expr, made: ast.stmt
) -> bool:
    if isinstance(target, ast.Name):
        return not any(
            _hands_out(module, node)
            for node in walk(function)
            if isinstance(node, ast.Name) and node.id == target.id
        )
    if not isinstance(target, ast.Attribute):
        return False
    text = module.source(target)
    return any(
        isinstance(each, ast.Assign)
        and each.lineno > made.lineno
        and each in function.body
        and is_none(each.value)
        and text in map(module.source, each.targets)
        for each in walk(function)
    )


def _hands_out(module: ModuleFacts, name: ast.Name) -> bool:
    """Whether a local is returned, or put into something: a call may use it, and gives it back."""
    if not isinstance(name.ctx, ast.Load):
        return False
    node: ast.AST = name
    parent = module.parent(node)
    while isinstance(parent, (ast.Tuple, ast.List, ast.Dict, ast.IfExp)):
        node, parent = parent, module.parent(parent)
    if isinstance(parent, ast.Call):
        return last_name(parent.func) in ("append", "setattr", "put", "extend", "update")
    return isinstance(parent, (ast.Return, ast.Yield, ast.Assign))
