"""What else runs the very model that a start of inference runs: ``self.model`` in ``generate``.

Told by the expression, also where its class does not show: a scope that moves to the start leaves
it behind.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.guards import runs_model
from ...facts.names import self_name
from ...facts.walk import walk
from .runs import Run, run_of
from .starts import inference_functions, model_of

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

_Key = tuple[ast.ClassDef | None, str]
"""The class whose object has a model, or None for one of the file, and how it is reached."""


def runs_beside(module: ModuleFacts) -> tuple[tuple[int, Run], ...]:
    """The runs of models that starts of inference run too, each with the line of that start."""
    found = []
    for start in inference_functions(module):
        me = self_name(start)
        calls = [n for n in walk(start) if isinstance(n, ast.Call) and runs_model(n, me)]
        keys = {key for call in calls if (key := _key(module, model_of(call))) is not None}
        for other in _calls_of(module, keys):
            function = module.function(other)
            run = run_of(module, other, frozenset()) if function is not start else None
            if run is not None:
                found.append((start.lineno, replace(run, function=None)))  # holds no tree
    return tuple(found)


def _calls_of(module: ModuleFacts, keys: set[_Key]) -> Iterator[ast.Call]:
    for name in {path.rpartition(".")[2] for _, path in keys}:
        for call in (*module.calls_named(name), *module.calls_named("forward")):
            if _key(module, model_of(call)) in keys:
                yield call


def _key(module: ModuleFacts, node: ast.expr) -> _Key | None:
    """What tells a model that several functions reach by one expression; None for others."""
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    cls = module.names.self_class(node)
    if cls is not None:
        return (cls, ".".join(reversed(path))) if path else None
    if _is_of_a_function(module, node):
        return None
    return None, ".".join((node.id, *reversed(path)))


def _is_of_a_function(module: ModuleFacts, node: ast.Name) -> bool:
    """Whether a name is a parameter or a local of the function that it stands in, or around it."""
    function: FunctionNode | None = module.function(node)
    outside = module.names.bindings(module.tree).get(node.id)
    return function is not None and (outside is None or module.names.visible(node) != outside)
