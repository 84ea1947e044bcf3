"""What statements add to the value of a name: ``x += y``, ``xs.append(y)``, ``x[i] = y``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import NamedTuple

from ..names import base_name, passed


class Addition(NamedTuple):
    """A statement that adds to a value."""

    statement: ast.stmt
    value: ast.expr | None
    """None where anything may come of it."""
    certain: bool
    """Whether it surely gets in."""


def additions(statements: Iterable[ast.stmt]) -> dict[str | None, list[Addition]]:
    """What statements add to the values of names; None for what has none."""
    found: dict[str | None, list[Addition]] = {}
    for node in statements:
        if isinstance(node, ast.AugAssign):
            name = base_name(node.target)
            adds = isinstance(node.target, ast.Name)
            found.setdefault(name, []).append(Addition(node, node.value, adds))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    found.setdefault(base_name(target), []).append(
                        Addition(node, node.value, False)
                    )
                elif isinstance(target, ast.Attribute):
                    found.setdefault(base_name(target), []).append(Addition(node, None, False))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Attribute):
                name, arguments = base_name(function.value), passed(node.value)
                if function.attr in ("append", "extend") and len(arguments) == 1:
                    found.setdefault(name, []).append(Addition(node, arguments[0], True))
                elif name != "self" and function.attr != "backward":
                    found.setdefault(name, []).append(Addition(node, None, False))
    return found
