"""What code becomes that only ran because its tensors had no graph."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, TypeGuard

from ..findings import Edit
from . import layout
from .scopes import around

if TYPE_CHECKING:
    from ..facts import ModuleFacts
    from ..facts.without_graph import Hindrance


def repaired(module: ModuleFacts, hindrance: Hindrance) -> list[Edit]:
    """The plain repair of a line: ``h.detach().numpy()``, or a write that stays under no_grad.

    An empty list where there is none: a result is lost with the gradient, or nothing helps.
    """
    if hindrance.home is not module or hindrance.matters:
        return []
    if hindrance.kind in ("array", "copy"):
        return [_detached(module, hindrance.tensor)]
    if hindrance.kind == "weight" and _only_writes(hindrance.node):
        torch = layout.bound_at_top(module, "torch")
        if torch is not None and layout.owns_lines(module, hindrance.node):
            return around(module, [hindrance.node], f"{torch}.no_grad()")
    return []


def _only_writes(node: ast.stmt | ast.expr) -> TypeGuard[ast.stmt]:
    """Whether a statement gives nothing else a value: under no_grad that would have no graph."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Subscript) for target in node.targets)
    return isinstance(node, (ast.Expr, ast.AugAssign))


def _detached(module: ModuleFacts, tensor: ast.expr) -> Edit:
    """``h.detach().cpu()`` for ``h.cpu()``."""
    while isinstance(tensor, ast.Call) and isinstance(tensor.func, ast.Attribute):
        if tensor.func.attr not in ("cpu", "float", "contiguous", "clone", "to"):
            break
        tensor = tensor.func.value
    if isinstance(tensor, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        end = module.end(tensor)
        return Edit(end, end, ".detach()")
    parent = module.parent(tensor)
    if isinstance(parent, ast.Attribute):  # (a + b).numpy()
        end = module.text.index(".", module.text.index(")", module.end(tensor)))
        return Edit(end, end, ".detach()")
    text = f"({module.source(tensor)}).detach()"
    return Edit(module.start(tensor), module.end(tensor), text)
