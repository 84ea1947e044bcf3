"""What lies around a model and may keep a step's tensors: globals, cells, attributes of classes.

Only what holds them is looked at here, and only what has come to hold other tensors is put back:
a library that was loaded meanwhile, or a kernel that was compiled, stays.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Set
from contextvars import ContextVar
from operator import is_
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..loads import names_in
from ..reach import contents
from .memos import MEMO
from .tensors import PLAIN, tensors_within

_DEPTH = 4
"""How deep lists, dicts and objects are looked for in one another."""

_MOST = 4096
"""What has more in it is a vocabulary, or data."""

NOT_THEIRS = {"torch", "torchgen", "triton", "numpy", "trainify", *sys.stdlib_module_names}
NOT_THEIRS -= {"__main__"}
"""Whose functions and objects keep nothing of a model's."""

_NONE = object()
"""In the place of what is not there."""


class Where(NamedTuple):
    """A global, or an attribute of a class, that holds something."""

    name: str
    holder: str
    """The global, or the class."""
    there: Mapping[str, Any]
    """The globals of the module that has it."""

    def let_go_by(self, pattern: re.Pattern[str]) -> str:
        """A function of that module, named as the pattern has it, that names the holder."""
        for name, value in list(self.there.items()):
            if isinstance(value, FunctionType) and pattern.fullmatch(name):
                if self.holder in names_in(value.__code__):
                    return name
        return ""


class Surroundings:
    """What the functions that classes have, and those that these name, can keep something in."""

    def __init__(self, classes: Iterable[type]) -> None:
        self._globals: dict[int, _Globals] = {}
        self._attributes: list[tuple[type, dict[str, Any]]] = []
        self._cells: list[tuple[Any, Any]] = []
        self._holders: list[tuple[Any, Any]] = []
        self._seen: set[int] = set()
        self._waiting: list[FunctionType] = []
        for cls in classes:
            self._class(cls, None)
        while self._waiting:
            self._follow(self._waiting.pop())

    def put_back(self) -> None:
        """Let what has come to hold other tensors hold what it did."""
        for each in self._globals.values():
            each.put_back()
        for cls, kept in self._attributes:
            now = _held_by(cls)
            for name in now.keys() | kept.keys():
                old, new = kept.get(name, _NONE), now.get(name, _NONE)
                if old is not new and (_has_tensor(new) or _has_tensor(old)):
                    delattr(cls, name) if old is _NONE else setattr(cls, name, old)
        for cell, value in self._cells:
            if (now := _in(cell)) is not value and (_has_tensor(now) or _has_tensor(value)):
                cell.cell_contents = value
        for holder, kept in self._holders:
            if not is_same(holder, kept) and (_has_tensor(holder) or _has_tensor(kept)):
                refill(holder, kept)

    def where(self, tensor: Tensor) -> Where | None:
        """What holds a tensor that a person has a name for."""
        for each in self._globals.values():
            for name in each.names():
                if _holds(each.there.get(name), tensor):
                    return Where(name, name, each.there)
        for cls, _ in self._attributes:
            for name, value in _held_by(cls).items():
                if _holds(value, tensor):
                    there = vars(sys.modules.get(cls.__module__, object))
                    return Where(f"{cls.__name__}.{name}", cls.__name__, there)
        return None

    def _follow(self, function: FunctionType) -> None:
        names = names_in(function.__code__)
        for cell in function.__closure__ or ():
            value = _in(cell)
            if value is not _NONE:
                self._cells.append((cell, value))
                self._value(value, names)
        for value in self._read(function.__globals__, names):
            self._value(value, names)

    def _read(self, there: dict[str, Any], names: Set[str]) -> list[Any]:
        """What globals stand for, those of these names that there are."""
        if id(there) not in self._globals:
            self._globals[id(there)] = _Globals(there)
        return self._globals[id(there)].read(names)

    def _value(self, value: Any, names: Set[str]) -> None:
        """What a function reads that also reads ``names``."""
        if isinstance(value, ModuleType):
            if _is_theirs(value.__name__):
                for each in self._read(vars(value), names):
                    if not isinstance(each, ModuleType):
                        self._value(each, names)
        elif isinstance(value, type):
            self._class(value, names)
        elif isinstance(value, _FUNCTIONS):
            self._function(value)
        elif isinstance(value, ContextVar):
            self._hold(value.get(None), _DEPTH, names)
        else:
            self._hold(value, _DEPTH, names)

    def _class(self, cls: type, names: Set[str] | None) -> None:
        """A class, with those of its methods that are among ``names``; with all for None."""
        if not _is_theirs(cls.__module__) or not cls.__flags__ & _HEAP_TYPE:
            return
        if id(cls) not in self._seen:
            self._seen.add(id(cls))
            self._attributes.append((cls, held := _held_by(cls)))
            for value in held.values():
                self._hold(value, _DEPTH, names or set())
        for name, value in list(vars(cls).items()):
            if names is None or name in names:
                self._function(value)

    def _function(self, value: Any) -> None:
        """A function with all that decorators have put around it."""
        while isinstance(value, _FUNCTIONS) and id(value) not in self._seen:
            self._seen.add(id(value))
            if isinstance(value, FunctionType) and _is_theirs(value.__module__):
                self._waiting.append(value)
            if isinstance(value, property):
                value = value.fget
            else:
                value = getattr(value, "__func__", None) or getattr(value, "__wrapped__", None)

    def _hold(self, value: Any, depth: int, names: Set[str]) -> None:
        kind = type(value)
        if depth < 0 or kind in PLAIN or isinstance(value, (Tensor, nn.Module, type, ModuleType)):
            return
        if isinstance(value, _FUNCTIONS):
            self._function(value)
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if kind in _HOLDERS:
            if len(value) > _MOST:
                return
            self._holders.append((value, value.copy()))
            inner = contents(value)
        elif isinstance(value, (tuple, frozenset)):
            inner = iter(value)
        elif _is_theirs(kind.__module__) and isinstance(getattr(value, "__dict__", None), dict):
            self._class(kind, names)
            self._hold(value.__dict__, depth, names)
            return
        else:
            return
        for each in list(inner):
            self._hold(each, depth - 1, names)


