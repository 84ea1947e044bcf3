"""Arguments that a library's layer writes its results into, where its native twin does not.

Whoever looks at such a tensor after the call finds the result in it.  With the twin it is only what
the call returns.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..catalog.layers import FusedLayer
from ..facts import ModuleFacts
from ..facts.names import is_none
from ..facts.views import view_of
from ..facts.walk import walk
from .functionalize import CannotFunctionalize, functionalize


class StillRead(Exception):
    """Why the twin would not do; the message goes on from "Not rewritten: "."""


def overwritten_before(
    module: ModuleFacts, call: ast.Call, layer_node: ast.expr, layer: FusedLayer
) -> Iterator[str]:
    """What a person should check of who else reads what a call of a layer overwrites.

    Raises :class:`StillRead` where the function itself does.
    """
    arguments = list(call.args)
    if arguments and arguments[0] is layer_node:  # checkpoint(self.norm, x, residual)
        arguments = arguments[1:]
    given = {k.arg: k.value for k in call.keywords}
    written = [
        node
        for place, name in layer.overwrites
        if (node := arguments[place] if place < len(arguments) else given.get(name)) is not None
        and not is_none(node)
    ]
    if layer.together and len(written) < len(layer.overwrites):
        return
    statement = module.statement(call)
    bound = _bound_by(statement, call)
    for node in written:
        doubt = _doubt(module, statement, node, bound)
        if doubt:
            yield doubt


def _bound_by(statement: ast.stmt, call: ast.Call) -> set[str]:
    """Where a statement puts what a call returns: names, and parts of tensors as they are written.

    ``q[..., n:], k = self.rope(positions, q[..., n:], k)``
    """
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return set()
    nodes = [n for target in statement.targets for n in walk(target)]
    kinds = (ast.Name, ast.Subscript, ast.Attribute)
    return {ast.unparse(n) for n in nodes if isinstance(n, kinds) and isinstance(n.ctx, ast.Store)}


def _doubt(module: ModuleFacts, statement: ast.stmt, node: ast.expr, bound: set[str]) -> str:
    view = view_of(node)
    if view is None or (isinstance(node, ast.Subscript) and ast.unparse(node) in bound):
        return ""  # made for the call, or put back where it was
    text, base = module.source(node), view.base
    function = module.function(statement)
    flow = module.flow(function or module.tree)
    if not isinstance(node, ast.Name) or base not in bound:
        if flow.read_after(base, statement) or isinstance(node, ast.Attribute):
            raise StillRead(f"the kernel overwrites `{text}`, and `{base}` is read later")
    relied = f"that no caller reads `{base}` after it, which the kernel overwrites"
    if isinstance(statement, ast.Return) and base in flow.parameters and function is not None:
        relies = module.project.relies_on_mutation(module, function, base, statement)
        return relied if relies else ""
    try:
        write = functionalize(module, statement, ast.Name(base, ast.Load()))
    except CannotFunctionalize as error:
        raise StillRead(f"the kernel overwrites `{text}`: {error}") from None
    if write.followers or not write.place.is_name or write.place.text != base:
        if write.place.kind == "copy":
            return relied
        raise StillRead(f"the kernel overwrites `{text}`, which other names share")
    return write.look_at
