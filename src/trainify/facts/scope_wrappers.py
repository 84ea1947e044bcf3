"""Decorators that do nothing but switch gradients off around what they decorate."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .layers import imported_function
from .names import last_name
from .walk import walk

if TYPE_CHECKING:
    from .module import ModuleFacts

_SWITCHES = frozenset("no_grad inference_mode set_grad_enabled is_grad_enabled".split())
_STATEMENTS = (ast.With, ast.Try, ast.Return, ast.Expr, ast.Assign)
_WRAPS = "functools.wraps"


def only_switches(module: ModuleFacts, decorator: ast.expr) -> bool:
    """Whether a decorator is torch's, or one of the project's that only wraps a call in a scope.

    Of others a function would miss something if it were without them.
    """
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    names = [target.name for target in module.resolve(called)]
    if names and all(name.startswith("torch.") for name in names):
        return True
    made = _defined(module, called)
    if made is None:
        return False
    home, function = made
    if isinstance(function, ast.Call):
        return only_switches(home, function)
    body = [s for s in function.body if not _is_text(s)]
    while len(body) == 2 and isinstance(body[0], ast.FunctionDef):
        inner, returned = body[0], body[1]
        given = {a.arg for a in function.args.args}
        if not isinstance(returned, ast.Return) or last_name(returned.value) != inner.name:
            return False
        if _only_calls(home, inner, given):
            return True
        function = inner  # of a decorator with arguments
        body = [s for s in function.body if not _is_text(s)]
    return False


def _defined(
    module: ModuleFacts, node: ast.expr
) -> tuple[ModuleFacts, ast.FunctionDef | ast.Call] | None:
    """The function at the top of a file that a name stands for, or the call that gave it."""
    if isinstance(node, ast.Name):
        bindings = module.names.visible(node)
        if len(bindings) == 1:
            made = bindings[0].value or bindings[0].node
            if isinstance(made, (ast.FunctionDef, ast.Call)):
                return module, made
    return imported_function(module, node)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _only_calls(module: ModuleFacts, inner: ast.FunctionDef, given: set[str]) -> bool:
    """Whether a function hands its arguments to one that was given, and only switches modes."""
    arguments = inner.args
    if arguments.vararg is None or arguments.kwarg is None or len(given) != 1:
        return False
    handed = f"{next(iter(given))}(*{arguments.vararg.arg}, **{arguments.kwarg.arg})"
    if [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        return False
    if not all(
        isinstance(d, ast.Call) and module.is_name(d.func, _WRAPS) for d in inner.decorator_list
    ):
        return False
    for statement in inner.body:
        for node in walk(statement):
            if isinstance(node, ast.stmt) and not isinstance(node, _STATEMENTS):
                return False
            if isinstance(node, ast.Return):
                if node.value is None or ast.unparse(node.value) != handed:
                    return False
            elif isinstance(node, ast.Call) and ast.unparse(node) != handed:
                names = [target.name for target in module.resolve(node.func)]
                if not names or not all(n.rpartition(".")[2] in _SWITCHES for n in names):
                    return False
    return True