class _Globals:
    """The globals of a module that functions read, and those that they may yet make."""

    def __init__(self, there: dict[str, Any]) -> None:
        self.there = there
        self._values: dict[str, Any] = {}
        self._absent: set[str] = set()

    def read(self, names: Set[str]) -> list[Any]:
        """What those of these names stand for that are there."""
        found = names & self.there.keys()
        self._absent.update(names - found)
        values = [self.there[name] for name in found]
        for name, value in zip(found, values, strict=True):
            if not isinstance(value, (ModuleType, FunctionType, type)):
                self._values[name] = value
        return values

    def names(self) -> set[str]:
        """Those that stand for something that may hold a tensor."""
        return self._values.keys() | (self._absent & self.there.keys())

    def put_back(self) -> None:
        there = self.there
        for name in self._absent & there.keys():
            if _has_tensor(there[name]):
                del there[name]
        for name, value in self._values.items():
            now = there.get(name, _NONE)
            if now is not value and (_has_tensor(now) or _has_tensor(value)):
                there[name] = value


_FUNCTIONS = (FunctionType, MethodType, staticmethod, classmethod, property, MEMO)

_HOLDERS = {list, dict, set, deque, OrderedDict, defaultdict}
"""What others derive from these may import a library when it is copied, or gone through."""

_HEAP_TYPE = 1 << 9
"""CPython's flag for classes that were made at run time."""


def _is_theirs(module: Any) -> bool:
    return isinstance(module, str) and module.partition(".")[0] not in NOT_THEIRS


def _held_by(cls: type) -> dict[str, Any]:
    """What a class holds by itself, less what it does."""
    return {
        name: value
        for name, value in vars(cls).items()
        if name[:2] != "__" and not callable(value) and not hasattr(type(value), "__get__")
    }


def _in(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty still
        return _NONE


def _has_tensor(value: Any, depth: int = 3) -> bool:
    return any(True for _ in tensors_within(value, depth, set(), _MOST))


def is_same(holder: Any, kept: Any) -> bool:
    """Whether a list, dict, set or deque holds the very things that its copy does."""
    if isinstance(holder, dict):
        return holder.keys() == kept.keys() and all(map(is_, holder.values(), kept.values()))
    if isinstance(holder, set):
        return bool(holder == kept)
    return len(holder) == len(kept) and all(map(is_, holder, kept))


def refill(holder: Any, kept: Any) -> None:
    """Let it hold what its copy does, in place."""
    holder.clear()
    (holder.extend if isinstance(holder, (list, deque)) else holder.update)(kept)


def _holds(value: Any, tensor: Tensor) -> bool:
    if isinstance(value, (nn.Module, ModuleType)):
        return False
    return any(each is tensor for each in tensors_within(value, _DEPTH, set(), _MOST))
