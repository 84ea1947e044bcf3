"""What a file puts into containers, and into attributes of objects, after these were made."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..memo import once
from ..names import last_name, passed
from ..walk import walk

if TYPE_CHECKING:
    from ..module import FunctionNode, ModuleFacts

_INTO = frozenset("append appendleft add insert setdefault add_module".split())
_SAME = frozenset({"extend", "update"})
_NAMESPACES = frozenset("SimpleNamespace Namespace EasyDict AttrDict DotDict Munch".split())

Put = tuple[ast.expr, int]
"""A value, and how many containers more it is in: none for ``nets.extend(others)``."""


@once
def puts(module: ModuleFacts) -> Mapping[str, Sequence[Put]]:
    """What is put, by the last name of what holds it; by ``.name`` what is set as an attribute.

    One name stands for every container that goes by it in the file.
    """
    found: dict[str, list[Put]] = {}
    for statement in module.statements:
        for name, value, times in _put(module, statement):
            if name:
                found.setdefault(name, []).append((value, times))
    return found


def _put(module: ModuleFacts, statement: ast.stmt) -> Iterator[tuple[str, ast.expr, int]]:
    if isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _INTO | _SAME:
            holder, times = last_name(call.func.value), int(call.func.attr in _INTO)
            yield from ((holder, value, times) for value in call.args)
            yield from ((holder, keyword.value, 1) for keyword in call.keywords)
    elif isinstance(statement, ast.AugAssign):
        yield last_name(statement.target), statement.value, 0
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Subscript):
                yield last_name(target.value), statement.value, 1
            elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                if module.names.self_class(target.value) is None:
                    yield f".{target.attr}", statement.value, 0
        if isinstance(call := statement.value, ast.Call) and last_name(call.func) in _NAMESPACES:
            yield from ((f".{k.arg}", k.value, 0) for k in call.keywords if k.arg)


def keeps(function: FunctionNode, name: str) -> bool:
    """Whether a function puts what it is given by a name where others find it."""
    for node in walk(function):
        values: list[ast.expr] = []
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Subscript) for target in node.targets
        ):
            values = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _INTO | _SAME or node.func.attr.startswith("register"):
                values = passed(node)
        if any(isinstance(value, ast.Name) and value.id == name for value in values):
            return True
    return False
