"""Tensors that a call made for itself, so that they are gone when it ends: no caches."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .called import functions_of
from .graph import results
from .names import last_name
from .views import is_allocation

if TYPE_CHECKING:
    from .flow import Definition
    from .module import FunctionNode, ModuleFacts

_MAX_DEPTH = 3


def is_made_here(module: ModuleFacts, definition: Definition, depth: int = _MAX_DEPTH) -> bool:
    """Whether a name holds a tensor that its function made, or had made: not a parameter.

    ``torch.zeros(...)``, a copy, and what a function of the project gives that makes one.
    """
    value = definition.value
    if value is None or not isinstance(definition.statement, (ast.Assign, ast.AnnAssign)):
        return False
    index = definition.index
    if isinstance(value, (ast.Tuple, ast.List)) and isinstance(index, int):
        value, index = value.elts[index], None
    return _is_fresh(module, value, index, depth)


def is_given_fresh(module: ModuleFacts, function: FunctionNode, parameter: str) -> bool:
    """Whether each call of a function passes a tensor that its caller made for itself."""
    found = False
    for home, call in module.project.calls_of(module, function):
        argument = module.project.argument(module, function, call, parameter)
        caller = home.function(call)
        if caller is None or caller is function or not isinstance(argument, ast.Name):
            return False
        made = home.flow(caller).only_definition(argument.id, home.statement(call))
        if made is None or not is_made_here(home, made):
            return False
        found = True
    return found


def _is_fresh(module: ModuleFacts, value: ast.expr, index: object, depth: int) -> bool:
    if index is None and (is_allocation(value) or _is_copy(value)):
        return True
    if not isinstance(value, ast.Call) or depth == 0:
        return False
    makers = list(functions_of(module, value.func))
    return bool(makers) and all(_makes(home, each, index, depth - 1) for home, each in makers)


def _makes(module: ModuleFacts, function: FunctionNode, index: object, depth: int) -> bool:
    """Whether all that a function returns is made by each call anew; a memoized one keeps it."""
    if any(
        last_name(each) not in ("staticmethod", "classmethod") for each in function.decorator_list
    ):
        return False
    returned = list(results(function))
    for value, at in returned:
        part: object = index
        if isinstance(value, (ast.Tuple, ast.List)) and isinstance(index, int):
            if index >= len(value.elts):
                return False
            value, part = value.elts[index], None
        if isinstance(value, ast.Name) and part is None:
            made = module.flow(function).only_definition(value.id, at)
            if made is None or not is_made_here(module, made, depth):
                return False
            if _is_kept(function, value.id):
                return False
        elif not _is_fresh(module, value, part, depth):
            return False
    return bool(returned)


def _is_kept(function: FunctionNode, name: str) -> bool:
    """Whether a function puts a tensor somewhere as well: ``self.cache = cache``."""
    return any(
        isinstance(node, ast.Assign)
        and any(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
        and any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node.value))
        for node in ast.walk(function)
    )


def _is_copy(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "clone"
