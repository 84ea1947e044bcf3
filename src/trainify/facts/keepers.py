"""Functions of the project that keep what they are given: ``self.note(y)`` with ``self.t = t``.

Whoever reads it later expects to see what is written into the tensor after the call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .called import functions_of, method_of, modules_of
from .flow import COMPOUND, stores
from .layers import classes_named
from .names import last_name, parameters, passed
from .views import is_view
from .walk import walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_MAX_DEPTH = 3


def keeps(module: ModuleFacts, statement: ast.stmt, name: str, depth: int = 0) -> bool:
    """Whether a statement calls a function that keeps a reference to what a name holds."""
    return depth < _MAX_DEPTH and any(
        _keeps_argument(home, function, parameter, depth)
        for call in walk(statement)
        if isinstance(call, ast.Call) and any(is_view(given, name) for given in passed(call))
        for home, function in functions_run(module, call.func)
        for parameter in given_as(home, function, call, name)
    )


def given_as(home: ModuleFacts, function: FunctionNode, call: ast.Call, name: str) -> Iterator[str]:
    """The parameters of a function that get what a name holds."""
    for parameter in parameters(function.args):
        given = home.project.argument(home, function, call, parameter.arg)
        if given is not None and is_view(given, name):
            yield parameter.arg


def _keeps_argument(module: ModuleFacts, function: FunctionNode, name: str, depth: int) -> bool:
    return any(
        stores(part, name) or keeps(module, part, name, depth + 1)
        for part in walk(function)
        if isinstance(part, ast.stmt) and part is not function and not isinstance(part, COMPOUND)
    )


def functions_run(
    module: ModuleFacts, callee: ast.expr
) -> Iterator[tuple[ModuleFacts, FunctionNode]]:
    """The functions that a call may run; a method of the file's classes by its name alone."""
    own = module.functions_named(last_name(callee))
    yield from ((module, function) for function in own)
    if own:
        return
    yield from functions_of(module, callee)
    for made in modules_of(module, callee):
        for home, cls in classes_named(module, made.func) if isinstance(made, ast.Call) else ():
            forward = method_of(cls, "forward")
            if forward is not None:
                yield home, forward
