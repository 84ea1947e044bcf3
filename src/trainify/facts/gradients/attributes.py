"""What attributes carry: shapes, ``.data``, weights of ``self``, those of a module."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..called import method_of
from ..carried import Bound, Carried, blurred
from ..differentiation import NUMBER, UNKNOWN, cut
from ..metadata import TRAITS
from ..names import is_getter
from .inlined import inlined
from .made import assigned
from .networks import network_of

if TYPE_CHECKING:
    from . import Gradients

_SAME = frozenset({"T", "mT", "H", "mH", "real", "imag", "values"})
_PARAMETER = ("torch.nn.Parameter", "torch.nn.parameter.Parameter")


def of_attribute(gradients: Gradients, node: ast.Attribute, at: ast.stmt, scope: Bound) -> Carried:
    """What an attribute carries."""
    if isinstance(node.value, ast.Name):
        cls = gradients.module.names.self_class(node.value)
        if cls is not None:
            return _of_self(gradients, cls, node, at)
    if node.attr in TRAITS or node.attr == "requires_grad":
        return NUMBER
    network = network_of(gradients, node.value, at, scope)
    if network is not None:
        return Carried(frozenset({network.key}), sure=node.attr in ("weight", "bias"))
    inner = gradients.value(node.value, at, scope)
    if node.attr == "data":
        return cut(node, inner, "detach")
    return inner if node.attr in _SAME else blurred([inner])


def _of_self(gradients: Gradients, cls: ast.ClassDef, node: ast.Attribute, at: ast.stmt) -> Carried:
    """What ``self.name`` carries: what the class assigns to it, or a property of its gives."""
    name = node.attr
    method = method_of(cls, name)
    if method is not None and is_getter(method):
        return inlined(gradients, method, ast.Call(node, [], []), at, {}, None)
    values = assigned(gradients, cls, name)
    if values and gradients.is_trainable(cls):
        if all(
            isinstance(value, ast.Call) and gradients.module.is_name(value.func, *_PARAMETER)
            for value in values
        ):
            return Carried(frozenset({f"{cls.name}.{name}"}), sure=True)
    if values and all(isinstance(value, ast.Constant) for value in values):
        return NUMBER
    return UNKNOWN
