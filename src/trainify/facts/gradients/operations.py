"""What operations give: torch's functions, those of Python, methods of tensors."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ..called import method_of
from ..carried import Bound, Carried, blurred, together
from ..differentiation import (
    MAKES_TENSOR,
    TENSOR,
    UNKNOWN,
    is_loss,
    of_builtin,
    of_method,
    of_torch,
)
from ..names import passed
from ..trainable import local_class
from ..walk import walk
from .inlined import opaque
from .losses import of_loss

if TYPE_CHECKING:
    from . import Gradients


def torch_call(
    gradients: Gradients, name: str, node: ast.Call, at: ast.stmt, scope: Bound
) -> Carried:
    """What a function of torch gives, by its qualified ``name``."""
    values = [gradients.value(a, at, scope) for a in passed(node)]
    if any(k.arg == "requires_grad" for k in node.keywords):
        if _is_own_leaf(gradients, node):
            return TENSOR
        if name not in MAKES_TENSOR:
            return UNKNOWN  # a leaf, with a gradient of its own
    if values and is_loss(name):
        return of_loss(gradients, node, values, at)
    found = of_torch(name, node, values)
    return _of_leaf(gradients, node, found, together(values)) if name in MAKES_TENSOR else found


def _of_leaf(gradients: Gradients, node: ast.Call, leaf: Carried, made: Carried) -> Carried:
    """A leaf made of what a gradient was cut from, ``tensor(losses, requires_grad=True)``.

    Where it goes on at once, nobody can ask for a gradient of its own.
    """
    if leaf.known or leaf.weights or not any(cut.sure for cut in made.cuts):
        return leaf
    if not isinstance(gradients.module.parent(node), ast.Attribute):
        return leaf
    return replace(leaf, known=True, cuts=made.cuts)


_LOSS_START = re.compile(r"(^|_)(loss|losses|objective)(_|$)|^total$")


def _is_own_leaf(gradients: Gradients, node: ast.Call) -> bool:
    """``torch.zeros(1, requires_grad=True) + x``: a leaf that nobody can ask for its gradient.

    One that has a name is none, unless that is the name of the loss that it starts.
    """
    if any(isinstance(n, (ast.Name, ast.Call)) for a in node.args for n in walk(a)):
        return False
    parent = gradients.module.parent(node)
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        name = parent.targets[0].id
        handed = rf"[\[(,]\s*{name}\s*[\]),]|\b{name}\.grad\b"  # to an optimizer
        return bool(_LOSS_START.search(name)) and not re.search(handed, gradients.module.usual)
    return isinstance(parent, ast.BinOp)


def builtin_call(
    gradients: Gradients, name: str, node: ast.Call, at: ast.stmt, scope: Bound
) -> Carried:
    """What a function of Python, or one that nobody knows, gives."""
    values = [gradients.value(a, at, scope) for a in passed(node)]
    found = of_builtin(name, node, values)
    if found is not None or not values:
        return found or blurred(values)
    cls = local_class(gradients.module, node.func)
    if cls is not None and method_of(cls, "forward") is None:
        return together(values)  # a record of outputs
    if name[:1].isupper() and name.endswith(("Output", "Outputs")):
        return together(values)
    return blurred(values)


def method_call(
    gradients: Gradients,
    function: ast.Attribute,
    node: ast.Call,
    at: ast.stmt,
    scope: Bound,
) -> Carried:
    """What a method gives that may be a tensor's."""
    owner = gradients.value(function.value, at, scope)
    found = of_method(
        function.attr, node, owner, lambda: [gradients.value(a, at, scope) for a in passed(node)]
    )
    if found is not None and function.attr == "requires_grad_" and owner.nothing:
        return _of_leaf(gradients, node, found, owner)
    return found if found is not None else opaque(gradients, node, at, scope)
