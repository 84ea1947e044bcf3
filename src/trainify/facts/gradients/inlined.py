"""What functions give whose code is there, of this file and of others."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ..called import method_of, positional
from ..carried import Bound, Carried, Cut, blurred, either
from ..differentiation import NUMBER, UNKNOWN
from ..names import parameters, passed
from ..walk import walk

if TYPE_CHECKING:
    from ..module import FunctionNode, ModuleFacts
    from . import Gradients


def inlined(
    gradients: Gradients,
    function: FunctionNode,
    node: ast.Call,
    at: ast.stmt,
    scope: Bound,
    index: int | None,
    home: ModuleFacts | None = None,
) -> Carried:
    """What a function of this file, or of the file ``home``, returns for these arguments."""
    module = home or gradients.module
    arguments = function.args
    named = positional(module, function)
    if (
        not gradients.may_enter(function)
        or arguments.vararg is not None
        or arguments.kwarg is not None
        or isinstance(function, ast.AsyncFunctionDef)
        or any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in walk(function))
        or any(isinstance(a, ast.Starred) for a in node.args)
        or any(k.arg is None for k in node.keywords)
    ):
        return opaque(gradients, node, at, scope)
    given: dict[str, Carried] = {}
    for name, argument in zip(named, node.args, strict=False):
        given[name] = gradients.value(argument, at, scope)
    for keyword in node.keywords:
        given[str(keyword.arg)] = gradients.value(keyword.value, at, scope)
    for parameter in parameters(arguments):
        given.setdefault(parameter.arg, NUMBER)  # its default
    inner = gradients.inner(module, function, given)
    found = []
    for statement in inner.own_statements:
        if not isinstance(statement, ast.Return) or statement.value is None:
            continue
        returned = statement.value
        if index is not None and isinstance(returned, ast.Tuple):
            if index < len(returned.elts):
                returned = returned.elts[index]
        elif index is not None:
            return blurred([inner.value(returned, statement)])
        found.append(inner.value(returned, statement))
    return either(found) if found else UNKNOWN


def from_elsewhere(
    gradients: Gradients,
    home: ModuleFacts,
    function: FunctionNode,
    node: ast.Call,
    at: ast.stmt,
    scope: Bound,
) -> Carried:
    """What a function of another file returns; where it cuts, the call is the cut."""
    value = inlined(gradients, function, node, at, scope, None, home)
    given = frozenset[Cut]().union(*(gradients.value(a, at, scope).cuts for a in passed(node)))
    inner = value.cuts - given
    if not inner:
        return value
    weights = frozenset[str]().union(*(each.weights for each in inner))
    kind: Literal["number", "tensor"] = "number" if value.plain else "tensor"
    whole = Cut(node, kind, weights, any(each.sure for each in inner))
    return replace(value, cuts=(value.cuts & given) | {whole})


def opaque(gradients: Gradients, node: ast.Call, at: ast.stmt, scope: Bound) -> Carried:
    """A call of something unknown: the gradient of its arguments may come out."""
    values = [gradients.value(a, at, scope) for a in passed(node)]
    if isinstance(node.func, ast.Attribute):
        values.append(gradients.value(node.func.value, at, scope))
    return blurred(values)


def own_method(gradients: Gradients, node: ast.Attribute) -> FunctionNode | None:
    """The method of this file that ``self.name(...)`` runs."""
    if isinstance(node.value, ast.Name):
        cls = gradients.module.names.self_class(node.value)
        if cls is not None:
            return method_of(cls, node.attr)
    return None


def local_function(gradients: Gradients, names: Iterable[str]) -> FunctionNode | None:
    """The first function at the top of this file with one of these qualified names."""
    module = gradients.module
    found = [
        function
        for owner, _, name in (qualified.rpartition(".") for qualified in names)
        if owner == module.module_name
        for function in module.functions_named(name)
        if isinstance(function, ast.FunctionDef) and module.parent(function) is module.tree
    ]
    return min(found, key=lambda function: function.lineno, default=None)
