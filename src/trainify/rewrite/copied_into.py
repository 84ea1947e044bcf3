"""Callers whose tensor a result is copied into, though autograd has saved its old value."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from ..facts import ModuleFacts
from ..facts.destroyed import destroyed
from ..facts.handed_on import handed_on
from ..facts.names import last_name, passed
from ..facts.saved import saved_result
from ..facts.writes import Write, root_of, roots
from .saved_by_kernels import saved_before

_MOST = 2


def who_raises(module: ModuleFacts, function: ast.AST, parameter: str) -> str:
    """The calls in the project that raise in backward, and what they have to do; empty for none."""
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return ""
    found = list(dict.fromkeys(_raising(module, function, parameter)))
    if not found:
        return ""
    more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return f"{', '.join(found[:_MOST])}{more}: pass a clone, and go on with that"


def _raising(
    module: ModuleFacts, function: ast.FunctionDef | ast.AsyncFunctionDef, parameter: str
) -> Iterator[str]:
    for other, call in module.project.calls_of(module, function):
        argument = module.project.argument(module, function, call, parameter)
        name = root_of(argument)[0] if argument is not None else None
        if argument is None or name is None or other.function(call) is None:
            continue
        place = f"{os.path.basename(other.path)}:{call.lineno}"
        shown = f"`{other.source(argument)}`"
        others = [node for node in passed(call) if node is not argument]
        if any((root := root_of(node)[0]) is not None and root.id == name.id for node in others):
            yield f"{place} also reads {shown}, which it passes to be written"
            continue
        statement = other.statement(call)
        write = Write(statement, argument, tuple(others), name, argument is not name, call)
        saver = destroyed(other, write)
        saved = saver.op if saver is not None else _saved(other, name, statement)
        if saved is not None:
            yield f"{place} passes {shown}, which `{saved}` saved"
            continue
        caller = other.function(call)
        kernels = saved_before(other, caller, name.id, statement) if caller is not None else ()
        for kernel in kernels:
            of = other.source(kernel.func)
            yield f"{place} passes {shown}, which `{of}` saves once it has a gradient"
            break
    for handed in handed_on(module, function):
        if "checkpoint" in last_name(handed.call.func):
            place = f"{os.path.basename(handed.module.path)}:{handed.call.lineno}"
            for given, argument in handed.arguments:
                if given in (parameter, None):
                    shown = f"`{handed.module.source(argument)}`"
                    yield f"{place} checkpoints it, so that it runs again on the new {shown}"


def _saved(module: ModuleFacts, name: ast.Name, statement: ast.stmt) -> str | None:
    """The operation whose result a name has, if that saved it."""
    flow = module.flow(module.function(statement) or module.tree)
    for root in roots(module, flow, name.id, statement):
        saved = saved_result(module, root.definition)
        if saved is not None:
            return saved
    return None
