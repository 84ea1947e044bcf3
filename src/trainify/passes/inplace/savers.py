"""Operations that write their result over a tensor, and save it: ``h.relu_()``, ``F.relu_(h)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from ...facts import ModuleFacts
from ...facts.constants import is_constant
from ...facts.destroyed import is_tensor, runs_before, sharing
from ...facts.guards import gradient_unwanted
from ...facts.memo import once
from ...facts.module import FunctionNode
from ...facts.overwriting import evaluated, overwritten
from ...facts.saved import RESULT_SAVED, saves_in_place, saving_call
from ...facts.writes import Write, are_views, is_element, root_of, roots


class SavedInPlace(NamedTuple):
    """A call that wrote its result into a tensor, and saved it; ``text`` names the operation.

    ``shared`` says that another name holds the tensor, too, and is read after what overwrites it.
    """

    call: ast.Call
    text: str
    shared: bool


def saved_in_place(module: ModuleFacts, write: Write) -> SavedInPlace | None:
    """The last operation before a write that left its result in the tensor which is written."""
    function = module.function(write.statement)
    if write.name is None or function is None:
        return None
    flow = module.flow(function)
    name = write.name.id
    group = sharing(module, function).get(name, frozenset({name}))
    written = roots(module, flow, name, write.statement)
    last = None
    for call, tensor, text in _calls(module, function):
        root, path = root_of(tensor)
        statement = module.statement(call)
        if root is None or root.id not in group or statement is write.statement:
            continue
        if not are_views(module, path) or not runs_before(module, call, write):
            continue
        if gradient_unwanted(module, call) or is_constant(module, root):
            continue
        element = any(isinstance(n, ast.Subscript) and is_element(n) for n in path)
        for one in roots(module, flow, root.id, statement):
            for other in written:
                if one.definition != other.definition:
                    continue
                if (element or one.element) and not is_tensor(module, one.definition):
                    continue  # another one of a list
                last = call, text
    if last is None:
        return None
    shared = any(flow.read_after(other, write.statement) for other in group - {name})
    return SavedInPlace(*last, shared=shared)


@once
def _calls(
    module: ModuleFacts, function: FunctionNode
) -> tuple[tuple[ast.Call, ast.expr, str], ...]:
    """The calls of a function that overwrite a tensor by what they save, and the tensor."""
    return tuple(
        found
        for call in module.calls
        if module.function(call) is function
        for found in _overwritten(module, call)
    )


def _overwritten(module: ModuleFacts, call: ast.Call) -> Iterator[tuple[ast.Call, ast.expr, str]]:
    if call not in evaluated(module.statement(call)):
        return  # in a lambda, which runs when it is called
    function = call.func
    if not isinstance(function, ast.Attribute):
        return
    out = next((k.value for k in call.keywords if k.arg == "out"), None)
    if out is not None:
        if function.attr in RESULT_SAVED:
            yield call, out, module.source(function)
        return
    given = overwritten(module, call)
    tensor = given if given is not None else function.value
    if given is not None or saves_in_place(call):
        text = saving_call(module, call)
        if text is not None:
            yield call, tensor, text
