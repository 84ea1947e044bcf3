"""Where a value is known not to be None: behind a test for it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .names import is_none

if TYPE_CHECKING:
    from .module import ModuleFacts

_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def tested_not_none(module: ModuleFacts, node: ast.AST, text: str) -> bool:
    """Whether ``node`` only runs after a test of its function that ``text`` is not None.

    Whether ``text`` is bound anew in between is for the caller to know.
    """
    child: ast.AST = node
    for parent in module.ancestors(node):
        if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
            body = parent.body if isinstance(parent.body, list) else [parent.body]
            if _excludes_none(parent.test, text, child in body):
                return True
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and child in block:
                if any(_leaves_if_none(s, text) for s in block[: block.index(child)]):
                    return True
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return False
        child = parent
    return False


def _leaves_if_none(statement: ast.stmt, text: str) -> bool:
    """``if x is None: return``, ``assert x is not None``."""
    if isinstance(statement, ast.Assert):
        return _excludes_none(statement.test, text, True)
    return (
        isinstance(statement, ast.If)
        and not statement.orelse
        and isinstance(statement.body[-1], _LEAVES)
        and _excludes_none(statement.test, text, False)
    )


def _excludes_none(test: ast.expr, text: str, value: bool) -> bool:
    """Whether ``test`` being ``value`` means that ``text`` is not None."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _excludes_none(test.operand, text, not value)
    if isinstance(test, ast.BoolOp):
        parts = [_excludes_none(part, text, value) for part in test.values]
        # One conjunct decides a true "and" or a false "or"; otherwise all must agree.
        return any(parts) if isinstance(test.op, ast.And) is value else all(parts)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and is_none(test.comparators[0]):
        wanted = ast.IsNot if value else ast.Is
        return isinstance(test.ops[0], wanted) and ast.unparse(test.left) == text
    return False
