"""Small tools on statements that stand on lines of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst

from ..expressions import code

AUTO = cst.MaybeSentinel.DEFAULT
"""A comma or an equals sign where the syntax asks for one."""


def is_block(statement: cst.For | cst.While | cst.If | cst.Else) -> bool:
    return isinstance(statement.body, cst.IndentedBlock)


def is_plain(statement: cst.If) -> bool:
    """Whether the branches of an ``if`` stand on lines of their own."""
    orelse = statement.orelse
    if isinstance(orelse, cst.If):
        return is_block(statement) and is_plain(orelse)
    return is_block(statement) and (orelse is None or is_block(orelse))


def lines_of(statement: Any) -> list[cst.BaseStatement]:
    return list(statement.body.body)


def with_body(statement: Any, body: Sequence[cst.BaseStatement]) -> Any:
    lines = list(body) or [cst.SimpleStatementLine([cst.Pass()])]
    return statement.with_changes(body=statement.body.with_changes(body=lines))


def else_with(
    before: cst.If | cst.Else | None, statements: Sequence[cst.BaseStatement]
) -> cst.If | cst.Else | None:
    if not statements or before is None:
        return None
    if isinstance(before, cst.If):
        if len(statements) == 1 and isinstance(statements[0], cst.If):
            return statements[0]
        return cst.Else(cst.IndentedBlock(list(statements)))
    return with_body(before, statements)  # type: ignore[no-any-return]


def leading(statement: cst.BaseStatement) -> Sequence[cst.EmptyLine]:
    lines: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
    return lines


def led(statement: cst.BaseStatement, lines: Sequence[cst.EmptyLine]) -> cst.BaseStatement:
    if not hasattr(statement, "leading_lines"):
        return statement
    return statement.with_changes(leading_lines=list(lines))


def bound_names(target: cst.BaseExpression) -> list[str] | None:
    """The names that an assignment binds, or None where it does something else as well."""
    if isinstance(target, cst.Name):
        return [target.value]
    if isinstance(target, cst.Tuple) and all(
        isinstance(e, cst.Element) and isinstance(e.value, cst.Name) for e in target.elements
    ):
        return [code(e.value) for e in target.elements]
    return None


def tuple_of(before: cst.Tuple, elements: Sequence[cst.BaseElement]) -> cst.BaseExpression:
    if len(elements) == 1:
        return elements[0].value
    return before.with_changes(elements=[e.with_changes(comma=AUTO) for e in elements])
