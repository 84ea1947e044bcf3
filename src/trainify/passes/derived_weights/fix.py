"""An attribute made a property."""

from __future__ import annotations

import ast

from ...facts import ModuleFacts
from ...facts.names import self_name
from ...facts.walk import walk
from ...findings import Edit
from .derivation import Derivation, Place
from .once import happens_once


def as_property(
    module: ModuleFacts,
    cls: ast.ClassDef,
    name: str,
    place: Place,
    derived: Derivation,
    uses: list[ast.Attribute],
) -> tuple[Edit, ...]:
    """Take the statement out of the method that it is in, and put a property below that."""
    from ...rewrite import layout

    statement = place.statement
    init = module.function(statement)
    if init is None or statement not in init.body or not happens_once(module, cls, init):
        return ()
    if derived.in_no_grad or not layout.owns_lines(module, statement):
        return ()
    if derived.cuts if derived.elsewhere else derived.local:
        return ()
    if not isinstance(statement, (ast.Assign, ast.Expr)) or _has_comment(module, statement):
        return ()
    if isinstance(statement, ast.Assign) and not isinstance(statement.targets[0], ast.Attribute):
        return ()
    if any(
        not isinstance(use.ctx, ast.Load) for use in uses if module.statement(use) is not statement
    ):
        return ()
    me = self_name(init)
    names = {n.id for n in walk(place.value) if isinstance(n, ast.Name)}
    if any(n != me and module.flow(init).is_local(n) for n in names):
        return ()
    assert statement.end_lineno is not None and init.end_lineno is not None
    start = module.line_starts[statement.lineno - 1]
    end = _line_start(module, statement.end_lineno + 1)
    below = layout.line_end(module, init.body[-1])
    ind, unit, newline = module.indentation(init), module.indent_unit, module.newline
    text = _without_cuts(module, place.value, derived.cuts)
    lines = ["", f"{ind}@property", f"{ind}def {name}({me}):", f"{ind}{unit}return {text}"]
    added = newline + newline.join(lines)
    if len(init.body) == 1:
        whole = Edit(module.start(statement), module.end(statement), "pass")
        return (whole, Edit(below, below, added))
    if statement is init.body[-1]:
        head = module.text[:start].rstrip("\r\n")
        return (Edit(len(head), below, added),)
    return (Edit(start, end, ""), Edit(below, below, added))


def _line_start(module: ModuleFacts, line: int) -> int:
    starts = module.line_starts
    return starts[line - 1] if line <= len(starts) else len(module.text)


def _has_comment(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether a comment stands at a statement, or right above."""
    assert statement.end_lineno is not None
    lines = range(statement.lineno - 1, statement.end_lineno + 1)
    return any("#" in module.line_text(line) for line in lines if line > 0)


def _without_cuts(module: ModuleFacts, value: ast.expr, cuts: list[ast.expr]) -> str:
    start, text = module.start(value), module.source(value)
    for cut in sorted(cuts, key=module.end, reverse=True):
        inner = cut.func if isinstance(cut, ast.Call) else cut
        assert isinstance(inner, ast.Attribute)
        first, last = module.end(inner.value) - start, module.end(cut) - start
        first = text.index(".", first)  # behind a parenthesis: (a @ b).detach()
        bare = module.source(inner.value)
        text = bare if text == f"({bare}){text[first:last]}" else text[:first] + text[last:]
    return text
