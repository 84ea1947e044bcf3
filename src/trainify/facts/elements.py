"""What lists, tables and module containers of a class hold, where they are written out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .names import last_name

if TYPE_CHECKING:
    from .module import ModuleFacts

_CONTAINERS = ("ModuleList", "ModuleDict", "Sequential", "list", "tuple", "dict")
_ADDS = ("append", "insert", "add_module")
_CHANGES = ("extend", "update", "setdefault", "pop", "register_module")


def elements_of(module: ModuleFacts, node: ast.Subscript) -> list[ast.expr | None]:
    """What ``self.norms[i]`` may be, None where it may be what does not show."""
    if not isinstance(node.slice, ast.Constant):
        return list(_held(module, node.value))
    key, found = node.slice.value, list(_held(module, node.value, node.slice))
    return found[key : key + 1] if isinstance(key, int) and 0 <= key < len(found) else found


def looped_over(
    module: ModuleFacts, loop: ast.For | ast.AsyncFor, name: str
) -> list[ast.expr | None]:
    """What a name of the head of a loop may be: ``norm`` of ``for i, norm in enumerate(norms)``."""
    over, target = loop.iter, loop.target
    while isinstance(over, ast.Call):
        if isinstance(over.func, ast.Attribute):
            if over.func.attr not in ("values", "items"):
                return [None]
            if over.func.attr == "items":
                target = _part(target, 1)
            over = over.func.value
        elif last_name(over.func) == "enumerate" and over.args:
            target, over = _part(target, 1), over.args[0]
        elif last_name(over.func) == "zip" and isinstance(target, ast.Tuple):
            places = [
                i for i, e in enumerate(target.elts) if isinstance(e, ast.Name) and e.id == name
            ]
            if len(places) != 1 or places[0] >= len(over.args):
                return [None]
            target, over = target.elts[places[0]], over.args[places[0]]
        elif last_name(over.func) in ("list", "tuple", "reversed") and len(over.args) == 1:
            over = over.args[0]
        else:
            return [None]
    if not isinstance(target, ast.Name) or target.id != name:
        return [None]
    return list(_held(module, over))


def _part(target: ast.expr, index: int) -> ast.expr:
    fits = isinstance(target, ast.Tuple) and len(target.elts) == 2
    return target.elts[index] if fits else target  # type: ignore[attr-defined]


def _held(
    module: ModuleFacts, node: ast.expr, key: ast.Constant | None = None
) -> Iterator[ast.expr | None]:
    """What a container of ``self`` is made with, and what methods add to it."""
    if isinstance(node, ast.Subscript):  # self.norms[:n]
        sliced = isinstance(node.slice, ast.Slice)
        yield from _held(module, node.value) if sliced else [None]
        return
    cls = None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        cls = module.names.self_class(node.value)
    bindings = module.names.attributes(cls).get(node.attr, ()) if cls is not None else ()  # type: ignore[attr-defined]
    if len(bindings) != 1 or bindings[0].value is None:
        yield None
        return
    yield from _written_out(bindings[0].value, key)
    assert isinstance(node, ast.Attribute)
    for used in module.names.uses(cls, node.attr) if cls is not None else ():
        parent = module.parent(used)
        call = module.parent(parent) if isinstance(parent, ast.Attribute) else None
        if isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load):
            yield None
        elif isinstance(parent, ast.Attribute) and isinstance(call, ast.Call):
            if parent.attr in _ADDS and call.args:
                yield call.args[-1]
            elif parent.attr in _CHANGES:
                yield None


def _written_out(made: ast.expr, key: ast.Constant | None) -> Iterator[ast.expr | None]:
    while isinstance(made, ast.Call) and last_name(made.func) in _CONTAINERS:
        if len(made.args) > 1 or made.keywords:
            yield from made.args
            yield from (k.value if k.arg is not None else None for k in made.keywords)
            return
        if not made.args:
            return
        made = made.args[0]
    if isinstance(made, ast.Dict):
        for each, value in zip(made.keys, made.values, strict=True):
            known = isinstance(each, ast.Constant)
            if key is None or not known or each.value == key.value:  # type: ignore[union-attr]
                yield value if each is not None else None
    elif isinstance(made, (ast.List, ast.Tuple)):
        yield from (None if isinstance(e, ast.Starred) else e for e in made.elts)
    elif isinstance(made, (ast.ListComp, ast.GeneratorExp)):
        yield made.elt
    elif isinstance(made, ast.DictComp):
        yield made.value
    else:
        yield None
