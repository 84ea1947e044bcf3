"""Methods by which a class learns beside a forward under a scope: then that scope is meant.

A policy acts by ``forward`` and learns by ``evaluate``; a network gives targets by the one and
values by the other; an online branch has a stopped one beside it.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.backpropagated import called_by_losses
from ...facts.called import functions_in
from ...facts.grad_mode import decorator_scope, own_nodes, scope_inside
from ...facts.graph import Graph, results
from ...facts.guards import is_forward, is_inference_entry
from ...facts.layers import bases_of
from ...facts.learning import backward_values, may_learn
from ...facts.memo import once
from ...facts.names import last_name, self_name
from ...facts.trainable import trained_submodules
from .members import own_attributes

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

_TRAINS = re.compile(r"training_step|shared_step|train_|_train|loss", re.IGNORECASE)
_MAX_DEPTH = 3


def is_named_for_training(function: FunctionNode) -> bool:
    """``training_step``, ``compute_loss``: a name of what a class learns by."""
    return _TRAINS.search(function.name) is not None


def trains_beside(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> bool:
    """Whether a class learns by methods that run its parts without ``function``, its forward."""
    if _has_training_method(module, cls):
        return True
    _, others = _others(module, cls, function)
    differentiated = {m for home, _, m in others if _is_differentiated(home, m)}
    return bool(differentiated) and any(
        method in differentiated for _, method in _if_all_learn(module, cls, function)
    )


def other_ways(
    module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode
) -> list[FunctionNode]:
    """Methods that run all that ``function`` does with gradients on, whoever may call them."""
    return [
        method
        for home, method in _if_all_learn(module, cls, function)
        if not is_inference_entry(home, method)
    ]


def parts_to_learn(
    module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode
) -> frozenset[str]:
    """The attributes with something to train that a forward runs."""
    return frozenset(_others(module, cls, function)[0])


def _is_differentiated(home: ModuleFacts, method: FunctionNode) -> bool:
    return any(backward_values(home, method)) or called_by_losses(home, method)


def _if_all_learn(
    module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode
) -> list[tuple[ModuleFacts, FunctionNode]]:
    """The methods of a class, its bases and those derived from it in its file, with their files.

    None of them where the forward has parts that they do not run: these learn by it, or never.
    """
    wanted, others = _others(module, cls, function)
    found: list[tuple[ModuleFacts, FunctionNode]] = []
    learned: set[str] = set()
    for home, owner, method in others:
        parts = _learned(home, owner, method) & wanted
        if parts:
            found.append((home, method))
            learned |= parts
    return found if wanted <= learned else []


def _others(
    module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode
) -> tuple[frozenset[str], list[tuple[ModuleFacts, ast.ClassDef, FunctionNode]]]:
    """The parts of a forward that may learn, and those methods that mention one of them.

    No methods where they do not mention all of them.
    """
    family = [(module, cls), *bases_of(module, cls)]
    family += [(module, c) for c in module.classes if cls.name in map(last_name, c.bases)]
    trained = frozenset().union(*(trained_submodules(*each) for each in family))
    wanted = _parts(module, cls, function) & trained
    found: list[tuple[ModuleFacts, ast.ClassDef, FunctionNode]] = []
    mentioned: set[str] = set()
    for home, owner in family if wanted else ():
        for method in functions_in(owner):
            if method is function or method.name in ("forward", "__init__", "__call__"):
                continue
            parts = _parts(home, owner, method) & wanted
            if parts:
                found.append((home, owner, method))
                mentioned |= parts
    return wanted, found if wanted <= mentioned else []


@once
def _parts(
    module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode, depth: int = 0
) -> frozenset[str]:
    """The attributes of its object that a method mentions, or that others do which it calls."""
    found = own_attributes(module, function, self_name(function))
    own = [m for m in functions_in(cls) if m.name in found and m is not function]
    for method in own if depth < _MAX_DEPTH else ():
        found |= _parts(module, cls, method, depth + 1)
    return found


@once
def _learned(
    module: ModuleFacts, cls: ast.ClassDef, method: FunctionNode, depth: int = 0
) -> frozenset[str]:
    """The attributes of its object that a loss on what a method gives, or takes, would reach."""
    if decorator_scope(module, method) is not None or _runs_forward(method):
        return frozenset()
    graph = Graph(module, method)
    values = list(results(method))
    values += [(v, module.statement(call)) for v, call in backward_values(module, method)]
    steps = [step for step in graph.back_from(values) if step.cut is None]
    found = {graph.attribute(step.node, step.at) for step in steps}
    called = [m for m in functions_in(cls) if m.name in found and m is not method]
    for inner in called if depth < _MAX_DEPTH else ():
        found |= _learned(module, cls, inner, depth + 1)
    return frozenset(name for name in found if name is not None)


def _runs_forward(method: FunctionNode) -> bool:
    """Whether a method runs its object as a whole: ``self(x)``, ``self.forward(x)``."""
    me = self_name(method)
    return any(
        isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id == me)
            or (isinstance(node.func, ast.Attribute) and node.func.attr == "forward")
        )
        for node in own_nodes(method)
    )


def _has_training_method(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether a method that is called for training runs parts of its object."""
    beside = False
    for method in functions_in(cls):
        if not is_named_for_training(method) or is_forward(method):
            continue
        if _runs_forward(method):
            return False
        me = self_name(method)
        for node in own_nodes(method):
            if isinstance(node, ast.Call) and _calls_own(node, me) and may_learn(module, node):
                beside = beside or scope_inside(module, node, method) is None
    return beside


def _calls_own(node: ast.Call, me: str | None) -> bool:
    """Whether a call is one of something of ``self``."""
    root: ast.expr = node.func
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    return isinstance(root, ast.Name) and root.id == me
