"""Which values have a graph: those that come from weights."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.activations import carries
from ...facts.graph import Graph
from ...facts.guards import gradient_unwanted
from ...facts.kept import is_same
from ...facts.memo import once
from ...facts.names import passed
from ...facts.trainable import makes_weights
from ...facts.walk import walk
from ...facts.writes import Write, root_of

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

_GIVEN = re.compile(r"(x?[kv]|keys?|values?|key_states|value_states)$")
_LAYER = re.compile(r"(Batch|Instance|Group|Layer|RMS)Norm")


def has_graph(module: ModuleFacts, function: FunctionNode, value: ast.expr) -> bool:
    """Whether a value surely comes from weights, or from what such a layer is given."""
    if not carries(module, value):
        return False
    cls = module.method_class(function)
    layer = cls is not None and (
        _LAYER.search(cls.name) is not None or _is_behind_weights(module, cls)
    )
    for step in Graph(module, function).back_from([(value, module.statement(value))]):
        if step.cut is not None:
            continue
        node = step.node
        if isinstance(node, ast.Name):
            if node.id in module.flow(function).parameters and (layer or _GIVEN.match(node.id)):
                return True
        elif _is_own(module, node) and carries(module, node):
            return True
    return False


@once
def _is_behind_weights(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether a network of the file has something with weights ahead of such a layer.

    ``nn.Sequential(nn.Linear(2, 2), RunningNorm(2))``
    """
    for call in module.calls_named(cls.name):
        row = module.parent(call)
        if not isinstance(row, ast.Call) or call not in row.args:
            continue
        if module.is_name(row.func, "torch.nn.Sequential") and any(
            makes_weights(module, each)
            for each in row.args[: row.args.index(call)]
            if isinstance(each, ast.Call)
        ):
            return True
    return False


def _is_own(module: ModuleFacts, node: ast.expr) -> bool:
    """``self.weight``, ``self.layer(x)``."""
    owner = node.func if isinstance(node, ast.Call) else node
    return isinstance(owner, ast.Attribute) and module.names.self_class(owner.value) is not None


def may_have_graph(module: ModuleFacts, function: FunctionNode, value: ast.expr) -> bool:
    """Whether a value comes from weights in one of the ways that it can be made."""
    if not isinstance(value, ast.Name):
        return has_graph(module, function, value)
    reaching = module.flow(function).reaching(value.id, module.statement(value))
    return any(d.value is not None and has_graph(module, function, d.value) for d in reaching)


def written(write: Write) -> list[ast.expr]:
    """The values that a statement writes: the arguments of each method of a chain."""
    if not isinstance(write.statement, ast.Expr):
        return list(write.inputs)
    return [
        argument
        for node in walk(write.statement)
        if isinstance(node, ast.Call) and _is_of_chain(node, write)
        for argument in passed(node)
    ] or list(write.inputs)


def _is_of_chain(call: ast.Call, write: Write) -> bool:
    """Whether a call is a method of what is written, or of what another one of it gives back."""
    name, path = root_of(call)
    if write.name is not None:
        return name is write.name
    return path[-1:] == root_of(write.target)[1][-1:]


def written_later(
    module: ModuleFacts, function: FunctionNode, owner: ast.Attribute, statement: ast.stmt
) -> list[ast.expr]:
    """The values with a graph that go into an attribute: ``self.past[:, -1] = h``."""
    found: list[ast.expr] = []
    for later, write in module.writes.items():
        if module.function(later) is not function or later.lineno < statement.lineno:
            continue
        if gradient_unwanted(module, later):
            continue
        within = list(walk(write.target))
        if any(isinstance(n, ast.Attribute) and n.attr in ("data", "detach") for n in within):
            continue
        if any(is_same(node, owner) for node in within):
            found += [v for v in written(write) if has_graph(module, function, v)]
    return found
