"""What the local names of a function carry: their definitions, and what is added to them."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from ..carried import Bound, Carried, Network, either, together
from ..differentiation import NUMBER, UNKNOWN
from ..flow import Definition
from .elements import of_element
from .networks import bound_names

if TYPE_CHECKING:
    from . import Gradients


def of_name(gradients: Gradients, node: ast.Name, at: ast.stmt, scope: Bound) -> Carried:
    """What a name carries in the statement ``at``."""
    if node.id in scope:
        bound = scope[node.id]
        return bound if isinstance(bound, Carried) else UNKNOWN
    if not gradients.is_local(node.id):
        return UNKNOWN
    reaching = gradients.flow.reaching(node.id, at)
    looped = [d for d in reaching if _in_loop_over_modules(gradients, d, at)]
    found = [_definition(gradients, d) for d in looped or reaching]
    if not found:
        return UNKNOWN
    known = [f for f in found if f is not None]
    value = either(known) if known else NUMBER
    for statement, written, adds in gradients.additions.get(node.id, ()):
        if statement is at or not _same_object(gradients, node.id, statement, at):
            continue
        if written is None:
            value = replace(value, known=False)
            continue
        more = _definition(gradients, Definition(node.id, statement, written))
        if more is not None:
            value = together([value, more if adds else replace(more, sure=False)])
    return value


def _in_loop_over_modules(gradients: Gradients, definition: Definition, at: ast.stmt) -> bool:
    """Whether a value is made in ``for layer in self.layers``, which runs at least once."""
    if definition.statement is None:
        return False
    loop = gradients.module.parent(definition.statement)
    if not isinstance(loop, ast.For) or loop in gradients.module.ancestors(at):
        return False
    bound = bound_names(gradients, loop.target, loop.iter, loop, {})
    return any(isinstance(value, Network) for value in bound.values())


def _same_object(gradients: Gradients, name: str, first: ast.stmt, last: ast.stmt) -> bool:
    return bool(gradients.flow.reaching(name, first) & gradients.flow.reaching(name, last))


def _definition(gradients: Gradients, definition: Definition) -> Carried | None:
    """None where the value is computed from itself, and that says nothing new."""
    if definition in gradients.known:
        return gradients.known[definition]
    if definition in gradients.active:
        gradients.cycles += 1
        return None
    cycles = gradients.cycles
    gradients.active.add(definition)
    try:
        value = _defined(gradients, definition)
    finally:
        gradients.active.discard(definition)
    if gradients.cycles == cycles:
        gradients.known[definition] = value
    return value


def _defined(gradients: Gradients, definition: Definition) -> Carried:
    statement = definition.statement
    if statement is None:
        return gradients.arguments.get(definition.name, UNKNOWN)
    if definition.value is None:
        if isinstance(statement, (ast.For, ast.AsyncFor)):
            bound = bound_names(gradients, statement.target, statement.iter, statement, {})
            value = bound.get(definition.name)
            return value if isinstance(value, Carried) else UNKNOWN
        return UNKNOWN
    if definition.index is not None:
        return of_element(gradients, definition.value, definition.index, statement, {})
    return gradients.value(definition.value, statement)
