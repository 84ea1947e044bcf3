"""Outputs that have no gradient in any case: a threshold or an index of what was computed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ...facts import ModuleFacts
from ...facts.graph import Graph, results
from ...facts.learning import LOSS_CALL
from ...facts.trainable import trained_submodules
from ...facts.walk import walk

if TYPE_CHECKING:
    from ...facts.module import FunctionNode


class FlatOutput(NamedTuple):
    """An output that is a threshold or an index of what the model computes."""

    name: str
    made: ast.expr
    in_loss: bool
    """Whether a loss of this file is computed from it."""


def flat_output(module: ModuleFacts, function: FunctionNode) -> FlatOutput | None:
    """The first such output of a model's forward."""
    cls = module.method_class(function)
    trained = trained_submodules(module, cls) if cls is not None else frozenset[str]()
    for value, statement in results(function):
        for name, part in _parts(module, function, value, statement):
            graph = Graph(module, function)
            steps = graph.back_from([(part, statement)])
            learning = [s for s in steps if graph.attribute(s.node, s.at) in trained]
            cuts = [s.cut for s in learning if s.cut is not None and s.cut.scope is None]
            if cuts and len(cuts) == len(learning):
                return FlatOutput(name, cuts[0].node, _is_in_loss(module, name))
    return None


def _parts(
    module: ModuleFacts, function: FunctionNode, value: ast.expr, statement: ast.stmt
) -> Iterator[tuple[str, ast.expr]]:
    """The named parts of a result: of a dict, of an output object."""
    if isinstance(value, ast.Name):
        definition = module.flow(function).only_definition(value.id, statement)
        if definition is not None and definition.value is not None:
            value = definition.value
    if isinstance(value, ast.Dict):
        for key, part in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, part
    elif isinstance(value, ast.Call):
        for keyword in value.keywords:
            if keyword.arg is not None:
                yield keyword.arg, keyword.value


def _is_in_loss(module: ModuleFacts, name: str) -> bool:
    """Whether a loss of this file is computed from an output of this name."""
    for call in module.calls:
        if LOSS_CALL.search(module.source(call.func)):
            for node in (n for argument in call.args for n in walk(argument)):
                if isinstance(node, ast.Attribute) and node.attr == name:
                    return True
                if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                    if node.slice.value == name:
                        return True
    return False
