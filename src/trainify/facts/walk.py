"""Going through a syntax tree, several times as fast as ``ast.walk``.

Contexts and operators, which hold nothing, are left out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

_PLAIN = frozenset(
    "arg asname attr conversion ctx id is_async kind kwd_attrs level module name op ops rest "
    "simple str tag type_comment type_ignores".split()
)
_BARE = frozenset({"Constant", "Global", "MatchSingleton", "Nonlocal"})

FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(f for f in kind._fields if f not in _PLAIN or kind.__name__ == "TypeAlias")
    if kind.__name__ not in _BARE
    else ()
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
"""The fields of each kind of node that hold nodes, or lists of nodes."""

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FIELDS[type(None)] = ()  # stands in lists for what is not there: the key of **others, a default


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all that is in it, outer ones first, in the order of ``ast.walk``."""
    nodes: list[ast.AST | None] = [node]
    for each in nodes:  # grows meanwhile
        if each is None:
            continue
        yield each
        for field in FIELDS[each.__class__]:
            value = getattr(each, field)
            if value.__class__ is list:
                nodes += value
            elif value is not None:
                nodes.append(value)


BLOCKS: dict[type, tuple[str, ...]] = {
    kind: tuple(f for f in fields if f in ("body", "handlers", "orelse", "finalbody", "cases"))
    for kind, fields in FIELDS.items()
    if not issubclass(kind, (ast.IfExp, ast.Lambda))
}
"""The fields of each kind of node that hold statements, or what holds statements."""


def statements(node: ast.AST, *, nested: bool = False) -> Iterator[ast.stmt]:
    """The statements in a node, last ones first; those of functions and classes if ``nested``."""
    pending: list[ast.AST] = [node]
    while pending:
        each = pending.pop()
        if each is not node:
            if isinstance(each, ast.stmt):
                yield each
            if isinstance(each, _DEFINITIONS) and not nested:
                continue
        for field in BLOCKS[each.__class__]:
            pending += getattr(each, field)


def children(node: ast.AST) -> list[ast.AST]:
    """What stands right in a node."""
    found: list[ast.AST] = []
    for field in FIELDS[node.__class__]:
        value = getattr(node, field)
        if value.__class__ is list:
            found += value
        elif value is not None:
            found.append(value)
    if isinstance(node, (ast.Dict, ast.arguments)):
        return [each for each in found if each is not None]
    return found
