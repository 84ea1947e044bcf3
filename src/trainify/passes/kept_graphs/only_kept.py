"""What a step keeps, kept detached; and layers of which it uses what they give for nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.graph import Graph, results
from ...facts.trainable import submodules
from ...findings import Fix
from ..caches.detaching import detached, unless_read

if TYPE_CHECKING:
    from ...facts.module import FunctionNode


def kept_detached(
    module: ModuleFacts,
    function: FunctionNode,
    statement: ast.stmt,
    owner: ast.Attribute,
    values: Sequence[ast.expr],
) -> Fix:
    """A statement keeps values in an attribute without their history.

    Unsafe where others may go on from what is kept.
    """
    edits = tuple(edit for value in values for edit in detached(module, value))
    fix = Fix(f"Keep detached values in {module.source(owner)}", edits)
    fix = unless_read(module, statement, owner, fix)
    return _unless_only_kept(module, function, values, fix)


def _unless_only_kept(
    module: ModuleFacts, function: FunctionNode, values: Iterable[ast.expr], fix: Fix
) -> Fix:
    """A fix that detaches values; unsafe where what they come from has no way to the result.

    Then somebody reads what is kept, or else the layer would be there for nothing.
    """
    names = _layers(module, function, [(v, module.statement(v)) for v in values])
    alone = sorted(names - _layers(module, function, results(function))) if names else []
    if not alone:
        return fix
    listed = ", ".join(f"`self.{name}`" for name in alone)
    verb = "does" if len(alone) == 1 else "do"
    return fix.unsafe(
        f"{listed} {verb} not reach what `{function.name}` returns: what else reads it?"
    )


def _layers(
    module: ModuleFacts, function: FunctionNode, values: Iterable[tuple[ast.expr, ast.stmt]]
) -> frozenset[str]:
    """The layers and parameters of the object that values come from, by its own methods too."""
    cls = module.method_class(function)
    if cls is None:
        return frozenset()
    layers = submodules(module, cls)
    found: set[str] = set()
    seen = {function}
    pending = [(function, list(values))]
    while pending:
        home, given = pending.pop()
        graph = Graph(module, home)
        for step in graph.back_from(given):
            if step.cut is not None:
                continue
            name = graph.attribute(step.node, step.at)
            if name in layers:
                found.add(name)
            callee = graph.callee(step.node) if isinstance(step.node, ast.Call) else None
            if callee is not None and callee not in seen and module.method_class(callee) is cls:
                seen.add(callee)
                pending.append((callee, list(results(callee))))
    return frozenset(found)
