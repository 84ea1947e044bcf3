"""Functions under scopes of their own that a forward leaves all of its work to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.grad_mode import Scope, scope_inside
from ...facts.graph import Graph, results, scope_of_results, under_scopes
from ...facts.guards import is_inference_entry
from ...facts.learning import may_learn
from ...facts.names import self_name
from ...facts.trainable import returns_numbers, trained_submodules
from .cover import Cover
from .members import own_attributes
from .trained import KEEPS

if TYPE_CHECKING:
    from ...facts.module import FunctionNode


def may_delegate(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> bool:
    """Whether there is a function under a scope of its own that a forward may leave its work to."""
    return any(
        module.method_class(each) is cls or module.function(each) is function
        for each in under_scopes(module)
    )


def delegates(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> Iterator[Cover]:
    """The functions under scopes of their own that a forward leaves all of its work to.

    Methods of the same object, or functions inside of the forward.
    """
    if KEEPS.search(cls.name):
        return
    graph, me = Graph(module, function), self_name(function)
    trained = trained_submodules(module, cls)
    found: dict[FunctionNode, Scope] = {}
    for step in graph.back_from(results(function)):
        if not isinstance(step.node, ast.Call) or not may_learn(module, step.node):
            if step.cut is None and graph.attribute(step.node, step.at) in trained:
                return
            continue
        callee = graph.callee(step.node)
        scope = scope_of_results(module, callee) if callee is not None else None
        if callee is None or scope is None:
            if step.cut is None or scope_inside(module, step.at, function) is not None:
                return
            continue  # before what runs under a scope: TRN206
        inside = module.method_class(callee) is cls or module.function(callee) is function
        if not inside or is_inference_entry(module, callee) or returns_numbers(callee):
            return
        found[callee] = scope
    for callee, scope in found.items():
        name = me if module.method_class(callee) is None else self_name(callee)
        if trained & own_attributes(module, callee, name):
            yield Cover(callee, scope)
