"""Modules that run one after the other, of which one overwrites what the one before saved."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .overwriting import writes_in_place
from .saved import saves_its_result
from .walk import walk

if TYPE_CHECKING:
    from .module import ModuleFacts

_PASSES_ON = re.compile(r"\b(Identity|Flatten|Unflatten)$")
"""Modules that give back their input, or a view of it."""


def overwriting_rows(module: ModuleFacts) -> Iterator[tuple[ast.Call, ast.Call]]:
    """(saver, writer) in ``nn.Sequential(nn.Sigmoid(), nn.Dropout(inplace=True))``.

    Also of lists that a name carries to ``nn.Sequential(*layers)``.
    """
    for call in module.calls_named("Sequential"):
        if not module.is_name(call.func, "torch.nn.Sequential"):
            continue
        for argument in call.args:
            if isinstance(argument, ast.Starred):
                for row in _lists(module, argument.value):
                    yield from _in_row(module, row)
        yield from _in_row(module, call.args)


def _in_row(module: ModuleFacts, row: Sequence[ast.expr]) -> Iterator[tuple[ast.Call, ast.Call]]:
    saver = None
    for made in row:
        if isinstance(made, ast.Call):
            if saver is not None and writes_in_place(module, made):
                yield saver, made
            if saver is not None and _PASSES_ON.search(module.source(made.func)):
                continue
        saver = made if isinstance(made, ast.Call) and saves_its_result(module, made) else None


def _lists(module: ModuleFacts, node: ast.expr) -> Iterator[list[ast.expr]]:
    """The lists that a name is made of, or grows by, before it is unpacked."""
    if isinstance(node, (ast.List, ast.Tuple)):
        yield node.elts
    if not isinstance(node, ast.Name):
        return
    function = module.function(node)
    for each in walk(function) if function is not None else ():
        target, value = None, None
        if isinstance(each, (ast.Assign, ast.AugAssign)):
            target = each.targets[0] if isinstance(each, ast.Assign) else each.target
            value = each.value
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            if each.func.attr == "extend" and each.args:
                target, value = each.func.value, each.args[0]
        if isinstance(target, ast.Name) and target.id == node.id:
            if isinstance(value, (ast.List, ast.Tuple)):
                yield value.elts
