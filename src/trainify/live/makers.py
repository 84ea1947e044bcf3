"""Where the methods of a module make what it holds, and what else they make of its weights."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import NamedTuple

from torch import nn

from ..facts.names import is_none
from ..facts.walk import statements, walk
from ..passes.derived_weights.once import ON_LOADING
from .inplace import original_code
from .reach import CONSTRUCTORS, members
from .rewritten import Refused, definition_of


class Made(NamedTuple):
    """Where a module gets an attribute: the file, the line, and the method."""

    path: str
    line: int
    method: str


def made_at(module: nn.Module, attribute: str) -> Made | None:
    """The only statement that gives a module an attribute; None for several, or none."""
    found = makers(module, attribute)
    return found[0] if len(found) == 1 else None


def makers(module: nn.Module, attribute: str) -> list[Made]:
    """The statements of its methods that give a module an attribute other than None.

    None where one of the methods has no source.
    """
    found: list[Made] = []
    for member in (m for cls in type(module).__mro__ for m in members(cls)):
        code = original_code(member.function)
        if attribute in (*code.co_names, *code.co_consts):
            try:
                _, function = definition_of(code)
            except Refused:
                return []
            found += [
                Made(code.co_filename, statement.lineno, member.name)
                for statement in statements(function)
                if isinstance(statement, (ast.Assign, ast.Expr)) and sets(statement, attribute)
                if not is_none(getattr(statement, "value", None))
            ]
    return found


def is_all_that_is_made(module: nn.Module, weight: str, attributes: Collection[str]) -> bool:
    """Whether methods of a module read a weight of it for some attributes, and for nothing else.

    What else is made of it, as the norms of its rows, would go on without it.  The forward, which
    reads nothing of it, is not asked, nor what fills weights in place when a module is made.
    """
    part = weight.partition(".")[0]
    for member in (m for cls in type(module).__mro__ for m in members(cls)):
        code = original_code(member.function)
        if member.name == "forward" or part not in code.co_names:
            continue
        try:
            _, function = definition_of(code)
        except Refused:
            return False
        reading = [each for each in statements(function) if _reads(each, part)]
        if not all(_is_only_for(function, each, attributes, set()) for each in reading):
            return False
    return True


def _reads(statement: ast.stmt, attribute: str) -> bool:
    """Whether a statement itself, and none that is in it, reads an attribute of anything."""
    inside = {node for each in statements(statement) for node in walk(each)}
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == attribute
        and isinstance(node.ctx, ast.Load)
        and node not in inside
        for node in walk(statement)
    )


def _is_only_for(
    function: ast.AST, statement: ast.stmt, attributes: Collection[str], seen: set[ast.stmt]
) -> bool:
    """Whether a statement makes some attributes, or local names for these, or fills weights."""
    if statement in seen or any(sets(statement, each) for each in attributes):
        return True
    seen.add(statement)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func).endswith("_")
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = [each for target in targets for each in getattr(target, "elts", [target])]
    if not names or not all(isinstance(each, ast.Name) for each in names):
        return False
    made = {each.id for each in names if isinstance(each, ast.Name)}
    users = [
        each
        for each in statements(function)
        if next(statements(each), None) is None and _loads(each, made)
    ]
    return all(_is_only_for(function, each, attributes, seen) for each in users)


def _loads(statement: ast.stmt, names: Collection[str]) -> bool:
    """Whether a statement reads one of some local names."""
    return any(
        isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
        for node in walk(statement)
    )


def is_for_construction(module: nn.Module, method: str) -> bool:
    """Whether a method constructs a module, is called where one is constructed, or by a loader."""
    constructors = {
        name
        for cls in type(module).__mro__
        for member in members(cls)
        if member.name in CONSTRUCTORS
        for name in original_code(member.function).co_names
    }
    return method in (*CONSTRUCTORS, *constructors) or ON_LOADING.search(method) is not None


def sets(node: ast.AST, name: str) -> bool:
    """Whether a method, or a statement, gives an instance an attribute, or a buffer."""
    return any(
        (isinstance(each, ast.Attribute) and each.attr == name and isinstance(each.ctx, ast.Store))
        or (isinstance(each, ast.Constant) and each.value == name)
        for each in walk(node)
    )
