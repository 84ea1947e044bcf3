"""A value that a method computes, as an expression over what the instance holds."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.walk import walk
from .derivation import is_pure

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

_SIMPLE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)
"""What needs no parentheses where it is put in place of a name."""


class SaidAgain:
    """Values of one method, without some ``.data`` and ``.detach()``.

    Local names become what they stand for: an attribute that an argument is kept in, or the
    expression that gives them their value.
    """

    def __init__(
        self,
        module: ModuleFacts,
        cls: ast.ClassDef,
        method: FunctionNode,
        me: str | None,
        cuts: list[ast.expr],
    ) -> None:
        self._module, self._cls, self._method, self._me = module, cls, method, me
        self._cuts = cuts
        self._flow = module.flow(method)

    def text(self, value: ast.expr, at: ast.stmt) -> str | None:
        """A value, computed by a statement; None where it cannot be said so."""
        while value in self._cuts:
            value = _before(value)
        start, text = self._module.start(value), self._module.source(value)
        edits: list[tuple[int, int, str]] = []
        for node in walk(value):
            if isinstance(node, ast.Call) and not is_pure(self._module, node):
                return None
            if not isinstance(node, ast.expr):
                continue
            first, last = self._module.start(node) - start, self._module.end(node) - start
            if isinstance(node, ast.Name) and node.id != self._me and self._flow.is_local(node.id):
                name = self._name(node, at)
                if name is None:
                    return None
                edits.append((first, last, name))
            elif node in self._cuts:
                behind = self._module.end(_before(node)) - start
                edits.append((text.index(".", behind), last, ""))
        for first, last, new in sorted(edits, reverse=True):
            text = text[:first] + new + text[last:]
        return text

    def _name(self, node: ast.Name, at: ast.stmt) -> str | None:
        definition = self._flow.only_definition(node.id, at)
        if definition is None:
            return None
        if definition.statement is None:
            return self._kept_as(node.id)
        block = self._module.parent(definition.statement)
        if definition.value is None or not (
            block is self._method
            or (isinstance(block, ast.With) and self._module.parent(block) is self._method)
        ):
            return None
        text = self.text(definition.value, definition.statement)
        if text is None:
            return None
        if not isinstance(definition.value, _SIMPLE):
            text = f"({text})"
        return text if definition.index is None else f"{text}[{definition.index}]"

    def _kept_as(self, name: str) -> str | None:
        """The attribute that holds an argument: ``self.width`` after ``self.width = width``."""
        for attribute, bindings in self._module.names.attributes(self._cls).items():
            made = bindings[0].node
            value = bindings[0].value
            if len(bindings) > 1 or not isinstance(value, ast.Name) or value.id != name:
                continue
            if made in self._method.body and isinstance(made, ast.Assign):
                definition = self._flow.only_definition(name, made)
                if definition is not None and definition.statement is None:
                    return f"{self._me}.{attribute}"
        return None


def _before(cut: ast.expr) -> ast.expr:
    """``x`` of ``x.data`` and ``x.detach()``."""
    inner = cut.func if isinstance(cut, ast.Call) else cut
    assert isinstance(inner, ast.Attribute)
    return inner.value
