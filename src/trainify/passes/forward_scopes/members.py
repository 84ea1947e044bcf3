"""The attributes of an object that one of its methods mentions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ...facts.grad_mode import own_nodes
from ...facts.memo import once

if TYPE_CHECKING:
    from ...facts import ModuleFacts
    from ...facts.module import FunctionNode


@once
def own_attributes(module: ModuleFacts, function: FunctionNode, me: str | None) -> frozenset[str]:
    """The attributes of the object ``me`` that a function of the file mentions."""
    return frozenset(
        node.attr
        for node in own_nodes(function)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id == me
    )
