"""Which functions training goes through: a loss that is differentiated comes from their results."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .grad_mode import decorator_scope
from .graph import Graph, results
from .guards import runs_model
from .learning import backward_values, may_learn
from .names import self_name

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_STEPS = ("training_step", "compute_loss")
"""Methods of a trainer that give a loss to a library which calls ``backward``."""

_NO_MODEL = re.compile(
    r"dist|normal|categorical|prior|posterior|buffer|memory|replay|loader|dataset|scheduler|"
    r"sampler|random|rng|torch",
    re.IGNORECASE,
)
"""What else has a ``sample``: a distribution, a replay buffer."""


def differentiates(data: bytes) -> bool:
    """Whether a file may hold a loss that ``backward`` is called on."""
    return b"backward(" in data or any(b"def " + step.encode() in data for step in _STEPS)


def trained_through(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a loss of the project may send gradients back through a function's results."""
    return _hands_on(module, function) and called_by_losses(module, function)


def called_by_losses(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a loss of the project may come from a function's results."""
    return function.name in _names_around(module)


def _names_around(module: ModuleFacts) -> frozenset[str]:
    """The names of the functions that losses in this file, and in those around it, come from."""
    own = backpropagated(module) if differentiates(module.usual.encode(errors="replace")) else ()
    others = module.project.summaries(module.path, backpropagated, differentiates)
    return frozenset().union(own, *others)


def backpropagated(module: ModuleFacts) -> frozenset[str]:
    """The names of the functions that a file's losses are computed by, of any file."""
    pending: list[tuple[FunctionNode | ast.Module, list[tuple[ast.expr, ast.stmt]]]] = []
    for function in (*module.functions, module.tree):
        values = [(v, module.statement(call)) for v, call in backward_values(module, function)]
        if not isinstance(function, ast.Module) and function.name in _STEPS:
            values += results(function)
        if values:
            pending.append((function, values))
    names: set[str] = set()
    while pending:
        owner, values = pending.pop()
        for step in Graph(module, owner).back_from(values):
            name = _called(module, step.node) if step.cut is None else None
            if name is None or name in names:
                continue
            names.add(name)
            same = module.functions_named(name)
            pending += ((f, list(results(f))) for f in same if decorator_scope(module, f) is None)
    return frozenset(names)


def _called(module: ModuleFacts, node: ast.expr) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute):
        return None if _NO_MODEL.search(module.source(node.func.value)) else node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else None


def _hands_on(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether what a model computes reaches a function's result with its graph: no token ids."""
    me = self_name(function)
    return any(
        step.cut is None
        and isinstance(step.node, ast.Call)
        and (runs_model(step.node, me) or may_learn(module, step.node))
        for step in Graph(module, function).back_from(results(function))
    )
