"""What makes that which a name, or an attribute of ``self``, stands for."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..names import is_none

if TYPE_CHECKING:
    from . import Gradients


def assigned(gradients: Gradients, cls: ast.ClassDef, name: str) -> list[ast.expr]:
    """The values that an attribute gets; empty where they are not all there."""
    bindings = gradients.module.names.attributes(cls).get(name, ())
    values = [binding.value for binding in bindings]
    present = [value for value in values if value is not None and not is_none(value)]
    return present if None not in values else []


def maker_of(gradients: Gradients, node: ast.expr, at: ast.stmt) -> ast.Call | None:
    """The one call that makes what a name or an attribute of ``self`` stands for."""
    values: list[ast.expr] = []
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        cls = gradients.module.names.self_class(node.value)
        values = assigned(gradients, cls, node.attr) if cls is not None else []
    elif isinstance(node, ast.Name) and gradients.is_local(node.id):
        definition = gradients.flow.only_definition(node.id, at)
        if definition is not None and definition.value is not None:
            values = [definition.value] if definition.index is None else []
    elif isinstance(node, ast.Name):
        bindings = gradients.module.names.bindings(gradients.module.tree).get(node.id, [])
        values = [b.value for b in bindings if b.value is not None and len(bindings) == 1]
    made = node if isinstance(node, ast.Call) else values[0] if len(values) == 1 else None
    return made if isinstance(made, ast.Call) else None
