"""Whether a value may have fewer elements than what it is written into, which repeats it then.

Told by how it is computed: reduced, indexed, given a dimension of one, or a tensor of the module's
own, which knows nothing of the batch.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .views import VIEW_ATTRIBUTES

if TYPE_CHECKING:
    from .module import ModuleFacts

_REDUCE = frozenset(
    "mean sum prod amax amin max min median logsumexp norm std var argmax argmin any all "
    "unsqueeze select".split()
)
_SHAPE = frozenset("view reshape expand repeat new_zeros new_ones".split())


def may_broadcast(module: ModuleFacts, value: ast.expr) -> bool:
    """Whether a value may be repeated where it is written; no where nothing speaks for it."""
    return _is_small(module, value, set())


def _is_small(module: ModuleFacts, node: ast.expr, seen: set[ast.AST]) -> bool:
    if node in seen:
        return False
    seen.add(node)
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.BinOp):
        return _is_small(module, node.left, seen) and _is_small(module, node.right, seen)
    if isinstance(node, ast.IfExp):
        return _is_small(module, node.body, seen) or _is_small(module, node.orelse, seen)
    if isinstance(node, ast.UnaryOp):
        return _is_small(module, node.operand, seen)
    if isinstance(node, ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return any(map(_is_of_few, parts)) or _is_small(module, node.value, seen)
    if isinstance(node, ast.Attribute):
        if node.attr in VIEW_ATTRIBUTES:
            return _is_small(module, node.value, seen)
        return module.names.self_class(node.value) is not None
    if isinstance(node, ast.Name):
        function = module.function(node)
        if function is None:
            return False
        reaching = module.flow(function).reaching(node.id, module.statement(node))
        values = [each.value for each in reaching if each.value is not None]
        return any(_is_small(module, each, seen) for each in values)
    return isinstance(node, ast.Call) and _is_small_result(module, node, seen)


def _is_small_result(module: ModuleFacts, call: ast.Call, seen: set[ast.AST]) -> bool:
    """Of a method of a tensor, or a function of one: as large as that, if it does not shrink it."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else ""
    if name in _REDUCE:
        return True
    if name in _SHAPE and any(isinstance(a, ast.Constant) and a.value == 1 for a in call.args):
        return True
    given = [each for each in call.args if not isinstance(each, (ast.Constant, ast.Starred))]
    if isinstance(function, ast.Attribute) and not module.resolve(function):
        if module.names.self_class(function.value) is None:
            return _is_small(module, function.value, seen)
    return bool(given) and all(_is_small(module, each, seen) for each in given)


def _is_of_few(part: ast.expr) -> bool:
    """``None``, ``0``, ``-1:``, ``:1``: one element of a dimension, or a dimension of one."""
    if isinstance(part, ast.Slice):
        return any(isinstance(_plain(each), ast.Constant) for each in (part.lower, part.upper))
    return isinstance(_plain(part), ast.Constant) and getattr(part, "value", 0) is not Ellipsis


def _plain(node: ast.expr | None) -> ast.expr | None:
    return node.operand if isinstance(node, ast.UnaryOp) else node
