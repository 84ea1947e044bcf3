"""Whether training leads through an operation of a function that is no part of a network.

A loss written as a plain function, a step written out in a script, a layer's function in a file of
its own: what such code computes is trained only where a loss comes from it, and where it comes from
something with a gradient.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .activations import carries, is_called_like_an_activation
from .backpropagated import called_by_losses
from .graph import Graph, Step, results
from .guards import gradient_unwanted, runs_model
from .learning import backward_values
from .memo import once
from .walk import statements
from .writes import in_network

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts


def trains(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether a gradient is sent back through an operation, in a step or in a plain function.

    Methods are a network's or are not trained through; see :func:`~.writes.in_network`.
    """
    function = module.function(node)
    owner = function or module.tree
    losses = [(value, module.statement(call)) for value, call in backward_values(module, owner)]
    if losses:
        return _leads_through(module, owner, losses, node) and _runs_model(module, owner, node)
    if function is None or module.method_class(function) is not None:
        return False
    if not _leads_through(module, owner, list(results(function)), node):
        return False
    if not any(_may_have_gradient(module, function, s) for s in _origins(module, owner, node)):
        return False
    return called_by_losses(module, function) or _called_in_network(module, function)


def reaches_result(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether a function hands on what an operation gives with its graph: not behind a detach.

    What it returns counts, and what it keeps in attributes; a function that does neither may hand
    on anything.
    """
    function = module.function(node)
    if function is None or not isinstance(node, ast.Call):
        return True  # operators are no steps of a graph
    values = list(results(function))
    values += [
        (each.value, each)
        for each in statements(function)
        if isinstance(each, ast.Assign) and any(isinstance(t, ast.Attribute) for t in each.targets)
    ]
    return not values or _leads_through(module, function, values, node)


def _leads_through(
    module: ModuleFacts,
    owner: FunctionNode | ast.Module,
    values: list[tuple[ast.expr, ast.stmt]],
    node: ast.expr,
) -> bool:
    """Whether values are computed from what an operation gives, with its graph."""
    steps = Graph(module, owner).back_from(values)
    return any(step.node is node and step.cut is None for step in steps)


def _origins(module: ModuleFacts, owner: FunctionNode | ast.Module, node: ast.expr) -> list[Step]:
    """What an operation is computed from, with its graph."""
    steps = Graph(module, owner).back_from([(node, module.statement(node))])
    return [step for step in steps if step.cut is None]


def _runs_model(module: ModuleFacts, owner: FunctionNode | ast.Module, node: ast.expr) -> bool:
    """Whether a value is computed from what a model gives."""
    return any(
        isinstance(step.node, ast.Call) and runs_model(step.node, None)
        for step in _origins(module, owner, node)
    )


def _may_have_gradient(module: ModuleFacts, function: FunctionNode, step: Step) -> bool:
    """Whether a value is a model's, or what a function is given as an activation."""
    if isinstance(step.node, ast.Call):
        return runs_model(step.node, None)
    if not isinstance(step.node, ast.Name):
        return False
    name = step.node.id
    return is_called_like_an_activation(name) or _is_given_activation(module, function, name)


@once
def _is_given_activation(module: ModuleFacts, function: FunctionNode, parameter: str) -> bool:
    """Whether a caller hands over what a model gives, or a network what a layer of its own does."""
    for other, call in module.project.calls_of(module, function):
        argument = module.project.argument(module, function, call, parameter)
        caller = other.function(call) or other.tree
        if argument is None:
            continue
        if _runs_model(other, caller, argument):
            return True
        if carries(other, argument) and in_network(other, other.function(call)):
            return True
    return False


def _called_in_network(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a network of another file calls a function where a gradient is wanted."""
    return any(
        other is not module
        and not gradient_unwanted(other, call)
        and in_network(other, other.function(call))
        for other, call in module.project.calls_of(module, function)
    )
