"""Which functions the modules of a model run: a call graph by name, through what is loaded."""

from __future__ import annotations

import builtins
import functools
import itertools
import sys
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from torch import nn
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket

from ..catalog import FusedOp, lookup
from ..catalog.own import registered
from .decorators import innermost, layers
from .loads import codes, covers, loads

CONSTRUCTORS = ("__init__", "__new__")
_ENTRIES = ("forward", "__call__")
_NOT_FOLLOWED = frozenset({"torch", "torchgen", "triton", "numpy", "trainify", "builtins"})


@dataclass(frozen=True, eq=False)
class Member:
    """A function that is reached, and where it is held: ``value`` under ``name`` of ``owner``.

    ``value`` is the function with what decorators made of it.  Without an ``owner`` it is a
    function of a module.
    """

    owner: type | None
    name: str
    value: Any
    function: FunctionType


@dataclass(frozen=True)
class Reached:
    """``methods`` are those of the classes of a model's modules, ``helpers`` all others.

    A method that something beside its own module holds, as a table or a hook does, is a helper: it
    stays the function that it is, whatever class the module gets.

    ``kernels`` are the functions that the catalog knows, by ``module:name``, ``ops`` the registered
    ops (``namespace::name``) that are read by name in any of all these functions.
    """

    methods: tuple[Member, ...]
    helpers: tuple[Member, ...]
    kernels: dict[str, Kernel]
    ops: frozenset[str]


@dataclass(frozen=True, eq=False)
class Kernel:
    """A function that the catalog knows, and its row."""

    function: Any
    row: FusedOp
    ops: frozenset[str]
    """The registered ops in it: one that it wraps, say."""


def reached(model: nn.Module, held: Iterable[object] = ()) -> Reached:
    """What a model's modules may run, beginning with ``forward``, so far as names show it.

    Names are followed through globals, closures, local imports, attributes of modules, and the
    classes of what modules hold and of ``held``.  The functions of torch and of the standard
    library are not followed, nor those that the catalog knows as fused ops, nor what a class of the
    model's modules is constructed by: these are there, and constructors name all that a library has
    (the layers of every method of adapting, say, to choose one).
    """
    graph = _Graph()
    for module in model.modules():
        graph.built.update(type(module).__mro__)
        graph.module(type(module))
        for name, value in vars(module).items():
            if isinstance(value, MethodType) and value.__self__ is module:
                graph.method(value)
            elif name not in _OF_STATE:
                graph.value(value)
                graph.wrappers(value)
    for value in held:
        graph.value(value)
    graph.grow()
    own = tuple(
        member
        for cls in graph.classes
        if issubclass(cls, nn.Module)
        for member in members(cls)
        if member.name not in CONSTRUCTORS
        and member.function not in graph.held
        and _is_followed(member.function)
    )
    mine = {member.function for member in own}
    return Reached(
        own,
        tuple(m for m in graph.found.values() if m.function not in mine),
        graph.kernels,
        frozenset(graph.ops.union(*(kernel.ops for kernel in graph.kernels.values()))),
    )


_OF_STATE = frozenset({"_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
                       "_load_state_dict_post_hooks"})  # fmt: skip
"""Where a module holds hooks that run when its state is saved or loaded, and in no step."""


def members(cls: type) -> Iterator[Member]:
    """The methods that a class itself defines."""
    for name, value in list(vars(cls).items()):
        function = None if isinstance(value, type) else innermost(value)
        if function is not None:
            yield Member(cls, name, value, function)


