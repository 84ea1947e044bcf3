"""Statements that folding leaves side by side, and that a person would have written as one."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence

import libcst as cst

from ...facts.walk import walk
from ..expressions import code, one_line, parenthesized
from .blocks import bound_names, is_plain, leading, led, lines_of, with_body
from .values import parsed

_MAX_JOINED = 72


def join(statements: Sequence[cst.BaseStatement], kept: set[str]) -> list[cst.BaseStatement]:
    """``x = f(); x = x.g()`` as ``x = f().g()``, and ``x = f(); return x`` as ``return f()``.

    A branch that is gone leaves such pairs, which nobody would write.  ``kept`` are names whose
    values in between others may see.
    """
    done: list[cst.BaseStatement] = []
    for statement in statements:
        if isinstance(statement, cst.If) and is_plain(statement):
            orelse = statement.orelse
            if isinstance(orelse, cst.Else):
                orelse = with_body(orelse, join(lines_of(orelse), kept))
            elif isinstance(orelse, cst.If):
                (orelse,) = join([orelse], kept)  # type: ignore[assignment]
            statement = with_body(statement, join(lines_of(statement), kept))
            statement = statement.with_changes(orelse=orelse)
        pair = _pair(done[-1], statement, kept) if done else None
        if pair is None:
            done.append(statement)
        else:
            done[-1] = pair
    return done


def _pair(
    first: cst.BaseStatement, second: cst.BaseStatement, kept: set[str]
) -> cst.BaseStatement | None:
    assign, then = _only(first), _only(second)
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    assert isinstance(first, cst.SimpleStatementLine)
    if leading(second) or first.trailing_whitespace.comment:
        return None
    target = assign.targets[0].target
    if not isinstance(target, cst.Name) or target.value in kept:
        return None
    name = target.value
    if isinstance(then, cst.Return) and isinstance(then.value, cst.Name):
        if then.value.value != name:
            return None
        new: cst.BaseSmallStatement = then.with_changes(value=assign.value)
    elif isinstance(then, cst.Assign) and bound_names(then.targets[0].target) == [name]:
        counts = Counter(n.id for n in walk(parsed(then.value)) if isinstance(n, ast.Name))
        if len(then.targets) != 1 or counts[name] != 1 or _root(then.value) != name:
            return None
        if isinstance(then.value, cst.Name):
            return None
        value = _rooted(then.value, assign.value)
        if len(one_line(code(value))) > _MAX_JOINED:
            return None
        new = then.with_changes(value=value)
    else:
        return None
    assert isinstance(second, cst.SimpleStatementLine)
    return led(second.with_changes(body=[new]), leading(first))


def _only(statement: cst.BaseStatement) -> cst.BaseSmallStatement | None:
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        return statement.body[0]
    return None


def _inner(node: cst.BaseExpression) -> tuple[str, cst.BaseExpression] | None:
    """The field and the node that a chain of dots, calls and brackets goes on from."""
    if isinstance(node, (cst.Attribute, cst.Subscript)):
        return "value", node.value
    return ("func", node.func) if isinstance(node, cst.Call) else None


def _root(node: cst.BaseExpression) -> str | None:
    """``x`` of ``x.view(-1)[0]``, which is evaluated first."""
    while (inner := _inner(node)) is not None:
        node = inner[1]
    return node.value if isinstance(node, cst.Name) else None


def _rooted(node: cst.BaseExpression, root: cst.BaseExpression) -> cst.BaseExpression:
    """A chain that begins with another expression."""
    inner = _inner(node)
    if inner is None:
        return parenthesized(root)
    return node.with_changes(**{inner[0]: _rooted(inner[1], root)})
