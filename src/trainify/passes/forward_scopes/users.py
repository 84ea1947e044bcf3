"""Modules that all who have one as a part freeze: a tower that a scope keeps from recording."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.called import method_of, positional
from ...facts.frozen import freezes, is_frozen
from ...facts.layers import classes_named
from ...facts.walk import walk

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

_CONTAINERS = frozenset({"ModuleList", "ModuleDict", "Sequential"})
_DISPLAYS = (ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.GeneratorExp, ast.DictComp)


def frozen_by_its_users(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether each class of the project that has such a module as a part freezes that part."""
    made = f"{cls.name}("
    if True not in _parts(module, cls, made, containing=b"requires_grad"):
        return False
    return False not in _parts(module, cls, made)


def _parts(
    module: ModuleFacts, cls: ast.ClassDef, made: str, containing: bytes = b""
) -> Iterator[bool]:
    """Of each place where a module becomes a part of something: whether that is frozen there."""
    for home in module.project.mentioning(module, made, containing=containing):
        for call in home.calls_named(cls.name):
            frozen = _is_frozen_part(home, call)
            if frozen is not None:
                yield frozen


def _is_frozen_part(module: ModuleFacts, made: ast.Call) -> bool | None:
    """Whether a module is frozen where it is made; None where it does not become a part there."""
    frozen, whole = _whole(module, made)
    parent = module.parent(whole)
    if isinstance(parent, ast.keyword):
        parent = module.parent(parent)
    statement, function = module.statement(made), module.function(made)
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and parent is statement:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return _is_frozen_as(module, targets[0], function, frozen)
    if isinstance(parent, ast.Call):
        return _is_frozen_argument(module, parent, whole, frozen)
    return None


def _is_frozen_as(
    module: ModuleFacts, target: ast.expr, function: FunctionNode | None, frozen: bool
) -> bool | None:
    """The same of what is assigned: to an attribute, or to a name that is frozen or handed on."""
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        cls = module.names.self_class(target.value)
        return None if cls is None else frozen or is_frozen(module, cls, target.attr)
    if not isinstance(target, ast.Name):
        return None
    if frozen or any(
        _root(node) == target.id and module.function(node) is function
        for node in module.frozen_places
    ):
        return True
    for use in walk(function or module.tree):
        if isinstance(use, ast.Name) and use.id == target.id and isinstance(use.ctx, ast.Load):
            parent = module.parent(use)
            parent = module.parent(parent) if isinstance(parent, ast.keyword) else parent
            if isinstance(parent, ast.Call) and parent.func is not use:
                found = _is_frozen_argument(module, parent, use, frozen)
                if found is not None:
                    return found
    return None


def _is_frozen_argument(
    module: ModuleFacts, call: ast.Call, given: ast.expr, frozen: bool
) -> bool | None:
    """The same of what the constructor of a class of the project gets, and keeps as a part."""
    for home, owner in classes_named(module, call.func):
        init = method_of(owner, "__init__")
        if init is None:
            continue
        named = next((k.arg for k in call.keywords if k.value is given), None)
        if named is None and given in call.args:
            names, place = positional(home, init), call.args.index(given)
            named = names[place] if place < len(names) else None
        for name, bindings in home.names.attributes(owner).items():
            if any(isinstance(b.value, ast.Name) and b.value.id == named for b in bindings):
                return frozen or is_frozen(home, owner, name)
    return None


def _whole(module: ModuleFacts, made: ast.Call) -> tuple[bool, ast.expr]:
    """What a module is made into, ``Tower().eval()``, ``[Tower()]``; and whether frozen there."""
    frozen = False
    node: ast.expr = made
    while True:
        parent = module.parent(node)
        if isinstance(parent, ast.Attribute):
            after = module.parent(parent)
            if not isinstance(after, ast.Call) or after.func is not parent:
                return frozen, node
            frozen, node = frozen or freezes(after), after
        elif isinstance(parent, _DISPLAYS) or (
            isinstance(parent, ast.Call)
            and isinstance(parent.func, (ast.Name, ast.Attribute))
            and module.source(parent.func).rpartition(".")[2] in _CONTAINERS
        ):
            node = parent
        else:
            return frozen, node


def _root(node: ast.expr) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None
