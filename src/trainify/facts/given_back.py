"""Functions of the project that give back what they are given, or a view of it: ``heads(h)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .flow import FunctionFlow
from .keepers import functions_run, given_as
from .memo import once
from .views import View, view_of
from .walk import walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts


def names_given_back(flow: FunctionFlow, name: str, statement: ast.stmt) -> Iterator[str]:
    """The local names that may share a tensor with ``name``, since a function gave it back.

    ``v = heads(h)`` for each of the two, where ``heads`` returns ``x.view(-1, 4)``.
    """
    for definition in flow.reaching(name, statement):
        call = _call_of(definition.value)
        if call is not None:
            yield from (view.base for view in _given(flow.module, call))
    for node in walk(flow.function):
        if not isinstance(node, ast.Assign) or node is statement or node.lineno > statement.lineno:
            continue
        call = _call_of(node.value)
        if call is None or name not in {view.base for view in _given(flow.module, call)}:
            continue
        for target in node.targets:
            for each in walk(target):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                    yield each.id


def _call_of(value: ast.expr | None) -> ast.Call | None:
    """The call of a function of which a value is the result, or an element of it."""
    while isinstance(value, ast.Subscript):
        value = value.value
    return value if isinstance(value, ast.Call) and view_of(value) is None else None


def _given(module: ModuleFacts, call: ast.Call) -> Iterator[View]:
    """The names that a call is given whose tensors it may give back."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    views = [view for each in arguments if (view := view_of(each)) is not None]
    if not views:
        return
    for home, function in functions_run(module, call.func):
        kept = _returned(home, function)
        for view in views if kept else ():
            if not kept.isdisjoint(given_as(home, function, call, view.base)):
                yield view


@once
def _returned(module: ModuleFacts, function: FunctionNode) -> frozenset[str]:
    """The parameters that a function returns, or a view of."""
    flow = module.flow(function)
    found: set[str] = set()
    for node in walk(function):
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        if module.function(node) is not function:
            continue
        parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        for part in parts:
            view = view_of(part)
            if view is None:
                continue
            for name in (view.base, *flow.observers(view.base, node)):
                if any(d.is_parameter for d in flow.reaching(name, node)):
                    found.add(name)
    return frozenset(found)
