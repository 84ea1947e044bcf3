"""Statements that put a mode around a forward: ``self.forward = no_grad()(self.forward)``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from ...facts import ModuleFacts
from ...facts.grad_mode import Scope, wrapping
from ...facts.names import self_name
from .cover import Cover

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

_WRAPS = re.compile(r"\bforward = .*(?:\)|no_grad)\(.+\)")


def has_wrappers(module: ModuleFacts) -> bool:
    """Whether a file may have such a statement, by its text."""
    return "forward = " in module.usual and _WRAPS.search(module.usual) is not None


def wrapper_of(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> Cover | None:
    """``self.forward = torch.no_grad()(self.forward)``, or the same in the class's body."""
    for statement, target, scope in wrappers(module):
        parent = module.parent(statement)
        if parent is cls:
            if target != "forward":
                continue
        elif parent is module.tree:
            if target != f"{cls.name}.forward":
                continue
        elif module.method_class(parent) is not cls or target != f"{self_name(parent)}.forward":
            continue
        return Cover(function, scope, statement)
    return None


def renamed(module: ModuleFacts) -> Iterator[tuple[ast.ClassDef, Cover]]:
    """``forward = torch.no_grad()(_run)`` in a class, or the same of ``self`` in a method."""
    for statement, target, scope in wrappers(module, other=True):
        parent = module.parent(statement)
        cls = parent if isinstance(parent, ast.ClassDef) else module.method_class(parent)
        assert scope.wraps is not None
        wrapped = scope.wraps.args[0]
        owner = f"{self_name(parent)}." if cls is not parent else ""
        name = module.source(wrapped).removeprefix(owner)
        for method in cls.body if cls is not None and target == f"{owner}forward" else ():
            if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) and method.name == name:
                yield cast("ast.ClassDef", cls), Cover(method, scope, statement)


def wrappers(module: ModuleFacts, other: bool = False) -> Iterator[tuple[ast.Assign, str, Scope]]:
    """Every ``x.forward = mode(x.forward)``: the statement, ``x.forward``, and the scope.

    With ``other``, what is wrapped is something else.
    """
    for statement in module.statements:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        arguments = statement.value.args
        target = module.source(statement.targets[0])
        if len(arguments) != 1 or not target.endswith("forward"):
            continue
        if (module.source(arguments[0]) != target) is not other:
            continue
        scope = wrapping(module, statement.value, statement)
        if scope is not None:
            yield statement, target, scope
