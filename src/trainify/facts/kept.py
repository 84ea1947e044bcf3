"""Tensors that outlive a call: buffers of a module, and what a function hands out repeatedly."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .flow import Definition, is_allocation
from .graph import Graph, results
from .trainable import is_buffer

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_MEMOIZERS = ("functools.lru_cache", "functools.cache")


def is_kept_buffer(module: ModuleFacts, node: ast.Attribute) -> bool:
    """Whether ``self.name`` is a buffer, registered or not, and the same from call to call.

    A method that assigns another tensor to it, or code that does so from outside, may cut its
    graph.
    """
    cls = module.names.self_class(node.value) if isinstance(node.value, ast.Name) else None
    if cls is None or node.attr in module.rebound:
        return False
    bindings = module.names.attributes(cls).get(node.attr, [])
    if is_buffer(module, node):
        return not bindings
    return bool(bindings) and all(
        is_allocation(b.value) and getattr(module.function(b.node), "name", "") == "__init__"
        for b in bindings
    )


def handed_out(
    module: ModuleFacts, function: FunctionNode, definition: Definition
) -> ast.Call | None:
    """The call by which a name got a memoized buffer: ``POOL.setdefault(n, torch.empty(n))``."""
    value = definition.value
    if definition.index is not None or not isinstance(value, ast.Call):
        return None
    if _memoizes(module, function, value):
        return value
    maker = Graph(module, function).callee(value)
    return value if maker is not None and _hands_out(module, maker) else None


def _hands_out(module: ModuleFacts, maker: FunctionNode) -> bool:
    """Whether a function returns a tensor that it made in an earlier call."""
    returned = list(results(maker))
    if not returned:
        return False
    if any(module.is_name(_called(d), *_MEMOIZERS) for d in maker.decorator_list):
        return all(is_allocation(_made(module, maker, value, at)) for value, at in returned)
    return all(_memoizes(module, maker, value) for value, _ in returned)


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


def _made(
    module: ModuleFacts, function: FunctionNode, value: ast.expr, at: ast.stmt
) -> ast.expr | None:
    """What a name was made by; another expression is that itself."""
    if not isinstance(value, ast.Name):
        return value
    definition = module.flow(function).only_definition(value.id, at)
    return definition.value if definition is not None else None


def _memoizes(module: ModuleFacts, function: FunctionNode, value: ast.expr) -> bool:
    """``POOL.setdefault(n, torch.empty(n))``; ``POOL[n]``, where the function fills ``POOL``."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr != "setdefault" or len(value.args) != 2:
            return False
        return is_allocation(value.args[1]) and _outlives(module, function, value.func.value)
    if not isinstance(value, ast.Subscript) or not _outlives(module, function, value.value):
        return False
    filled = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Subscript) and ast.dump(target.value) == ast.dump(value.value)
    ]
    return bool(filled) and all(is_allocation(each) for each in filled)


def _outlives(module: ModuleFacts, function: FunctionNode, node: ast.expr) -> bool:
    """Whether a container is one of the module's or of an object's."""
    if isinstance(node, ast.Attribute):
        return True
    return isinstance(node, ast.Name) and not module.flow(function).is_local(node.id)
