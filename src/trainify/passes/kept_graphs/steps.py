"""What each step keeps and reads again: where it runs, and what comes of the graph that is kept."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.guards import gradient_unwanted, is_forward
from ...facts.kept import is_same, registering
from ...facts.names import is_none
from ...facts.trainable import is_buffer
from ...facts.walk import walk
from ...facts.writes import callers, in_network

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

NOT_A_STEP = re.compile(r"__init__|init|reset|clear|load|build|setup")


def is_step(module: ModuleFacts, function: FunctionNode, statement: ast.stmt) -> bool:
    """Whether a statement runs in each forward where a gradient is wanted."""
    if NOT_A_STEP.search(function.name) or gradient_unwanted(module, statement):
        return False
    if not in_network(module, function):
        return False
    if is_forward(function) or module.method_class(function) is None:
        return True
    return any(not gradient_unwanted(module, call) for call in callers(module, function))


def is_left_alone(module: ModuleFacts, owner: ast.Attribute, function: FunctionNode) -> bool:
    """Whether others may set the attribute between two steps, or detach it."""
    assert isinstance(owner.value, ast.Name)
    cls = module.names.self_class(owner.value)
    if cls is None or owner.attr in module.rebound:
        return True
    if f"{owner.attr}.detach" in module.usual or f"{owner.attr}[0].detach" in module.usual:
        return True
    setters = {module.function(b.node) for b in module.names.attributes(cls).get(owner.attr, ())}
    setters |= registering(module, cls, owner.attr)
    return any(f is not None and f is not function and f.name != "__init__" for f in setters)


def is_switched(module: ModuleFacts, statement: ast.stmt, owner: ast.Attribute) -> bool:
    """Whether an option decides that the statement runs: anything but the attribute itself.

    Statistics in buffers are kept by every module that is trained, whatever its settings.
    """
    buffer = is_buffer(module, owner)
    for around in module.ancestors(statement):
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        if isinstance(around, (ast.If, ast.While)):
            if _asks_for_none(around.test):
                continue  # as in the first step
            for node in walk(around.test):
                if isinstance(node, ast.Attribute):
                    if not buffer and node.attr not in (owner.attr, "training"):
                        return True
                elif isinstance(node, ast.Name) and module.names.self_class(node) is None:
                    return True
    return False


def _asks_for_none(test: ast.expr) -> bool:
    """``self.k is not None``, of an attribute that is kept beside the one in question."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Attribute)
        and isinstance(test.ops[0], (ast.Is, ast.IsNot))
        and is_none(test.comparators[0])
    )


def consequence(module: ModuleFacts, owner: ast.Attribute, again: bool = False) -> str:
    """What comes of a kept graph: that depends on whether a loss is computed from it again.

    ``again``: it is, by another name.
    """
    assert isinstance(owner.value, ast.Name)
    if again:
        return _FAILS
    cls = module.names.self_class(owner.value)
    for node in walk(cls) if cls is not None else ():
        if is_same(node, owner) and node is not owner:
            statement = module.statement(node)
            if statement in module.writes or _is_updated_by(statement, owner.attr):
                continue
            if not is_cut(module, node) and not gradient_unwanted(module, node):
                return _FAILS
    return "those of all steps stay in memory, which grows."


_FAILS = "the next backward walks into it and fails."


def is_cut(module: ModuleFacts, node: ast.expr) -> bool:
    """``self.mean.detach()``, which reads the numbers alone."""
    parent = module.parent(node)
    return isinstance(parent, ast.Attribute) and parent.attr in ("detach", "data")


def _is_updated_by(statement: ast.stmt, name: str) -> bool:
    return isinstance(statement, ast.Assign) and any(
        isinstance(t, ast.Attribute) and t.attr == name for t in statement.targets
    )
