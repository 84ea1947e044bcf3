"""Which operations on the way to a loss keep an inference tensor for the backward pass."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.activations import is_parameter
from ...facts.grad_mode import Scope
from ...facts.graph import Graph, Step, results
from ...facts.guards import is_forward
from ...facts.layers import is_module_class
from ...facts.learning import LOSS_CALL, backward_values
from ...facts.names import last_name, passed
from ...facts.trainable import makes_weights, submodules
from .made import is_network, looked_through, made_under, network_class

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

_SAVING = frozenset(
    "gather index_select take_along_dim masked_fill masked_select where embedding linear conv1d "
    "conv2d conv3d mm bmm matmul mul div minimum maximum min max pow".split()
)
"""Operations that keep each tensor argument where another one learns."""
_PRODUCTS = (ast.Mult, ast.Div, ast.Pow, ast.MatMult)
_INPUTS = frozenset("input inputs input_ids inputs_embeds decoder_input_ids x ids tokens".split())
_MAX_DEPTH = 3

Made = Callable[[ast.expr, ast.stmt], Scope | bool | None]
"""What is known of an operand: the scope that it was made in, or that it is a certain parameter."""


def trained_on(
    module: ModuleFacts, function: FunctionNode | ast.Module
) -> Iterator[tuple[Scope, str]]:
    """The scopes whose tensors are kept on the way to what a function differentiates."""
    values = [(value, module.statement(call)) for value, call in backward_values(module, function)]
    if not values:
        return

    def made(value: ast.expr, at: ast.stmt) -> Scope | None:
        return made_under(module, function, value, at)

    for operation, scope in _keepers(module, function, values, made, 0):
        assert isinstance(scope, Scope)
        yield scope, f"`{_named(module, operation)}` is given what is computed under"


def given(module: ModuleFacts, function: FunctionNode) -> Iterator[tuple[Scope, str]]:
    """The scopes of what the callers of a function pass, where it trains on that."""
    values = [(value, module.statement(call)) for value, call in backward_values(module, function)]
    calls = module.calls_named(function.name) if values else ()
    for call in calls:
        caller = module.function(call) or module.tree
        if caller is function or Graph(module, caller).callee(call) is not function:
            continue
        for name in module.flow(function).parameters:
            argument = module.project.argument(module, function, call, name)
            if argument is None:
                continue
            scope = made_under(module, caller, argument, module.statement(call))
            if scope is not None and keeps(module, function, name, values, 0):
                yield (
                    scope,
                    f"`{module.source(argument)}`, which `{function.name}` trains on, "
                    "is computed under",
                )


def keeps(
    module: ModuleFacts,
    function: FunctionNode,
    parameter: str,
    values: list[tuple[ast.expr, ast.stmt]],
    depth: int,
) -> bool:
    """Whether what a function is given for a parameter is kept on the way to some values."""

    def made(value: ast.expr, at: ast.stmt) -> bool:
        return _is_given(module, function, parameter, value, at)

    return any(True for _ in _keepers(module, function, values, made, depth))


def _is_given(
    module: ModuleFacts, function: FunctionNode, parameter: str, value: ast.expr, at: ast.stmt
) -> bool:
    """Whether a value is what a function is given for a parameter, or a part of it."""
    root, _ = looked_through(value, None)
    if not isinstance(root, ast.Name):
        return False
    definitions = module.flow(function).reaching(root.id, at)
    if root.id == parameter:
        return bool(definitions) and all(d.is_parameter for d in definitions)
    return bool(definitions) and all(  # ids = batch["ids"]
        d.value is not None
        and d.statement is not None
        and _is_given(module, function, parameter, d.value, d.statement)
        for d in definitions
    )


def _keepers(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    values: list[tuple[ast.expr, ast.stmt]],
    made: Made,
    depth: int,
) -> Iterator[tuple[ast.expr, Scope | bool]]:
    """The operations on the way to some values that keep what was made so, each with that."""
    graph = Graph(module, function)
    steps = graph.back_from(values)
    operations: dict[ast.expr, None] = {}
    for step in steps:
        if step.cut is None:
            if isinstance(step.node, ast.Call):
                operations[step.node] = None
            if step.through is not None:
                operations[step.through] = None
    operations |= {e.through: None for e in graph.entries if e.through is not None}
    for operation in operations:
        at = module.statement(operation)
        if isinstance(operation, ast.Call):
            kept = _of_call(module, function, operation, at, made, depth)
        else:
            kept = _of_operator(module, function, operation, at, made)
        if kept:
            yield operation, kept


def _of_operator(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    node: ast.expr,
    at: ast.stmt,
    made: Made,
) -> Scope | bool | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, _PRODUCTS):
        return _beside_learning(module, function, [node.left, node.right], at, made)
    if isinstance(node, ast.Subscript):
        index = node.slice
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        found = next((kept for part in parts if (kept := made(part, at))), None)
        return found if found and _learns(module, function, node.value, at) else None
    return None


def _of_call(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    call: ast.Call,
    at: ast.stmt,
    made: Made,
    depth: int,
) -> Scope | bool | None:
    callee = Graph(module, function).callee(call)
    if callee is not None:
        return _of_function(module, callee, call, at, made, depth)
    name = last_name(call.func)
    of_torch = any(t.name.startswith("torch.") for t in module.resolve(call.func))
    if LOSS_CALL.search(name) and "l1" not in name.lower().replace("smooth_l1", ""):
        if of_torch or "L1Loss" not in module.usual:
            return _beside_learning(module, function, passed(call), at, made)
        return None
    if name in _SAVING:
        operands = passed(call)
        if isinstance(call.func, ast.Attribute) and not of_torch:
            operands = [call.func.value, *operands]
        return _beside_learning(module, function, operands, at, made)
    if not is_network(module, function, call):
        return None
    inputs = [*call.args[:1], *(k.value for k in call.keywords if k.arg in _INPUTS)]
    found = next((kept for value in inputs if (kept := made(value, at))), None)
    return found if found and _network_keeps(module, function, call, depth) else None


def _of_function(
    module: ModuleFacts,
    callee: FunctionNode,
    call: ast.Call,
    at: ast.stmt,
    made: Made,
    depth: int,
) -> Scope | bool | None:
    """What a function of this file keeps of its arguments for what it returns."""
    if depth >= _MAX_DEPTH:
        return None
    for name in module.flow(callee).parameters:
        argument = module.project.argument(module, callee, call, name)
        kept = made(argument, at) if argument is not None else None
        if kept and keeps(module, callee, name, list(results(callee)), depth + 1):
            return kept
    return None


def _beside_learning(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    operands: list[ast.expr],
    at: ast.stmt,
    made: Made,
) -> Scope | bool | None:
    """What was made so among some operands, where another one has a gradient."""
    for operand in operands:
        kept = made(operand, at)
        if kept and any(
            _learns(module, function, other, at) for other in operands if other is not operand
        ):
            return kept
    return None


def _learns(
    module: ModuleFacts,
    function: FunctionNode | ast.Module,
    value: ast.expr,
    at: ast.stmt,
    depth: int = 0,
) -> bool:
    """Whether a value comes from a network, or from a parameter, with its gradient."""

    def is_source(step: Step) -> bool:
        if not isinstance(step.node, ast.Call):
            return is_parameter(module, step.node)
        callee = Graph(module, function).callee(step.node)
        if callee is None:
            return is_network(module, function, step.node)
        return depth < _MAX_DEPTH and any(
            _learns(module, callee, each, where, depth + 1) for each, where in results(callee)
        )

    steps = Graph(module, function).back_from([(value, at)])
    return any(step.cut is None and is_source(step) for step in steps)


def _network_keeps(
    module: ModuleFacts, function: FunctionNode | ast.Module, call: ast.Call, depth: int
) -> bool:
    """Whether a network keeps its input: the first thing that it does with it is a linear map."""
    if depth >= _MAX_DEPTH:
        return False
    called = call.func
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        cls = module.names.self_class(called.value)
        made = submodules(module, cls).get(called.attr, []) if cls is not None else []
        if made and all(_begins_with_weights(module, value) for value in made):
            return True
    own = network_class(module, function, call)
    classes = [own] if own is not None else [
        c for c in module.classes if is_module_class(module, c)
    ]  # fmt: skip
    forwards = [f for f in module.functions if is_forward(f) and module.method_class(f) in classes]
    return all(_forward_keeps(module, forward, depth) for forward in forwards)


def _forward_keeps(module: ModuleFacts, forward: FunctionNode, depth: int) -> bool:
    parameters = module.flow(forward).parameters[1:2]
    return bool(parameters) and keeps(
        module, forward, parameters[0], list(results(forward)), depth + 1
    )


def _begins_with_weights(module: ModuleFacts, value: ast.expr) -> bool:
    """``nn.Linear(2, 2)``, ``nn.Sequential(nn.Linear(2, 2), nn.Tanh())``."""
    if not isinstance(value, ast.Call):
        return False
    if last_name(value.func) == "Sequential":
        return bool(value.args) and _begins_with_weights(module, value.args[0])
    return makes_weights(module, value)


def _named(module: ModuleFacts, operation: ast.expr) -> str:
    """An operation as a message calls it: a call by its function."""
    return module.source(operation.func if isinstance(operation, ast.Call) else operation)
