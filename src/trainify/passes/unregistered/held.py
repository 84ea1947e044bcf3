"""Lists and dicts that an attribute holds, and all that goes into them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Literal

from ...facts import ModuleFacts
from ...facts.layers import Made, elements, made_by
from ...facts.walk import walk
from .displays import adds_to_itself, kind_of, made_locally, parts_of
from .uses import uses_of


@dataclass
class Held:
    """A list or dict that an attribute holds, and what goes into it."""

    statement: ast.Assign | ast.AnnAssign
    display: ast.expr
    """Where it is made: ``[...]``, ``{}``, ``list()``; of a local list, its name."""
    kind: Literal["list", "dict"]
    elements: list[ast.expr] = field(default_factory=list)
    keys: list[ast.expr] = field(default_factory=list)
    more: bool = False
    """Whether anything is added later, or in turns of a loop."""


def held_by(
    module: ModuleFacts,
    cls: ast.ClassDef,
    name: str,
    statement: ast.Assign | ast.AnnAssign,
    value: ast.expr,
) -> Held | None:
    """What an attribute holds; None where it is no plain list or dict, or something else has it."""
    kind = kind_of(module, value)
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    if kind is None or len(targets) > 1 or isinstance(targets[0], (ast.Tuple, ast.List)):
        return None
    held = Held(statement, value, kind)
    if isinstance(value, ast.Name):
        function = module.function(value)
        made = made_locally(module, value)
        assert function is not None and made is not None
        _add(held, made)
        for node in walk(function):
            if isinstance(node, ast.Name) and node.id == value.id and node is not value:
                if isinstance(node.ctx, ast.Load) and not _adds(module, held, node):
                    return None  # handed to nn.Sequential, say
                if node.lineno > value.lineno:
                    return None
    else:
        _add(held, value)
    for use in uses_of(module, cls, name):
        _adds(module, held, use)
    return held


def _add(held: Held, display: ast.expr) -> None:
    """What a display or comprehension holds; an empty one holds nothing."""
    if isinstance(display, ast.BinOp):
        held.more |= isinstance(display.op, ast.Mult)
        _add(held, display.left)
        if isinstance(display.op, ast.Add):
            _add(held, display.right)
    elif isinstance(display, (ast.Dict, ast.DictComp)):
        held.keys += (
            [display.key]
            if isinstance(display, ast.DictComp)
            else [key for key in display.keys if key is not None]
        )
        held.elements += elements(display)
        held.more = True
    elif isinstance(display, ast.Call):
        parts = parts_of(display)
        if parts is not None:
            held.elements += parts.elements
            held.keys += parts.keys
            held.more |= parts.more
    else:
        held.elements += elements(display)
        held.more |= isinstance(display, ast.ListComp)


def _adds(module: ModuleFacts, held: Held, use: ast.expr) -> bool:
    """Whether a use of a list or dict adds to it (or only asks for its length)."""
    parent = module.parent(use)
    if isinstance(parent, ast.Attribute):
        call = module.parent(parent)
        if isinstance(call, ast.Call) and call.func is parent and call.args:
            if parent.attr in ("append", "insert"):
                held.elements += elements(call.args[-1])
                held.more = True
                return True
            if parent.attr == "setdefault" and len(call.args) == 2:
                held.keys.append(call.args[0])
                held.elements += elements(call.args[1])
                held.more = True
                return True
            if parent.attr == "extend":
                _add(held, call.args[0])
                held.more = True
                return True
    elif isinstance(parent, ast.BinOp) and parent.left is use and adds_to_itself(module, parent):
        _add(held, parent.right)
        held.more = True
        return True
    elif isinstance(parent, ast.AugAssign) and parent.target is use:
        _add(held, parent.value)
        held.more = True
        return True
    elif isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store):
        statement = module.parent(parent)
        if held.kind == "dict" and isinstance(statement, ast.Assign):
            held.keys.append(parent.slice)
            held.elements += elements(statement.value)
            held.more = True
            return True
    elif isinstance(parent, ast.Call) and module.source(parent.func) == "len":
        return True
    return False


def fresh(module: ModuleFacts, element: ast.expr) -> Made | None:
    """What an element is, where nothing but this list has it."""
    if not isinstance(element, ast.Name):
        return made_by(module, element)
    function = module.function(element)
    value = made_locally(module, element)
    if function is None or value is None:
        return None
    for node in walk(function):
        if isinstance(node, ast.Name) and node.id == element.id and node is not element:
            if isinstance(node.ctx, ast.Load) and not isinstance(
                module.parent(node), ast.Attribute
            ):
                return None
    return made_by(module, value)
