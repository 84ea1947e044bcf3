"""Constant folding within one function, on libcst, so that comments and spelling survive.

:func:`fold` takes what is known of names when the function begins and writes it out: conditions are
decided, branches that are never taken and assignments that nobody reads go.  In doubt a piece of
code stays as it is: names are known only along straight-line code and where all branches agree,
never past a loop that binds them; statements that are not understood end all knowledge of what they
bind.  Only exceptions may differ: an expression that could do nothing but raise counts as dead when
its value is.
"""

from __future__ import annotations

import ast

import libcst as cst

from ...facts.walk import walk
from ..expressions import code
from .blocks import AUTO, lines_of, with_body
from .joining import join
from .statements import Folder, forgetting
from .values import GIVEN, Known, is_given, parsed, reads

_DYNAMIC = {"locals", "vars", "eval", "exec", "dir", "globals", "super"}


def body_of(function: cst.FunctionDef) -> list[cst.BaseStatement]:
    """The statements after the docstring."""
    statements = lines_of(function)
    return statements[1:] if function.get_docstring() is not None else statements


def _is_static(function: cst.FunctionDef) -> bool:
    """Whether the function's names can be read off its text."""
    for n in walk(parsed(function)):
        if isinstance(n, (ast.Yield, ast.YieldFrom, ast.Await)):
            return False
        if isinstance(n, ast.Name) and n.id in _DYNAMIC:
            return False
    return isinstance(function.body, cst.IndentedBlock)


def fold(function: cst.FunctionDef, known: Known) -> cst.FunctionDef:
    """The function for parameters of which something is known: literals leave its signature."""
    literals = {name: value for name, value in known.items() if value is not GIVEN}
    docstring = lines_of(function)[: len(lines_of(function)) - len(body_of(function))]
    params = function.params.with_changes(
        **{
            kind: [
                p.with_changes(comma=AUTO)
                for p in getattr(function.params, kind)
                if p.name.value not in literals
            ]
            for kind in ("params", "kwonly_params", "posonly_params")
        }
    )
    statements: list[cst.BaseStatement] = [
        cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(name))], value)])
        for name, value in literals.items()
    ]
    statements += body_of(function)
    new = with_body(function.with_changes(params=params), [*docstring, *statements])
    if not _is_static(function):
        return new  # type: ignore[no-any-return]
    given = {name: value for name, value in known.items() if value is GIVEN}
    while True:
        before = code(new)
        folder = Folder(new)
        statements, _ = folder.block(body_of(new), forgetting(given, folder.untouchable))
        statements, _ = folder.alive(statements, set(), set())
        statements = join(statements, folder.captured | folder.untouchable)
        new = with_body(new, [*docstring, *statements])
        if code(new) == before:
            return _annotated(new, given, folder)


def _annotated(function: cst.FunctionDef, given: Known, folder: Folder) -> cst.FunctionDef:
    """The function without ``| None`` in its annotations where that cannot be."""
    params = [
        p.with_changes(annotation=_not_none(p.annotation)) if p.name.value in given else p
        for p in function.params.params
    ]
    function = function.with_changes(params=function.params.with_changes(params=params))
    returns = function.returns
    if returns is None or len(folder.returns) != 1:
        return function
    value, known = folder.returns[0]

    def sure(node: cst.BaseExpression) -> bool:
        name = node.value if isinstance(node, cst.Name) else ""
        return is_given(node) or known.get(name) is GIVEN

    kind = returns.annotation
    if isinstance(kind, cst.Subscript) and isinstance(value, cst.Tuple):
        if len(kind.slice) == len(value.elements):
            slices = [
                s.with_changes(slice=cst.Index(_not_none_type(s.slice.value)))
                if isinstance(s.slice, cst.Index) and sure(e.value)
                else s
                for s, e in zip(kind.slice, value.elements, strict=True)
            ]
            kind = kind.with_changes(slice=slices)
    elif sure(value):
        kind = _not_none_type(kind)
    return function.with_changes(returns=returns.with_changes(annotation=kind))


def _not_none(annotation: cst.Annotation | None) -> cst.Annotation | None:
    if annotation is None:
        return None
    return annotation.with_changes(annotation=_not_none_type(annotation.annotation))


def _not_none_type(node: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitOr):
        if code(node.right) == "None":
            return node.left
    return node


def used_parameters(function: cst.FunctionDef) -> cst.FunctionDef:
    """The function without the parameters that its body does not read, and without defaults."""
    names = reads(with_body(function, body_of(function)))
    params = [
        p.with_changes(default=None, equal=AUTO, comma=AUTO)
        for p in function.params.params
        if p.name.value in names
    ]
    return function.with_changes(params=function.params.with_changes(params=params))
