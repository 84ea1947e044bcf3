"""What statements add to the value of a name: ``x += y``, ``xs.append(y)``, ``x[i] = y``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import NamedTuple

from ..names import passed


class Addition(NamedTuple):
    """A statement that adds to a value."""

    statement: ast.stmt
    value: ast.expr | None
    """None where anything may come of it."""
    certain: bool
    """Whether it surely gets in."""


def additions(statements: Iterable[ast.stmt]) -> dict[str, list[Addition]]:
    """What statements add to the values of names."""
    found: dict[str, list[Addition]] = {}
    for node in statements:
        if isinstance(node, ast.AugAssign):
            name = _base(node.target)
            adds = isinstance(node.target, ast.Name)
            found.setdefault(name, []).append(Addition(node, node.value, adds))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    found.setdefault(_base(target), []).append(Addition(node, node.value, False))
                elif isinstance(target, ast.Attribute):
                    found.setdefault(_base(target), []).append(Addition(node, None, False))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Attribute):
                name, arguments = _base(function.value), passed(node.value)
                if function.attr in ("append", "extend") and len(arguments) == 1:
                    found.setdefault(name, []).append(Addition(node, arguments[0], True))
                elif name != "self" and function.attr != "backward":
                    found.setdefault(name, []).append(Addition(node, None, False))
    return found


def _base(node: ast.expr) -> str:
    """The name that a place belongs to: ``x`` for ``x[0].y``."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
