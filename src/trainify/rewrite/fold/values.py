"""What a piece of code reads and binds, and what is known of its values."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import libcst as cst

from ...facts.walk import walk
from ..expressions import code

Known = Mapping[str, cst.BaseExpression]
"""Names and the literal, or the other name, that each stands for."""

GIVEN = cst.Name("__given__")
"""Known of a name: that it is not None, and no more."""

UNKNOWN = object()
"""In place of the value of what is no literal."""

_PURE_FUNCTIONS = {"len", "isinstance", "set", "tuple", "int", "float"}
_PURE_METHODS = {
    *("chunk", "contiguous", "diff", "dim", "expand", "flatten", "float", "numel", "permute"),
    *("reshape", "size", "squeeze", "to", "tolist", "transpose", "unbind", "unsqueeze", "view"),
}


def parsed(node: cst.CSTNode) -> ast.AST:
    text = code(node)
    return ast.parse(f"({text}\n)" if isinstance(node, cst.BaseExpression) else text)


@lru_cache(4096)
def reads(node: cst.CSTNode) -> frozenset[str]:
    """The names that a piece of code may read, those of inner scopes included."""
    tree = parsed(node)
    names = {n.id for n in walk(tree) if isinstance(n, ast.Name) and is_read(n)}
    for n in walk(tree):
        if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name):
            names.add(n.target.id)
    return frozenset(names)


def is_read(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Store)


def bindings(tree: ast.AST) -> Iterator[str]:
    """Every binding in a piece of code, once for each time; those of inner scopes included."""
    for n in walk(tree):
        if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load):
            yield n.id
        elif isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield n.name
        elif isinstance(n, ast.arg):
            yield n.arg
        elif isinstance(n, ast.alias):
            yield (n.asname or n.name).partition(".")[0]
        elif isinstance(n, (ast.Global, ast.Nonlocal)):
            yield from n.names
        elif isinstance(n, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and n.name:
            yield n.name
        elif isinstance(n, ast.MatchMapping) and n.rest:
            yield n.rest


@lru_cache(4096)
def binds(node: cst.CSTNode) -> frozenset[str]:
    """The names that a piece of code may bind."""
    return frozenset(bindings(parsed(node)))


def literal(node: cst.BaseExpression) -> Any:
    """The value of None, a bool, a number, a string or a tuple of them; UNKNOWN of all else."""
    if isinstance(node, cst.Name):
        return {"None": None, "True": True, "False": False}.get(node.value, UNKNOWN)
    if isinstance(node, (cst.Integer, cst.Float)):
        return node.evaluated_value
    if isinstance(node, cst.SimpleString):
        return node.evaluated_value if isinstance(node.evaluated_value, str) else UNKNOWN
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        value = literal(node.expression)
        return -value if type(value) in (int, float) else UNKNOWN
    if isinstance(node, cst.Tuple):
        values = [
            literal(e.value) if isinstance(e, cst.Element) else UNKNOWN for e in node.elements
        ]
        return UNKNOWN if any(v is UNKNOWN for v in values) else tuple(values)
    return UNKNOWN


def is_literal(node: cst.BaseExpression) -> bool:
    return literal(node) is not UNKNOWN


@lru_cache(4096)
def is_pure(node: cst.BaseExpression) -> bool:
    """Whether evaluating an expression leaves no trace but its value."""
    for n in walk(parsed(node)):
        if isinstance(n, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.Lambda)):
            return False
        if isinstance(n, ast.Call):
            f = n.func
            known = (isinstance(f, ast.Name) and f.id in _PURE_FUNCTIONS) or (
                isinstance(f, ast.Attribute) and f.attr in _PURE_METHODS
            )
            if not known:
                return False
    return True


_DTYPE = re.compile(r"dtype|half|double|(bfloat|float|uint|int|complex)\d+(_\w+)?")


def is_given(node: cst.BaseExpression) -> bool:
    """Whether an expression over tensors surely has a value other than None."""
    if is_literal(node):
        return literal(node) is not None
    if isinstance(node, (cst.BinaryOperation, cst.Comparison, cst.Tuple)):
        return True
    if isinstance(node, cst.Subscript):
        return not all(isinstance(e.slice, cst.Index) for e in node.slice) or len(node.slice) > 1
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        owner, method = code(node.func.value), node.func.attr.value
        return owner in ("torch", "F") or method in _PURE_METHODS
    return isinstance(node, cst.Attribute) and _DTYPE.fullmatch(node.attr.value) is not None


def given_names(node: cst.CSTNode, known: Known) -> set[str]:
    """The names that are not None wherever a piece of code reads them."""
    counts = Counter(bindings(parsed(node)))
    names = {name for name, value in known.items() if value is GIVEN and counts[name] <= 1}

    class Visit(cst.CSTVisitor):
        def visit_Assign(self, node: cst.Assign) -> None:
            target = node.targets[0].target
            if isinstance(target, cst.Name) and counts[target.value] == 1 and is_given(node.value):
                names.add(target.value)

    node.visit(Visit())
    return names
