"""What a call gives: of a module, of a function that can be read, of an operation."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ..called import method_of
from ..carried import Bound, Carried, together
from ..differentiation import of_math, of_numpy
from ..layers import imported_function
from ..names import last_name, passed
from ..trainable import local_class
from ..walk import walk
from .inlined import from_elsewhere, inlined, local_function, opaque, own_method
from .losses import of_loss
from .made import maker_of
from .networks import gives_tensors, network_of
from .operations import builtin_call, method_call, torch_call

if TYPE_CHECKING:
    from . import Gradients

_LOSS = re.compile(r"torch\.nn\.(functional\.\w+|[A-Z]\w*Loss$|modules\.loss\.\w+)")
_PLAIN_MODULE = re.compile(r"torch\.nn\.(modules\.\w+\.)?(?!\w*Loss$)[A-Z]\w*$")


def of_call(gradients: Gradients, node: ast.Call, at: ast.stmt, scope: Bound) -> Carried:
    """What a call gives."""
    network = network_of(gradients, node.func, at, scope)
    if network is not None:
        inputs = [gradients.value(a, at, scope) for a in passed(node)]
        weights = Carried(frozenset({network.key}), sure=gives_tensors(gradients, network))
        return together([weights, *inputs])
    if isinstance(node.func, ast.Attribute):
        method = own_method(gradients, node.func)
        if method is not None:
            return inlined(gradients, method, node, at, scope, None)
    if isinstance(node.func, ast.Name):
        own = gradients.module.names.self_class(node.func)
        forward = method_of(own, "forward") if own is not None else None
        if forward is not None:
            return inlined(gradients, forward, node, at, scope, None)
    maker = maker_of(gradients, node.func, at)
    if maker is not None:
        called = _of_module(gradients, maker, node, at, scope)
        if called is not None:
            return called
    if isinstance(node.func, (ast.Name, ast.Attribute)):
        names = {t.name for t in gradients.module.resolve(node.func)}
        torch = next((n for n in names if n.startswith("torch.")), None)
        if torch is not None:
            return torch_call(gradients, torch, node, at, scope)
        numpy = next((n for n in names if n.startswith("numpy.")), None)
        if numpy is not None:
            values = [gradients.value(a, at, scope) for a in passed(node)]
            return of_numpy(numpy.rpartition(".")[2], node, values)
        math = next((n for n in names if n.startswith("math.")), None)
        if math is not None:
            values = [gradients.value(a, at, scope) for a in passed(node)]
            return of_math(math.rpartition(".")[2], node, values)
        function = local_function(gradients, names)
        if function is not None:
            return inlined(gradients, function, node, at, scope, None)
        if gradients.shared.foreign and last_name(node.func) in gradients.module.cutting_imports:
            imported = imported_function(gradients.module, node.func)
            if imported is not None:
                return from_elsewhere(gradients, *imported, node, at, scope)
    if isinstance(node.func, ast.Name):
        return builtin_call(gradients, node.func.id, node, at, scope)
    if isinstance(node.func, ast.Attribute):
        return method_call(gradients, node.func, node, at, scope)
    return opaque(gradients, node, at, scope)


def _of_module(
    gradients: Gradients,
    maker: ast.Call,
    node: ast.Call,
    at: ast.stmt,
    scope: Bound,
) -> Carried | None:
    """What a module without weights gives: an activation, a loss, one of this file."""
    cls = local_class(gradients.module, maker.func)
    if cls is not None:
        forward = method_of(cls, "forward")
        return inlined(gradients, forward, node, at, scope, None) if forward is not None else None
    names = [t.name for t in gradients.module.resolve(maker.func)]
    values = [gradients.value(a, at, scope) for a in passed(node)]
    if values and any(_LOSS.match(name) for name in names):
        return of_loss(gradients, node, values, at)
    if values and any(_PLAIN_MODULE.match(name) for name in names):
        if not any(isinstance(n, ast.Call) for a in passed(maker) for n in walk(a)):
            return replace(values[0], plain=False)
    return None
