"""Where a hand-written backward leaves its gradients beside what it returns.

A pipeline sends them to another rank, a large weight has them added to its ``.grad`` on the spot.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .names import last_name, placed
from .walk import walk
from .writes import METHODS, root_of

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_GRADIENTS = ("grad", "main_grad")


def adds_to_gradients(module: ModuleFacts, backward: FunctionNode) -> bool:
    """Whether a backward writes into the ``.grad`` of a tensor itself."""
    for node in walk(backward):
        if isinstance(node, ast.Attribute) and node.attr in _GRADIENTS:
            if isinstance(node.ctx, ast.Store):
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in METHODS and _is_gradient(module, backward, node.func.value):
                return True
    return False


def hands_on(module: ModuleFacts, backward: FunctionNode) -> bool:
    """Whether a backward passes its gradients on, or runs another: nothing is lost by ``None``."""
    if adds_to_gradients(module, backward):
        return True
    ctx, *given = placed(backward) or [""]
    vararg = backward.args.vararg
    gradients = {*given, vararg.arg if vararg is not None else ""}
    for node in walk(backward):
        if isinstance(node, ast.Call):
            if "backward" in last_name(node.func):
                return True
            if _base(node.func) == ctx and any(_mentions(a, gradients) for a in node.args):
                return True
        if isinstance(node, ast.Assign) and _mentions(node.value, gradients):
            if any(isinstance(t, ast.Attribute) and _base(t.value) == ctx for t in node.targets):
                return True
    return False


def _is_gradient(module: ModuleFacts, backward: FunctionNode, written: ast.expr) -> bool:
    """Whether a tensor is a ``.grad``, or a piece of one: ``torch.split(w.grad, n)[i]``."""
    if _reads_gradient(written):
        return True
    name = root_of(written)[0]
    if name is None:
        return False
    made = module.flow(backward).only_definition(name.id, module.statement(written))
    return made is not None and made.value is not None and _reads_gradient(made.value)


def _reads_gradient(node: ast.expr) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr in _GRADIENTS for n in walk(node))


def _base(node: ast.expr) -> str | None:
    """``ctx`` of ``ctx.portal.put``: not of ``ctx`` alone."""
    if not isinstance(node, ast.Attribute):
        return None
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _mentions(node: ast.expr, names: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in names for n in walk(node))
