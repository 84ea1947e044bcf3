"""The methods of a class, and the attributes of its object that one of them mentions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...facts.grad_mode import own_nodes

if TYPE_CHECKING:
    from ...facts.module import FunctionNode


def methods_of(cls: ast.ClassDef) -> Iterator[FunctionNode]:
    """The functions in the body of a class."""
    return (s for s in cls.body if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)))


def own_attributes(function: FunctionNode, me: str | None) -> set[str]:
    """The attributes of the object ``me`` that a function mentions."""
    return {
        node.attr
        for node in own_nodes(function)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id == me
    }
