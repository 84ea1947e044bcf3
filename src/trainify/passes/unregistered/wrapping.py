"""Containers put around displays, and around what is added to them."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ...facts import ModuleFacts
from ...facts.layers import elements
from ...findings import Edit
from .displays import parts_of


@dataclass
class Wrapping:
    """Puts containers around displays."""

    module: ModuleFacts
    container: str
    """``nn.Module`` or ``nn.Parameter``, before ``List`` or ``Dict``."""

    def edits(self, node: ast.expr, kind: str) -> list[Edit]:
        start, end = self.module.start(node), self.module.end(node)
        name = f"{self.container}{kind.capitalize()}"
        if isinstance(node, ast.Call) and (node.args or node.keywords):
            inside = self.inside(node)
            if kind == "list":
                return [Edit(start, self.module.end(node.func), name), *inside]
            return [Edit(start, start, f"{name}("), *inside, Edit(end, end, ")")]
        if isinstance(node, ast.Call) or not (elements(node) or isinstance(node, ast.Name)):
            return [Edit(start, end, f"{name}()")]
        return [Edit(start, start, f"{name}("), *self.inside(node), Edit(end, end, ")")]

    def inside(self, node: ast.expr) -> list[Edit]:
        """Wrap the lists that a display holds."""
        if isinstance(node, (ast.List, ast.Tuple)):
            return [edit for element in node.elts for edit in self.nested(element)]
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self.nested(node.elt)
        if isinstance(node, ast.Dict):
            return [edit for value in node.values for edit in self.nested(value)]
        if isinstance(node, ast.DictComp):
            return self.nested(node.value)
        if isinstance(node, ast.BinOp):
            return [*self.inside(node.left), *self.inside(node.right)]
        if isinstance(node, ast.Call):
            parts = parts_of(node)
            if parts is not None and parts.keys:
                return [edit for value in parts.values for edit in self.nested(value)]
            return self.inside(node.args[0]) if node.args else []
        return []

    def nested(self, node: ast.expr) -> list[Edit]:
        if isinstance(node, (ast.List, ast.Tuple, ast.ListComp)):
            return self.edits(node, "list")
        if isinstance(node, (ast.Dict, ast.DictComp)):
            return self.edits(node, "dict")
        return []


def wrap_added(module: ModuleFacts, wrapping: Wrapping, use: ast.Attribute) -> list[Edit]:
    """Lists that are added to the list become registered too: ``self.blocks.append([a, b])``."""
    parent = module.parent(use)
    call = module.parent(parent) if isinstance(parent, ast.Attribute) else None
    if isinstance(parent, ast.Attribute) and isinstance(call, ast.Call) and call.func is parent:
        if parent.attr in ("append", "insert"):
            return wrapping.nested(call.args[-1])
        if parent.attr == "extend":
            return wrapping.inside(call.args[0])
    if isinstance(parent, ast.AugAssign):
        return wrapping.inside(parent.value)
    if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store):
        statement = module.parent(parent)
        if isinstance(statement, ast.Assign):
            return wrapping.nested(statement.value)
    return []
