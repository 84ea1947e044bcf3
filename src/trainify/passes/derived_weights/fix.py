"""An attribute made a property."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.grad_mode import no_grad_scope
from ...facts.guards import is_forward
from ...facts.names import self_name
from ...findings import Edit
from .derivation import Derivation, Place
from .once import happens_once
from .said_again import SaidAgain
from .written import are_replaced, writers

if TYPE_CHECKING:
    from ...facts.module import FunctionNode


def as_property(
    module: ModuleFacts,
    cls: ast.ClassDef,
    name: str,
    place: Place,
    derived: Derivation,
    *,
    anyhow: bool = False,
) -> tuple[Edit, ...]:
    """Take the statement out of the method that it is in, and put a property below that.

    Or several, where several attributes get each a part.  With ``anyhow`` it is known that the
    method runs when a model is made, and not by its name.
    """
    from ...rewrite import layout

    statement = place.statement
    init = module.function(statement)
    if init is None or not layout.owns_lines(module, statement):
        return ()
    if is_forward(init) if anyhow else not happens_once(module, cls, init):
        return ()
    gone = _gone(module, init, statement, derived)
    if gone is None or (derived.elsewhere and derived.cuts):
        return ()
    if not isinstance(statement, (ast.Assign, ast.Expr)) or _has_comment(module, gone):
        return ()
    made = made_by(module, cls, name, statement)
    uses = [use for each in made for use in module.names.uses(cls, each)]
    if not made or any(
        not isinstance(use.ctx, ast.Load) for use in uses if module.statement(use) is not statement
    ):
        return ()
    if any(writers(module, each) for each in made) or are_replaced(module, derived.sources):
        return ()  # into what a property would throw away, or what it would be made of
    me = self_name(init)
    text = SaidAgain(module, cls, init, me, derived.cuts).text(place.value, statement)
    if text is None:
        return ()
    assert gone.end_lineno is not None and init.end_lineno is not None
    start = module.line_starts[gone.lineno - 1]
    end = _line_start(module, gone.end_lineno + 1)
    below = layout.line_end(module, init.body[-1])
    ind, unit, newline = module.indentation(init), module.indent_unit, module.newline
    lines: list[str] = []
    for each, part in made.items():
        lines += ["", f"{ind}@property", f"{ind}def {each}({me}):"]
        lines += [f"{ind}{unit}return {text}{part}"]
    added = newline + newline.join(lines)
    if len(init.body) == 1 and gone is init.body[0]:
        whole = Edit(module.start(gone), module.end(gone), "pass")
        return (whole, Edit(below, below, added))
    if layout.line_end(module, gone) == below:
        head = module.text[:start].rstrip("\r\n")
        return (Edit(len(head), below, added),)
    return (Edit(start, end, ""), Edit(below, below, added))


def made_by(
    module: ModuleFacts, cls: ast.ClassDef, name: str, statement: ast.stmt
) -> dict[str, str]:
    """The attributes that a statement makes, and which part of its value each of them gets.

    ``self.q, self.k = weight.chunk(2)``: ``[0]`` and ``[1]``.  Empty where it makes anything else.
    """
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(target, (ast.Tuple, ast.List)):
        return {name: ""}
    parts: dict[str, str] = {}
    for i, each in enumerate(target.elts):
        if not isinstance(each, ast.Attribute) or not isinstance(each.value, ast.Name):
            return {}
        if module.names.self_class(each.value) is not cls or each.attr in parts:
            return {}
        parts[each.attr] = f"[{i}]"
    return parts


def _gone(
    module: ModuleFacts, init: FunctionNode, statement: ast.stmt, derived: Derivation
) -> ast.stmt | None:
    """What goes with a statement of a method: itself, or the grad mode that is there for it alone.

    None where it stands in something else, or is computed by what switches gradients off.
    """
    if statement in init.body:
        return None if derived.in_no_grad and derived.elsewhere else statement
    scope = module.parent(statement)
    if derived.elsewhere or scope not in init.body or not isinstance(scope, ast.With):
        return None
    if not all(no_grad_scope(module, item.context_expr, scope) for item in scope.items):
        return None
    return scope if len(scope.body) == 1 else statement


def _line_start(module: ModuleFacts, line: int) -> int:
    starts = module.line_starts
    return starts[line - 1] if line <= len(starts) else len(module.text)


def _has_comment(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether a comment stands at a statement, or right above."""
    assert statement.end_lineno is not None
    lines = range(statement.lineno - 1, statement.end_lineno + 1)
    return any("#" in module.line_text(line) for line in lines if line > 0)
