"""The route *source*: the functions that a model runs, as ``trainify fix`` would leave them.

The same engine as the command line's reads the files that the model's classes come from.  Of what
it would write, the functions that change are compiled and put where the model runs them: methods of
its modules by a class of their own for these modules (:mod:`.swap`), other functions and methods in
place, for everybody, until the last model that needs them is restored.  No file is written.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

from ..findings import Finding
from . import decorators
from .reach import Member, members, reached
from .rewritten import Definition, Refused, Rewritten, Settings, source_of
from .shared import Shared
from .swap import Plan, become, plan_of, swapped, without


@dataclass(frozen=True)
class Found:
    """What there is to rewrite in a model, and what is not rewritten.

    ``remaining`` was found in the model's files and has no fix that takes effect, ``refused`` says
    why functions could not be looked at.
    """

    plan: Plan
    remaining: tuple[Finding, ...] = ()
    refused: tuple[str, ...] = ()


def find(model: nn.Module, settings: Settings, held: Iterable[object] = ()) -> Found:
    """What ``trainify fix`` would change of the functions that a model's modules run.

    ``held`` are objects that the model is called with, whose methods it runs too.
    """
    found = reached(model, held)
    refused: dict[str, None] = {}
    sources: dict[Rewritten, None] = {}
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            refused[f"{module.original_name}: what torch.jit compiled has no source that runs"] = (
                None
            )

    def changes(member: Member) -> bool:
        try:
            source = source_of(_code(member.function), settings)
            sources[source] = None
            return source.of(member.function, _code(member.function)) is not None
        except Refused as reason:
            if not _is_generated(member.function):
                refused[str(reason)] = None
            return False

    methods = {_name(member): None for member in found.methods if changes(member)}
    helpers = {_name(member): member for member in found.helpers if changes(member)}
    _helpers.update(helpers)
    return Found(
        Plan(settings, tuple(methods), tuple(helpers)),
        tuple(finding for source in sources for finding in source.remaining),
        tuple(refused),
    )


def apply(model: nn.Module, plan: Plan) -> None:
    """Change the modules of a model that a plan concerns; all of them or, with an error, none.

    Raises :class:`~.rewritten.Refused` where a changed function cannot be put in its place.
    """
    restore(model)
    done: list[nn.Module] = []
    root = unwrapped(model)
    try:
        for module in list(model.modules()):
            mine = {name for cls in type(module).__mro__ for name in map(_name, members(cls))}
            methods = tuple(name for name in plan.methods if name in mine)
            if methods or (module is root and (plan.helpers or plan.ops)):
                again(module, replace(plan, methods=methods))
                done.append(module)
    except Exception:
        for module in done:
            _restore(module)
        raise
    finally:
        forget_compiled()


def again(module: nn.Module, plan: Plan) -> None:
    """Change one module as a plan says; raises :class:`~.rewritten.Refused` where it cannot be."""
    cls: type = type(module)
    prepared = _prepare(cls, plan)
    held: list[Shared] = []
    try:
        for each in prepared.shared:
            each.hold(module)
            held.append(each)
        become(module, prepared.cls)
    except Exception:
        for each in held:
            each.release(module)
        raise


def restore(model: nn.Module) -> None:
    """Give a model's modules the classes that they had, and undo what they alone needed."""
    if sum([_restore(module) for module in model.modules()]):
        forget_compiled()


def _restore(module: nn.Module) -> bool:
    found = plan_of(module)
    if found is not None:
        become(module, without(type(module)))
        for each in _prepare(*found).shared:
            each.release(module)
    return found is not None


