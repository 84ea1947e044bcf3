"""The methods of a class, and the attributes of its object that one of them mentions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...facts.grad_mode import own_nodes
from ...facts.memo import once

if TYPE_CHECKING:
    from ...facts import ModuleFacts
    from ...facts.module import FunctionNode


def methods_of(cls: ast.ClassDef) -> Iterator[FunctionNode]:
    """The functions in the body of a class."""
    return (s for s in cls.body if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)))


@once
def own_attributes(module: ModuleFacts, function: FunctionNode, me: str | None) -> frozenset[str]:
    """The attributes of the object ``me`` that a function of the file mentions."""
    return frozenset(
        node.attr
        for node in own_nodes(function)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id == me
    )