class _Graph:
    def __init__(self) -> None:
        self.names: set[str] = set(_ENTRIES)
        self.classes: dict[type, None] = {}
        self.built: set[type] = set()
        """The classes whose instances are there, and are modules."""
        self.found: dict[FunctionType, Member] = {}
        self.kernels: dict[str, Kernel] = {}
        self.ops: set[str] = set()
        self.held: set[FunctionType] = set()
        """Methods of modules that others hold, bound."""
        self._siblings = _Packages()
        self._waiting: list[FunctionType] = []
        self._seen: set[int] = set()

    def grow(self) -> None:
        """Follow names until there are no new ones."""
        before = (-1, -1, -1)
        while before != (now := (len(self.names), len(self.classes), len(self.found))):
            before = now
            for cls in list(self.classes):
                for member in members(cls):
                    if self._runs(cls, member.name):
                        if not self.has_kernel(member.value, "", ""):
                            self._add(member)
            while self._waiting:
                self._follow(self._waiting.pop())

    def _runs(self, cls: type, name: str) -> bool:
        """Whether what is read so far may run a method of a class.

        A module that is not there yet is constructed where its class is read, and is given others.
        """
        if name in CONSTRUCTORS and issubclass(cls, nn.Module):
            return cls not in self.built
        return name in self.names or name == "backward"

    def module(self, cls: type) -> None:
        for each in cls.__mro__:
            if _is_followed(each) and each not in self.classes:
                self.classes[each] = None
                self._annotated(each)

    def _annotated(self, of: FunctionType | type) -> None:
        """The classes of what a function is called with, or an instance holds, as it says."""
        try:
            hints = typing.get_type_hints(of, localns=self._siblings[of.__module__])
        except Exception:  # whatever an annotation may raise
            return
        waiting: list[Any] = list(hints.values())
        while waiting:
            hint = waiting.pop()
            waiting += typing.get_args(hint)
            if isinstance(hint, type):
                self.module(hint)

    def value(self, value: object, depth: int = 2) -> None:
        """What a module or an input holds."""
        if id(value) in self._seen or isinstance(value, nn.Module):
            return
        if isinstance(value, _CALLABLE):
            self._named("", "", value)
        elif isinstance(value, MethodType):
            self.method(value)
            function = innermost(value)
            if function is not None and isinstance(value.__self__, nn.Module):
                self.held.add(function)
            self.value(value.__self__, depth)
        elif isinstance(value, (dict, list, tuple)):
            for each in _elements(value):
                self.value(each, depth)
        elif depth and _is_followed(type(value)):
            self._seen.add(id(value))
            self.module(type(value))
            for each in _attributes(value):
                self.value(each, depth - 1)

    def wrappers(self, value: object) -> None:
        """The functions that a module's own code has put around others, on this module alone."""
        for layer in list(layers(value))[:-1] if isinstance(value, FunctionType) else ():
            if isinstance(layer, FunctionType) and layer.__closure__:
                if _root(layer.__globals__.get("__name__")) != "torch":
                    self._add(Member(None, layer.__name__, layer, layer))

    def method(self, value: MethodType) -> None:
        """A method of an object, or any function that was bound to it by hand."""
        self.module(type(value.__self__))
        self.names.add(getattr(value, "__name__", ""))
        self._named("", "", value.__func__)

    def _named(self, holder: str, name: str, value: object) -> None:
        """What is read in a function, from the module ``holder`` if that is known."""
        if isinstance(value, type):
            self.module(value)
        elif isinstance(value, (OpOverload, OpOverloadPacket)):
            self.ops.add(_op_name(value))
        elif isinstance(value, CustomOpDef):
            self.ops.add(value._qualname)
        elif isinstance(value, MethodType):
            self.value(value)
        elif isinstance(value, functools.partial):
            for each in (value.func, *value.args, *value.keywords.values()):
                self._named("", "", each)
        elif isinstance(value, (dict, list, tuple)):
            self._table(value)
        elif isinstance(value, (FunctionType, BuiltinFunctionType)):
            function = innermost(value)
            if self.has_kernel(value, holder, name) or function is None:
                return
            if "<locals>" not in function.__qualname__ and "." in function.__qualname__:
                return  # a method; its class is followed
            self._add(Member(None, name, value, function))
        elif isinstance(value, _CACHED):
            self._wraps(value.__wrapped__)
        elif _is_followed(type(value)):
            self.module(type(value))

    def _wraps(self, layer: Any) -> None:
        """Follow a function that stays as it is: what is around another."""
        if isinstance(layer, FunctionType) and id(layer) not in self._seen:
            self._seen.add(id(layer))
            if _is_followed(layer) and _root(layer.__globals__.get("__name__")) != "torch":
                self._waiting.append(layer)

    def _table(self, table: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> None:
        """Functions and classes in a table, and in tables of that."""
        if id(table) not in self._seen:
            self._seen.add(id(table))
            for each in _elements(table):
                if isinstance(each, (type, dict, list, tuple, *_CALLABLE)):
                    self._named("", "", each)

    def _add(self, member: Member) -> None:
        function = member.function
        if function in self.found or not _is_followed(function):
            return
        self.found[function] = member
        self._waiting.append(function)

    def has_kernel(self, value: Any, holder: str, name: str) -> bool:
        """Whether the catalog knows a function, or what is in a wrapper; else nothing is done."""
        around: list[Any] = []
        for layer in layers(value):
            if self._is_kernel(layer, *(("", "") if around else (holder, name))):
                for each in around:
                    self._wraps(each)
                return True
            around.append(layer)
        return False

    def _is_kernel(self, value: Any, holder: str, name: str) -> bool:
        """Whether the catalog knows a function by one of the names that lead to it."""
        for module, own in addresses(value, holder, name):
            row = lookup(f"{module}.{own}", registered())
            if row is not None:
                if all(kernel.function is not value for kernel in self.kernels.values()):
                    self.kernels[f"{module}:{own}"] = Kernel(value, row, _ops_in(value))
                return True
        return False

    def _follow(self, function: FunctionType) -> None:
        # What constructs calls what its bases are constructed by, and nothing else of that name.
        own = CONSTRUCTORS if function.__name__ in CONSTRUCTORS else ()
        for code in codes(function.__code__):
            self.names.update(name for name in code.co_names if name not in own)
        for load in loads(function):
            self._named(*load)
        self._annotated(function)


class _Packages(dict[str, "_Siblings"]):
    """What annotations in a module may name, by the module's name; looked up once a package."""

    def __missing__(self, module: str) -> _Siblings:
        package = module.partition(".")[0]
        if package not in self:
            self[package] = _Siblings(package)
        self[module] = self[package]
        return self[module]


class _Siblings(dict[str, Any]):
    """The classes of a package's modules: what an import for type checkers alone stands for."""

    def __init__(self, package: str) -> None:
        super().__init__()
        self._modules = [
            (path, module)
            for path, module in list(sys.modules.items())
            if path.partition(".")[0] == package and module is not None
        ]

    def __missing__(self, name: str) -> type:
        for path, module in self._modules:
            value = vars(module).get(name)
            if isinstance(value, type) and value.__module__ == path:
                return value
        raise KeyError(name)


def kernels_at(path: str, line: int, op: str) -> dict[str, Kernel]:
    """The functions that the catalog knows around a line of a file, else ``op``, that runs there.

    By ``module:name``.  What runs may have been found in an object, or by a name that is put
    together, where nothing shows it.
    """
    graph = _Graph()
    for module in list(sys.modules.values()):
        held = getattr(module, "__dict__", {})
        if held.get("__file__") != path:
            continue
        for name, value in list(held.items()):
            function = innermost(value) if isinstance(value, _CALLABLE) else None
            if function is not None and covers(function.__code__, path, line):
                graph.has_kernel(value, module.__name__, name)
    if not graph.kernels:
        holder, _, name = op.rpartition(".")
        held = getattr(sys.modules.get(holder), "__dict__", {})
        if name in held:
            graph.has_kernel(held[name], holder, name)
    return graph.kernels


def _ops_in(function: Any) -> frozenset[str]:
    if not isinstance(function, FunctionType):
        return frozenset()
    read = (load.value for load in loads(function))
    return frozenset(_op_name(v) for v in read if isinstance(v, (OpOverload, OpOverloadPacket)))


def _op_name(op: OpOverload | OpOverloadPacket) -> str:
    return str(op._qualified_op_name if isinstance(op, OpOverloadPacket) else op._schema.name)


_CACHED = type(functools.cache(_op_name))

_CALLABLE = (FunctionType, BuiltinFunctionType, functools.partial, OpOverload, OpOverloadPacket,
             CustomOpDef)  # fmt: skip


def _attributes(value: object) -> list[Any]:
    """What an instance holds, in its ``__dict__`` and in slots."""
    held = list(getattr(value, "__dict__", {}).values())
    return held + [getattr(value, name, None) for name in slots(type(value))]


def slots(cls: type) -> Iterator[str]:
    """The names of the slots that a class and its bases declare."""
    for each in cls.__mro__:
        names = vars(each).get("__slots__", ())
        yield from (names,) if isinstance(names, str) else names


def contents(table: Any) -> Iterator[Any]:
    """What a dict, list, tuple or set holds, as it lies there, whatever its class makes of that.

    A dict that is filled when somebody asks for its values would import a library.
    """
    if isinstance(table, dict):
        return iter(dict.values(table))
    if isinstance(table, list):
        return list.__iter__(table)
    return tuple.__iter__(table) if isinstance(table, tuple) else iter(table)


def _elements(table: Any) -> list[Any]:
    """The first of them: a table of functions is short, one of data need not be."""
    return list(itertools.islice(contents(table), _TABLE))


_TABLE = 256


def _is_followed(what: FunctionType | type) -> bool:
    """Whether a function or class is neither of torch nor of the standard library.

    What ``exec`` has defined says that it is of no module, or of ``builtins``.
    """
    module = what.__module__
    if module is None or module == "builtins":
        return vars(builtins).get(what.__name__) is not what and not _is_in_c(what)
    root = _root(module)
    return root not in _NOT_FOLLOWED and root not in sys.stdlib_module_names - {"__main__"}


def _root(module: Any) -> str:
    return module.partition(".")[0] if isinstance(module, str) else "builtins"


def _is_in_c(what: FunctionType | type) -> bool:
    """Whether a class was defined in C, as that of a generator is."""
    return isinstance(what, type) and not what.__flags__ & _HEAP_TYPE


_HEAP_TYPE = 1 << 9
"""CPython's flag for classes that were made at run time."""


def addresses(value: Any, holder: str, name: str) -> Iterator[tuple[str, str]]:
    """Modules, and names in them, under which a function can be found."""
    if name and holder:
        yield holder, name
    own, module = getattr(value, "__name__", ""), getattr(value, "__module__", None) or ""
    if isinstance(value, BuiltinFunctionType) and module not in sys.modules:
        yield module, own  # of an extension that load_inline() has given to who called it alone
        return
    while module:
        if vars(sys.modules.get(module, object)).get(own) is value:
            yield module, own
        module = module.rpartition(".")[0]