def source_diff(model: nn.Module) -> str:
    """The change of source that a model's rewriting stands for, as a diff for ``git apply``."""
    from ..output.diff import patch_names, unified_diff

    bound: dict[Rewritten, set[str]] = {}
    for module in model.modules():
        found = plan_of(module)
        if found is not None:
            for source, name in _prepare(*found).functions:
                bound.setdefault(source, set()).add(name)
    sources = sorted(bound, key=lambda source: source.path)
    names = patch_names(source.path for source in sources)
    diffs = [unified_diff(s.change(bound[s]), names[s.path]) for s in sources]
    return b"".join(diffs).decode(errors="surrogateescape")


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own model in what torch puts around one."""
    while type(model).__module__.startswith("torch.") and len(list(model.children())) == 1:
        (model,) = model.children()
    return model


def forget_compiled() -> None:
    """Nothing that was compiled before holds any more."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


# -- from names to functions ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Prepared:
    """A class to become, what has to be held for it, and the functions that differ in it."""

    cls: type
    shared: tuple[Shared, ...]
    functions: tuple[tuple[Rewritten, str], ...]


@cache
def _prepare(cls: type, plan: Plan) -> _Prepared:
    shared: dict[Shared, None] = {}
    functions: list[tuple[Rewritten, str]] = []
    methods: dict[type, dict[str, Any]] = {}

    def change(member: Member, name: str) -> tuple[Definition, Definition]:
        source = source_of(_code(member.function), plan.settings)
        found = source.of(member.function, _code(member.function))
        if found is None:
            raise Refused(f"there is nothing to rewrite in {name.replace(':', '.')} any more")
        shared[source.names(member.function.__globals__)] = None
        functions.append((source, member.function.__qualname__))
        return found

    by_name = {_name(member): member for base in cls.__mro__ for member in members(base)}
    for name in plan.methods:
        if name not in by_name:
            raise Refused(f"{cls.__qualname__} has no {name.replace(':', '.')} any more")
        member = by_name[name]
        assert member.owner is not None
        old, new = change(member, name)
        # The names that a decorator of the new definition uses may be new themselves.
        function = decorators.renewed(member.function, old, new, member.owner)
        rewrapped = decorators.rewrap(member.value, old, new, function)
        methods.setdefault(member.owner, {})[member.name] = rewrapped
    for name in plan.helpers:
        member = _helper(name)
        old, new = change(member, name)
        shared[_in_place(member, old, new)] = None
    return _Prepared(swapped(cls, plan, methods), tuple(shared), tuple(functions))


def _name(member: Member) -> str:
    return f"{member.function.__module__}:{member.function.__qualname__}"


_helpers: dict[str, Member] = {}
"""The functions beside modules that were found, by name."""


def _helper(name: str) -> Member:
    """A function by its name; of a module that may not have been imported yet."""
    if name not in _helpers:
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
        _helpers[name] = Member(holder if owner else None, attribute, value, function)
    return _helpers[name]


def _code(function: FunctionType) -> CodeType:
    """A function's code as it was imported."""
    changed = _changed.get(function)
    return function.__code__ if changed is None else changed.old.code


def _is_generated(function: FunctionType) -> bool:
    """Whether a function was never in a file: ``__eq__`` of a dataclass, and the like."""
    return function.__code__.co_filename == "<string>" and function.__name__.startswith("__")


# -- functions that stay the objects they are -----------------------------------------------------


class _InPlace(Shared):
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

    def change(self) -> None:
        function = self.function
        if function in _changed:
            raise Refused(
                f"{function.__qualname__} is rewritten in another way for another model; "
                "restore that one first"
            )
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
        for (cell, _), contents in zip(self._cells, self._before, strict=True):
            cell.cell_contents = contents


_changed: dict[FunctionType, _InPlace] = {}
"""The functions that run other code at the moment."""

_all_in_place: dict[tuple[FunctionType, CodeType], _InPlace] = {}


def _in_place(member: Member, old: Definition, new: Definition) -> _InPlace:
    """The one change of a function to this code, however many modules hold it."""
    key = (member.function, new.code)
    if key not in _all_in_place:
        _all_in_place[key] = _InPlace(member, old, new)
    return _all_in_place[key]
