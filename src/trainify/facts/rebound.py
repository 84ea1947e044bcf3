"""Attributes that are set from outside: what a class gives them is not all that they can be."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from .names import last_name

if TYPE_CHECKING:
    from .module import ModuleFacts

Set = tuple["ModuleFacts", "ast.expr | None", int]
"""The file that sets an attribute, the value where it shows, and the line."""


def rebound_attributes(module: ModuleFacts) -> Iterator[str]:
    """The names of the attributes; :class:`ModuleFacts` asks once."""
    for statement in module.statements:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Attribute):
                    if module.names.self_class(target.value) is None:
                        yield target.attr
    for call in module.calls if "setattr(" in module.usual else ():
        if isinstance(call.func, ast.Name) and call.func.id == "setattr" and len(call.args) == 3:
            name = call.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


def set_by_others(module: ModuleFacts, cls: ast.ClassDef, name: str) -> Iterator[Set]:
    """Where ``self.name`` of a class is set by classes derived from it, or from outside.

    By every file that names the class, or one derived from it in its own file.
    """
    family = {cls.name, *(each.name for each in _derived(module, {cls.name}, cls))}
    word = re.escape(name.encode())
    sets = re.compile(rb"(?m)\.%s\s*=[^=]|^\s+%s\s*[=:][^=]|[\"']%s[\"']" % (word, word, word))
    given = re.compile(rb"\b%s=" % word)

    def may_set(data: bytes) -> bool:
        if not any(each.encode() in data for each in family):
            return False
        by_name = b"setattr(" in data and given.search(data) is not None
        return by_name or sets.search(data) is not None

    for other in chain([module], module.project.others(module, may_set)):
        for derived in _derived(other, family, cls if other is module else None):
            for binding in other.names.attributes(derived).get(name, ()):
                yield other, binding.value, getattr(binding.node, "lineno", derived.lineno)
        for target, statement in _assigned(other, name):
            if other.names.self_class(target.value) is None:
                yield other, statement.value, statement.lineno
        if "setattr(" in other.text:
            yield from _set_by_name(other, name)


def set_in_module(module: ModuleFacts, name: str) -> Iterator[Set]:
    """Where another file sets a name at the top of this one: ``layers.kernel = other``."""
    leaf = module.module_name.rpartition(".")[2]
    for other in module.project.mentioning(module, leaf, containing=b"." + name.encode()):
        for target, statement in _assigned(other, name) if other is not module else ():
            if other.is_name(target.value, module.module_name):
                yield other, statement.value, statement.lineno


def _assigned(module: ModuleFacts, name: str) -> Iterator[tuple[ast.Attribute, ast.Assign]]:
    """The assignments to an attribute of anything."""
    for statement in module.statements:
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            if isinstance(target, ast.Attribute) and target.attr == name:
                assert isinstance(statement, ast.Assign)
                yield target, statement


def _derived(
    module: ModuleFacts, family: Collection[str], cls: ast.ClassDef | None
) -> Iterator[ast.ClassDef]:
    """The classes of a file that derive from one of some others, told by their names."""
    names = set(family)
    for each in module.classes:
        if each is not cls and names & set(map(last_name, each.bases)):
            names.add(each.name)
            yield each


def _set_by_name(module: ModuleFacts, name: str) -> Iterator[Set]:
    """``setattr(model, "name", value)``; ``setattr(model, key, value)`` with ``name`` for a key."""
    named = re.search(rf"[\"']{name}[\"']|\b{name}=", module.usual) is not None
    for call in module.calls_named("setattr"):
        if not isinstance(call.func, ast.Name) or len(call.args) != 3:
            continue
        key, value = call.args[1:]
        if isinstance(key, ast.Constant):
            if key.value == name:
                yield module, value, call.lineno
        elif named:
            yield module, None, call.lineno
