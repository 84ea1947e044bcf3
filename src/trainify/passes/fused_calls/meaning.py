"""What a call computes if it runs one op or another, in the words of the call."""

from __future__ import annotations

import ast

from ...catalog import FusedOp
from ...facts import ModuleFacts, Target
from .site import Site

Meaning = tuple[object, ...]


def meaning(
    module: ModuleFacts,
    call: ast.Call,
    op: FusedOp,
    target: Target,
    bound: dict[str, ast.expr | None],
) -> Meaning | None:
    """What a call computes, writes and gives; the same for ops that do it alike, by any names.

    ``silu_and_mul(input)`` of ``f(x)`` is ``silu_and_mul(x)``, as is ``silu_and_mul(a)`` of an op
    that calls its argument so.  None where no equivalent holds for the call.
    """
    site = Site(module, call, op, target, bound)
    if site.unsupported() is not None:
        return None
    spoken = {a.name: _spoken(bound[a.name], a.default) for a in op.signature.arguments}
    tree = ast.parse(site.value, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = spoken.get(node.id, node.id)
    given = {name: spoken[name] for name in site.into}
    return (
        ast.dump(tree),
        tuple(spoken.get(name, name) for name in site.outputs),
        frozenset(given.values()),
        tuple(given.get(name or "", "") for name in op.signature.handed_back),
        frozenset(spoken[name] for name in (*op.loses, *op.codes)),
        op.look_at,
    )


def _spoken(node: ast.expr | None, default: str | None) -> str:
    """An argument, or what stands for it where it is left out."""
    return ast.dump(node if node is not None else ast.parse(default or "None", mode="eval").body)
