"""Classes whose forward only puts that of their base under a scope: the base is what learns.

A rollout worker, a teacher or a server is made of the class that is trained, by a subclass that
adds the scope and nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.backpropagated import called_by_losses
from ...facts.called import functions_in
from ...facts.grad_mode import own_nodes, scope_around
from ...facts.graph import Graph, results
from ...facts.instances import class_id, instances_of
from ...facts.layers import bases_of
from ...facts.learning import backward_values, may_learn
from ...facts.names import last_name
from ...facts.trainable import submodules
from ...facts.trained_alone import is_trained_alone
from ...facts.walk import walk
from .beside import is_named_for_training
from .starts import model_of

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

_MAX_DEPTH = 4


def learns_by_its_base(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> bool:
    """Whether all that a forward does is a base's, which is a model by itself, and no loss runs it.

    Where a loss runs an object of the class, its scope is a fault, whatever the base is for.
    """
    if submodules(module, cls) or not _only_runs_base(module, function):
        return False
    base = next(_with_forward(module, cls, function.name), None)
    return (
        base is not None
        and _runs_with_gradients(*base, function.name)
        and _is_used_itself(*base)
        and not is_trained_alone(module, cls)
        and not _is_run_by_loss(module, cls)
    )


def _only_runs_base(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether the only call of a network in a forward is ``super().forward(...)``."""
    calls = [node for node in own_nodes(function) if isinstance(node, ast.Call)]
    learning = [call for call in calls if not _is_super(call) and may_learn(module, call)]
    return bool(learning) and all(
        isinstance(call.func, ast.Attribute)
        and call.func.attr == function.name
        and _is_super(call.func.value)
        for call in learning
    )


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "super"


def _with_forward(
    module: ModuleFacts, cls: ast.ClassDef, name: str, depth: int = 0
) -> Iterator[tuple[ModuleFacts, ast.ClassDef]]:
    """The classes above one that define a forward, with their files, in the order of lookup."""
    for home, base in bases_of(module, cls) if depth < _MAX_DEPTH else ():
        if any(method.name == name for method in functions_in(base)):
            yield home, base
        else:
            yield from _with_forward(home, base, name, depth + 1)


def _runs_with_gradients(home: ModuleFacts, base: ast.ClassDef, name: str) -> bool:
    method = next(method for method in functions_in(base) if method.name == name)
    return all(scope_around(home, statement) is None for statement in method.body)


def _is_used_itself(home: ModuleFacts, base: ast.ClassDef) -> bool:
    """Whether a file of the project names a class other than to derive another one from it."""
    for module in home.project.mentioning(home, base.name):
        derived = {id(node) for each in module.classes for node in each.bases}
        for node in walk(module.tree):
            if isinstance(node, (ast.Name, ast.Attribute)) and last_name(node) == base.name:
                if id(node) not in derived:
                    return True
    return False


def _is_run_by_loss(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether a loss comes from what an object of the class computes."""
    instances, made = instances_of(module, cls), class_id(module, cls)
    return any(
        _gives_loss(home, call)
        for home in instances.files
        for call in home.calls
        if any(origin.made == made for origin in instances.origins(home, model_of(call)))
    )


def _gives_loss(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether what a call gives is differentiated, or handed on by a function of a loss."""
    owner = module.function(call) or module.tree
    values = [(value, module.statement(at)) for value, at in backward_values(module, owner)]
    if not isinstance(owner, ast.Module):
        if is_named_for_training(owner) or called_by_losses(module, owner):
            values += results(owner)
    draws = [each for each in module.calls_named("sample") if _draws(module, each)]
    steps = Graph(module, owner, avoided=draws).back_from(values)
    return any(step.node is call and step.cut is None for step in steps)


def _draws(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call draws from one of torch's distributions, by which there is no gradient."""
    drawn = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(drawn, ast.Name):
        flow = module.flow(module.function(drawn) or module.tree)
        made = flow.only_definition(drawn.id, module.statement(drawn))
        drawn = made.value if made is not None else None
    if not isinstance(drawn, ast.Call):
        return False
    targets = module.resolve(drawn.func)
    return bool(targets) and all(t.name.startswith("torch.distributions.") for t in targets)
