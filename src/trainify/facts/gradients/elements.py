"""What one of several values carries that an expression gives."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from ..carried import Bound, Carried
from ..differentiation import UNKNOWN, WITH_INDICES
from .inlined import inlined, local_function, own_method
from .networks import network_of

if TYPE_CHECKING:
    from . import Gradients


def of_element(
    gradients: Gradients,
    node: ast.expr,
    index: int,
    at: ast.stmt,
    scope: Bound,
) -> Carried:
    """What one of the values carries that an expression gives."""
    if isinstance(node, ast.Call):
        function = None
        if isinstance(node.func, ast.Attribute):
            function = own_method(gradients, node.func)
            name = node.func.attr
            if name in WITH_INDICES and function is None:
                of_torch = node.args and _is_torch(gradients, node.func.value)
                operand = node.args[0] if of_torch else node.func.value
                return gradients.value(operand, at, scope) if index == 0 else UNKNOWN
        if function is None and isinstance(node.func, ast.Name):
            function = local_function(
                gradients, [t.name for t in gradients.module.resolve(node.func)]
            )
        if function is not None:
            return inlined(gradients, function, node, at, scope, index)
        network = network_of(gradients, node.func, at, scope)
        value = gradients.value(node, at, scope)
        if network is None and not _gives_like_parts(node):
            return replace(value, sure=False, known=False)
        return value
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return gradients.value(node, at, scope)
    return replace(gradients.value(node, at, scope), sure=False)


def _gives_like_parts(node: ast.Call) -> bool:
    name = getattr(node.func, "attr", "")
    return name in ("split", "chunk", "unbind", "tensor_split")


def _is_torch(gradients: Gradients, node: ast.expr) -> bool:
    return gradients.module.is_name(node, "torch", "torch.nn.functional")
