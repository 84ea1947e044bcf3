"""What names of a file stand for in a project: which class or function, and in which file."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..layers import own_class
from ..memo import once
from ..names import last_name, parameters
from ..walk import walk

if TYPE_CHECKING:
    from ..module import FunctionNode, ModuleFacts

ClassId = tuple[str, str]
"""The file of a class, and its name."""

_MAX_HANDED_ON = 3


@once
def path_of(module: ModuleFacts) -> str:
    return str(Path(module.path).absolute())


def class_id(module: ModuleFacts, cls: ast.ClassDef) -> ClassId:
    """What tells a class of a file from others of its name."""
    return path_of(module), cls.name


def annotated(
    module: ModuleFacts,
    function: FunctionNode,
    name: str,
    stands_for: Callable[[ModuleFacts, ast.expr], ClassId | None] | None = None,
) -> list[ClassId]:
    """The classes that a parameter is declared to be; none where it may be any module."""
    argument = next((a for a in parameters(function.args) if a.arg == name), None)
    node = argument.annotation if argument is not None else None
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return []
    found: list[ClassId] = []
    for each in walk(node) if node is not None else ():
        if not isinstance(each, (ast.Name, ast.Attribute)):
            continue
        word, own = last_name(each), own_class(module, each)
        if word in _ANY or word.endswith("Protocol") or len(word) == 1:
            return []
        if own is not None and any(last_name(base) in ("Protocol", "ABC") for base in own.bases):
            return []
        place = (stands_for or named)(module, each)
        if place is not None:
            found.append(place)
        elif word in _PLAIN:
            found.append(("", word))
    return found


_ANY = frozenset("Module Any Callable object ModuleType".split())
_PLAIN = frozenset("int float str bool bytes Tensor ndarray Path".split())


def named(module: ModuleFacts, node: ast.expr) -> ClassId | None:
    """The file of the project that has what a name stands for, and its name there.

    A class or a function: no other file is parsed to tell them apart.
    """
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return None
    own = own_class(module, node)
    if own is not None:
        return class_id(module, own)
    places = (place_of(module, target.name) for target in module.resolve(node))
    return next((place for place in places if place is not None), None)


@once
def place_of(module: ModuleFacts, qualified: str) -> ClassId | None:
    """The same of a qualified name, past packages that only hand it on."""
    for _ in range(_MAX_HANDED_ON):
        owner, _, name = qualified.rpartition(".")
        path = module.project.find_module(module, owner) if owner else None
        if path is None:
            return None
        beyond = next(iter(module.project.taken(path, name)), None)
        if beyond is None:
            return str(path.absolute()), name
        qualified = beyond
    return None
