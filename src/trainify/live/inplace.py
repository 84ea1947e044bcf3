"""Functions that stay the objects they are and run other code: what is beside a model's modules.

A helper is held under many names: imports, tables, closures, attributes.  All of them see its new
code, and all of them see the old one again when the last model that needs the new one is restored.
"""

from __future__ import annotations

import ast
import importlib
from itertools import zip_longest
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from . import decorators
from .reach import Member
from .rewritten import Definition, Refused
from .shared import Shared


class InPlace(Shared):
    """A function that runs other code, wherever it is held."""

    def __init__(self, member: Member, old: Definition, new: Definition) -> None:
        super().__init__()
        self.function = member.function
        self.old, self.new = old, new
        if len(new.code.co_freevars) != len(old.code.co_freevars):
            raise Refused(f"{self.function.__qualname__} would close over other names")
        self._defaults = decorators.defaults(self.function, old, new)
        self._cells = decorators.rescoped(member.value, old, new, self.function)
        self._before: list[Any] = []

    def hold(self, owner: nn.Module) -> None:
        other = _changed.get(self.function)
        if other is not None and other is not self:
            here, there = _first_difference(self.new, other.new)
            raise Refused(
                f"{self.function.__module__}.{self.function.__qualname__} becomes `{here}` for "
                f"{type(owner).__qualname__}, and is `{there}` for {other.owners}; restore that "
                "model first"
            )
        super().hold(owner)

    def change(self) -> None:
        function = self.function
        self._before = [cell.cell_contents for cell, _ in self._cells]
        self._old_code = function.__code__
        self._old_defaults = function.__defaults__, function.__kwdefaults__
        _changed[function] = self
        function.__code__ = self.new.code
        function.__defaults__, function.__kwdefaults__ = self._defaults
        for cell, contents in self._cells:
            cell.cell_contents = contents

    def undo(self) -> None:
        function = self.function
        del _changed[function]
        function.__code__ = self._old_code
        function.__defaults__, function.__kwdefaults__ = self._old_defaults
        for copy in decorators.copies_of(function):
            copy.__code__ = self._old_code
        for (cell, _), contents in zip(self._cells, self._before, strict=True):
            cell.cell_contents = contents


_changed: dict[FunctionType, InPlace] = {}
"""The functions that run other code at the moment."""

_all_in_place: dict[tuple[FunctionType, str], InPlace] = {}


def is_changed(function: FunctionType) -> bool:
    """Whether a function runs other code at the moment."""
    return function in _changed


def _first_difference(one: Definition, other: Definition) -> tuple[str, str]:
    """The first lines in which two definitions differ; the last where one is longer."""
    lines = [ast.unparse(each.node).splitlines() for each in (one, other)]
    pairs = zip_longest(*lines, fillvalue="")
    here, there = next(pair for pair in pairs if pair[0] != pair[1])
    return here.strip(), there.strip()


def in_place(member: Member, old: Definition, new: Definition) -> InPlace:
    """The one change of a function to what says the same, however many modules hold it."""
    key = (member.function, ast.dump(new.node))
    if key not in _all_in_place:
        _all_in_place[key] = InPlace(member, old, new)
    return _all_in_place[key]


def original_code(function: FunctionType) -> CodeType:
    """A function's code as it was imported."""
    changed = _changed.get(function)
    return function.__code__ if changed is None else changed.old.code


# -- finding them by name -------------------------------------------------------------------------


def name_of(member: Member) -> str:
    """``module:qualified.name``; with a number where a function has made several of that name."""
    name = f"{member.function.__module__}:{member.function.__qualname__}"
    if member.owner is None and ("<locals>" in name or member.function.__closure__):
        return f"{name}@{id(member.function):x}"
    return name


known: dict[str, Member] = {}
"""The functions beside modules that were found, by name."""


def helper(name: str) -> Member:
    """A function by its name; of a module that may not have been imported yet."""
    if name not in known:
        module, _, qualified = name.partition(":")
        owner, _, attribute = qualified.rpartition(".")
        try:
            holder: Any = importlib.import_module(module)
            for part in filter(None, owner.split(".")):
                holder = vars(holder)[part]
            value = vars(holder)[attribute]
        except (ImportError, KeyError, TypeError):
            raise Refused(f"there is no {module}.{qualified} any more") from None
        function = decorators.innermost(value)
        if function is None:
            raise Refused(f"{module}.{qualified} is no function any more")
        known[name] = Member(holder if owner else None, attribute, value, function)
    return known[name]
