"""Which results of a fused call are read: nothing has to be computed for the others."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.walk import walk

if TYPE_CHECKING:
    from ...facts.module import FunctionNode
    from ...rewrite.functionalize import Place


def unread_places(
    module: ModuleFacts, statement: ast.stmt, places: Sequence[Place | None]
) -> frozenset[int]:
    """Which of some places nobody reads after a statement; none of them where nobody reads any."""
    function = module.function(statement)
    if function is None:
        return frozenset()  # other files may read the names of this one
    flow, elsewhere = module.flow(function), set(_read_elsewhere(function))
    unread = frozenset(
        i
        for i, place in enumerate(places)
        if place is not None
        and place.is_name
        and place.text not in elsewhere
        and not flow.read_after(place.text, statement)
    )
    return unread if len(unread) < len(places) else frozenset()


def _read_elsewhere(function: FunctionNode) -> Iterator[str]:
    """The names of a function that are not its own, or that a function in it may read."""
    for node in walk(function):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            yield from node.names
        elif isinstance(node, (ast.FunctionDef, ast.Lambda)) and node is not function:
            yield from (n.id for n in walk(node) if isinstance(n, ast.Name))
