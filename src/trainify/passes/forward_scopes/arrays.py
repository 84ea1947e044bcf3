"""Where other files make arrays of what a model gives: not possible once it has a graph."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.grad_mode import scope_around
from ...facts.guards import is_forward, is_inference_entry, runs_model
from ...facts.learning import backward_values
from .starts import is_off_on_import

if TYPE_CHECKING:
    from ...facts.module import FunctionNode


def _has_arrays(data: bytes) -> bool:
    return b"numpy" in data


def to_numpy(module: ModuleFacts, forward: FunctionNode) -> list[str]:
    """Where other files run the model without a scope and make arrays of what comes out."""
    places = [
        f"{other.path}:{call.lineno}"
        for other, call in module.project.calls_of(module, forward, _has_arrays, elsewhere=True)
        if _makes_array(other, call)
    ]
    if module.method_class(forward) is not None:
        given = module.project.summaries(module.path, _arrays_of_given_models, _runs_given_models)
        places += [place for each in given for place in each]
    return places


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
        and _makes_array(module, call)
    )
