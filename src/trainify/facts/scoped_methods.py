"""Methods under a scope of their own that a forward computes its result by."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .grad_mode import Scope
from .graph import Graph, results, scope_of_results
from .guards import is_forward
from .layers import is_module_class
from .names import parameters
from .trainable import returns_numbers, trained_submodules

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts


def scoped_methods(
    module: ModuleFacts, function: FunctionNode, scope: Scope
) -> list[tuple[FunctionNode, Scope]]:
    """The methods whose scopes would keep weights from a forward's result without ``scope``."""
    found: dict[FunctionNode, Scope] = {}
    seen = {function}
    pending: list[tuple[FunctionNode, Scope | None]] = [(function, scope)]
    while pending:
        current, around = pending.pop()
        graph = Graph(module, current)
        for step in graph.back_from(results(current)):
            if step.cut is not None and not _is_of_a_method(step.cut.scope, around):
                continue
            callee = graph.callee(step.node) if isinstance(step.node, ast.Call) else None
            if callee is None or callee in seen or returns_numbers(callee) or is_forward(callee):
                continue
            seen.add(callee)
            own = scope_of_results(module, callee)
            cls = module.method_class(callee)
            if own is not None and cls is not None and is_module_class(module, cls):
                if _passes_on(module, callee, cls, own):
                    found[callee] = own
            pending.append((callee, own))
    return list(found.items())


def _is_of_a_method(scope: Scope | None, around: Scope | None) -> bool:
    """Whether a way is cut by the scope of all that a function returns, or of one it calls."""
    if scope is None:
        return False
    return scope == around or isinstance(scope.owner, (ast.FunctionDef, ast.AsyncFunctionDef))


def _passes_on(module: ModuleFacts, method: FunctionNode, cls: ast.ClassDef, scope: Scope) -> bool:
    """Whether a method's result comes from something to be trained, or from its arguments."""
    trained = trained_submodules(module, cls)
    given = {argument.arg for argument in parameters(method.args)}
    graph = Graph(module, method)
    return any(
        (step.cut is None or _is_of_a_method(step.cut.scope, scope))
        and (
            graph.attribute(step.node, step.at) in trained
            or (isinstance(step.node, ast.Name) and step.node.id in given)
        )
        for step in graph.back_from(results(method))
    )
