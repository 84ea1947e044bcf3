"""Modules with weights: which one an expression stands for, and whether it gives tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..called import method_of
from ..carried import Bound, Carried, Network
from ..differentiation import NUMBER, UNKNOWN
from ..trainable import local_class, weights_made
from ..walk import walk
from .made import assigned

if TYPE_CHECKING:
    from . import Gradients

_MODEL_NAME = re.compile(r"(^|_)(model|net|network|policy|encoder|decoder|classifier)$")


def network_of(
    gradients: Gradients,
    node: ast.expr,
    at: ast.stmt,
    scope: Bound | None = None,
) -> Network | None:
    """The module with weights that an expression stands for."""
    scope = scope or {}
    if isinstance(node, ast.Subscript):
        return network_of(gradients, node.value, at, scope)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        cls = gradients.module.names.self_class(node.value)
        if cls is None or not gradients.is_trainable(cls):
            return _trained(gradients, node.attr) if cls is not None else None
        return _made(gradients, f"{cls.name}.{node.attr}", assigned(gradients, cls, node.attr))
    if not isinstance(node, ast.Name):
        return None
    if node.id in scope:
        bound = scope[node.id]
        return bound if isinstance(bound, Network) else None
    if not gradients.is_local(node.id):
        return _global(gradients, node) or _trained(gradients, node.id)
    definition = gradients.flow.only_definition(node.id, at)
    if definition is None:
        return None
    statement = definition.statement
    if statement is None:
        return _trained(gradients, node.id)
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        inner = bound_names(gradients, statement.target, statement.iter, statement, {}).get(node.id)
        return inner if isinstance(inner, Network) else None
    if definition.value is None or definition.index is not None:
        return None
    if isinstance(definition.value, ast.Call):
        return _made(gradients, node.id, [definition.value]) or _trained(gradients, node.id)
    return network_of(gradients, definition.value, statement)


def _global(gradients: Gradients, node: ast.Name) -> Network | None:
    """A model made once at the top of the file."""
    bindings = gradients.module.names.bindings(gradients.module.tree).get(node.id, [])
    values = [b.value for b in bindings if b.value is not None]
    return _made(gradients, node.id, values) if len(values) == len(bindings) else None


def _trained(gradients: Gradients, name: str) -> Network | None:
    """``model`` in a function that calls ``backward`` on what it computes with it."""
    return Network(name, ()) if gradients.trains and _MODEL_NAME.search(name) else None


def _made(gradients: Gradients, key: str, values: Sequence[ast.expr]) -> Network | None:
    calls: list[ast.Call] = []
    for value in values:
        made = list(weights_made(gradients.module, value))
        if not made:
            return None
        calls += made
    return Network(key, tuple(calls)) if calls else None


def bound_names(
    gradients: Gradients,
    target: ast.expr,
    iterated: ast.expr,
    at: ast.stmt,
    scope: Bound,
) -> dict[str, Carried | Network]:
    """What the names of a loop's target stand for."""
    names = {n.id for n in walk(target) if isinstance(n, ast.Name)}
    if isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Name):
        kind = iterated.func.id
        if kind == "range":
            return dict.fromkeys(names, NUMBER)
        if kind in ("enumerate", "zip") and isinstance(target, ast.Tuple):
            found: dict[str, Carried | Network] = dict.fromkeys(names, UNKNOWN)
            parts = target.elts if kind == "zip" else target.elts[1:]
            if kind == "enumerate" and isinstance(target.elts[0], ast.Name):
                found[target.elts[0].id] = NUMBER
            for part, source in zip(parts, iterated.args, strict=False):
                found.update(bound_names(gradients, part, source, at, scope))
            return found
        if kind in ("reversed", "list", "tuple", "iter") and iterated.args:
            return bound_names(gradients, target, iterated.args[0], at, scope)
    if isinstance(target, ast.Name):
        network = network_of(gradients, iterated, at, scope)
        return {target.id: network or gradients.value(iterated, at, scope)}
    value = replace(gradients.value(iterated, at, scope), sure=False)
    return dict.fromkeys(names, value)


def gives_tensors(gradients: Gradients, network: Network) -> bool:
    """Whether all that a module returns carries the gradient of its weights."""
    return all(_gives_tensor(gradients, call) for call in network.calls)


def _gives_tensor(gradients: Gradients, call: ast.Call) -> bool:
    cls = local_class(gradients.module, call.func)
    if cls is None:
        return True
    known = gradients.shared.gives_tensor
    if cls not in known:
        known[cls] = False  # until it is found out, if it uses itself
        known[cls] = _forward_gives_tensor(gradients, cls)
    return known[cls]


def _forward_gives_tensor(gradients: Gradients, cls: ast.ClassDef) -> bool:
    forward = method_of(cls, "forward")
    if forward is None or not gradients.may_enter(forward):
        return False
    inner = gradients.inner(gradients.module, forward)
    returns = [n for n in inner.own_statements if isinstance(n, ast.Return)]
    if any(isinstance(n.value, ast.Tuple) for n in returns):
        return False
    returned = inner.returned()
    return bool(returned) and all(r.sure for r in returned)
