"""Loops and comprehensions: what is iterated, and the names that get the elements."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...facts import ModuleFacts
from ...facts.walk import walk


def loops_of(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, iterable) of a loop, or of each ``for`` of a comprehension."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        yield node.target, node.iter
    for generator in getattr(node, "generators", ()):
        yield generator.target, generator.iter


def loops_around(module: ModuleFacts, node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, iterable) of the loops and comprehensions around a node."""
    for ancestor in module.ancestors(node):
        yield from loops_of(ancestor)


def stored_names(target: ast.AST) -> set[str]:
    """The names below a loop's target."""
    return {n.id for n in walk(target) if isinstance(n, ast.Name)}
