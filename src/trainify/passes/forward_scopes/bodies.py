"""What else a function that starts inference does: it differentiates, or leaves tensors behind."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.called import functions_of
from ...facts.memo import once
from ...facts.names import last_name
from ...facts.walk import walk

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

_MAX_DEPTH = 3
_COLLECTS = frozenset(
    "append appendleft extend add put put_nowait insert update setdefault push send set "
    "register_buffer register_parameter add_module write record".split()
)


def can_be_scoped(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a scope of the forward can stand on a function as a whole.

    It holds on no coroutine, and must not cover what a function differentiates besides, as guidance
    by a classifier does, or test-time training.
    """
    from ...rewrite.scopes import can_decorate

    return can_decorate(function) and not differentiates(module, function)


@once
def differentiates(module: ModuleFacts, function: FunctionNode, depth: int = 0) -> bool:
    """Whether a function, or one of the project that it calls, needs gradients for its work."""
    for node in walk(function):
        if not isinstance(node, ast.Call):
            continue
        name = last_name(node.func)
        if isinstance(node.func, ast.Attribute) and name == "backward":
            return True
        if name == "requires_grad_" and not node.args and not node.keywords:
            return True
        if name in ("grad", "enable_grad"):
            names = [target.name for target in module.resolve(node.func)]
            if any(each in ("torch.autograd.grad", "torch.enable_grad") for each in names):
                return True
    return depth < _MAX_DEPTH and any(
        differentiates(home, callee, depth + 1)
        for home, callee in _called(module, function)
        if callee is not function
    )


@once
def leaves_tensors(module: ModuleFacts, function: FunctionNode, depth: int = 0) -> bool:
    """Whether what a function makes may outlive it without being given: ``self.cache = ids``."""
    for node in walk(function):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            return True
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            value = getattr(module.statement(node), "value", None)
            if not isinstance(value, ast.Constant) and _is_kept(module, function, node):
                return True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _COLLECTS and node.args:
                if _is_kept(module, function, node.func):
                    return True
    return depth < _MAX_DEPTH and any(
        leaves_tensors(home, callee, depth + 1)
        for home, callee in _called(module, function)
        if callee is not function
    )


def _is_kept(
    module: ModuleFacts, function: FunctionNode, node: ast.Attribute | ast.Subscript
) -> bool:
    """Whether what ``node`` is a part of is more than what the function made itself."""
    root: ast.expr = node
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    if not isinstance(root, ast.Name):
        return True
    owner = module.function(root) or function
    reaching = module.flow(owner).reaching(root.id, module.statement(root))
    return not reaching or not all(
        isinstance(d.value, (ast.Call, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.BinOp))
        for d in reaching
    )


def _called(
    module: ModuleFacts, function: FunctionNode
) -> Iterator[tuple[ModuleFacts, FunctionNode]]:
    for node in walk(function):
        if isinstance(node, ast.Call):
            yield from functions_of(module, node.func)
