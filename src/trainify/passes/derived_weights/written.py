"""Whether somebody writes into what an attribute holds: it is no property then."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.views import VIEW_ATTRIBUTES, is_view_method
from ...facts.walk import walk

if TYPE_CHECKING:
    from ...facts.module import FunctionNode


def writers(module: ModuleFacts, name: str) -> set[FunctionNode | None]:
    """The functions of a file that write into an attribute of this name, of whatever object.

    None stands for the file itself.
    """
    return {
        module.function(node)
        for statement in module.mentioning(name)
        for node in walk(statement)
        if isinstance(node, ast.Attribute) and node.attr == name and _is_written(module, node)
    }


def are_replaced(module: ModuleFacts, sources: Collection[str]) -> bool:
    """Whether a file gives weights other values: ``self.q.weight.data = torch.empty(0)``."""
    return any(
        isinstance(node, ast.Attribute)
        and not isinstance(node.ctx, ast.Load)
        and any(module.source(node).startswith(f"{source}.data") for source in sources)
        for name in {source.rpartition(".")[2] for source in sources}
        for statement in module.mentioning(name)
        for node in walk(statement)
    )


def _is_written(module: ModuleFacts, node: ast.expr) -> bool:
    """``x[i] = y``, ``x.data.mul_(y)``, ``x += y``, ``f(y, out=x)``."""
    around = module.parent(node)
    if isinstance(around, ast.Subscript) and around.value is node:
        return not isinstance(around.ctx, ast.Load) or _is_written(module, around)
    if isinstance(around, ast.Attribute):
        if around.attr in ("requires_grad", "requires_grad_"):  # it learns by itself
            return True
        if around.attr in VIEW_ATTRIBUTES:
            return not isinstance(around.ctx, ast.Load) or _is_written(module, around)
        call = module.parent(around)
        if not isinstance(call, ast.Call) or call.func is not around:
            return False
        if is_view_method(around.attr):
            return _is_written(module, call)
        return around.attr.endswith("_") and not around.attr.endswith("__")
    if isinstance(around, ast.AugAssign):
        return around.target is node
    if isinstance(around, ast.keyword):
        return around.arg == "out"
    function = around.func if isinstance(around, ast.Call) else None
    named = getattr(function, "attr", "")  # torch.nn.init.zeros_(x), torch.relu_(x)
    return isinstance(around, ast.Call) and named.endswith("_") and node in around.args[:1]
