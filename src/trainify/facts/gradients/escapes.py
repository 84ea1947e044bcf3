"""Weights whose gradient leaves a function by another way than ``return``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..walk import walk
from .networks import network_of

if TYPE_CHECKING:
    from . import Gradients


def escaping(gradients: Gradients) -> frozenset[str]:
    """Weights whose gradient leaves the function by another way than ``return``."""
    found: set[str] = set()
    for node in gradients.own_statements:
        if isinstance(node, ast.Expr) and not _is_local_write(gradients, node):
            found |= _anywhere(gradients, node.value, node)
        elif isinstance(node, ast.Assign):
            if any(_is_outside(gradients, target) for target in node.targets):
                found |= _anywhere(gradients, node.value, node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found |= _anywhere(gradients, node, node)
    for inner in walk(gradients.function):
        if isinstance(inner, ast.Lambda):
            found |= _anywhere(gradients, inner, gradients.module.statement(inner))
    return frozenset(found)


def _anywhere(gradients: Gradients, node: ast.AST, at: ast.stmt) -> frozenset[str]:
    """The weights of every value mentioned below a node."""
    found: frozenset[str] = frozenset()
    for inner in walk(node):
        if isinstance(inner, (ast.Name, ast.Attribute)) and isinstance(inner.ctx, ast.Load):
            found |= gradients.value(inner, at).weights
        elif isinstance(inner, ast.Call):
            network = network_of(gradients, inner.func, at)
            if network is not None:
                found |= {network.key}
    return found


def _is_outside(gradients: Gradients, target: ast.expr) -> bool:
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, (ast.Tuple, ast.List)):
        return any(_is_outside(gradients, element) for element in target.elts)
    return not (isinstance(target, ast.Name) and gradients.is_local(target.id))


def _is_local_write(gradients: Gradients, node: ast.Expr) -> bool:
    """``name.append(x)``, of a list made here."""
    call = node.value
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("append", "extend", "insert")
        and isinstance(call.func.value, ast.Name)
        and gradients.is_local(call.func.value.id)
        and call.func.value.id not in gradients.flow.parameters
    )
