"""Where other files make arrays of what a model gives: not possible once it has a graph."""

from __future__ import annotations

import ast

from ...facts import ModuleFacts
from ...facts.grad_mode import scope_around
from ...facts.guards import is_forward, is_inference_entry, runs_model
from ...facts.instances import annotated
from ...facts.learning import backward_values
from .starts import is_off_on_import


def to_numpy(module: ModuleFacts) -> list[str]:
    """Where other files make arrays of what a model gives that may be any, without a scope."""
    found = module.project.summaries(module.path, _arrays_of_given_models, _runs_given_models)
    return [place for each in found for place in each]


def _makes_array(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether NumPy gets at what a call of a model gives, with gradients on."""
    caller = module.function(call)
    if scope_around(module, call) is not None or is_off_on_import(module):
        return False
    if caller is not None and (is_forward(caller) or is_inference_entry(module, caller)):
        return False
    if any(backward_values(module, caller or module.tree)):
        return False
    return ".numpy(" in module.source(caller or module.statement(call))


def _runs_given_models(data: bytes) -> bool:
    return b".numpy(" in data and (b"model" in data or b"net" in data)


def _arrays_of_given_models(module: ModuleFacts) -> tuple[str, ...]:
    """Where arrays are made of what a model gives that a function was given: it may be any."""
    return tuple(
        f"{module.path}:{call.lineno}"
        for call in module.calls
        if isinstance(call.func, ast.Name)
        and (function := module.function(call)) is not None
        and runs_model(call, None)
        and call.func.id in module.flow(function).parameters
        and not annotated(module, function, call.func.id)
        and _makes_array(module, call)
    )
