"""What is known of a file's nodes as long as the statement stays that they are in.

While a file is being edited, most statements at its top stay as they are from one text to the next,
with their nodes.  What follows from one of them alone is kept with those; see
:mod:`trainify.lsp.reparse`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .walk import walk

if TYPE_CHECKING:
    from .flow import FunctionFlow
    from .module import FunctionNode
    from .names import Binding, Scope


@dataclass(eq=False)
class Inside:
    """Facts about what is inside of statements at the top of a file; none about others."""

    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    """What stands around expressions, of those statements that were asked about."""
    calls: dict[ast.stmt, list[ast.Call]] = field(default_factory=dict)
    """By statement at the top of the file, of which ``parents`` then has all that is in it."""
    scopes: dict[ast.AST, Scope | None] = field(default_factory=dict)
    """Of expressions that were asked about; None is the module's."""
    functions: dict[ast.AST, FunctionNode | None] = field(default_factory=dict)
    """The innermost ones around expressions that were asked about."""
    bindings: dict[ast.AST, dict[str, list[Binding]]] = field(default_factory=dict)
    """Of the scopes that were asked about."""
    flows: dict[ast.AST, FunctionFlow] = field(default_factory=dict)

    def clear(self) -> None:
        self.calls.clear()
        for known in self._by_node():
            known.clear()

    def forget(self, tree: ast.Module, gone: Iterable[ast.stmt]) -> None:
        """Drop what is known of a tree's top, and of all that is in some of its statements."""
        self.bindings.pop(tree, None)
        self.flows.pop(tree, None)
        for statement in gone:
            self.calls.pop(statement, None)
            for node in walk(statement):
                for known in self._by_node():
                    known.pop(node, None)

    def _by_node(self) -> tuple[dict[ast.AST, Any], ...]:
        return self.parents, self.scopes, self.functions, self.bindings, self.flows
