"""Attributes that are set from outside: what a class gives them is not all that they can be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .module import ModuleFacts


def rebound_attributes(module: ModuleFacts) -> Iterator[str]:
    """The names of the attributes; :class:`ModuleFacts` asks once."""
    for statement in module.statements:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Attribute) and not _is_own(module, target.value):
                    yield target.attr
    for call in module.calls if "setattr(" in module.text else ():
        if isinstance(call.func, ast.Name) and call.func.id == "setattr" and len(call.args) == 3:
            name = call.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


def _is_own(module: ModuleFacts, node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and module.names.self_class(node) is not None
