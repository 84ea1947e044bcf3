"""What a function's code reads from outside: globals, cells, imports, and attributes of modules."""

from __future__ import annotations

import dis
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from torch._ops import _OpNamespace, _Ops


class Load(NamedTuple):
    """A value that is read, under ``name``, from the module ``holder``; both may be empty."""

    holder: str
    name: str
    value: Any


def loads(function: FunctionType) -> Iterator[Load]:
    """The values that a function reads, its defaults and those of functions in it included.

    Attributes are followed from modules only, ``torch.ops`` included; nothing is run.
    """
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name, cell in cells.items():
        value = _contents(cell)
        if value is not None:
            yield Load("", name, value)
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        if value is not None:
            yield Load("", "", value)
    for code in codes(function.__code__):
        yield from _read(code, function.__globals__, cells)


def codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


@lru_cache(maxsize=4096)
def names_in(code: CodeType) -> frozenset[str]:
    """All that a function, with those in it, reads by name."""
    return frozenset(name for each in codes(code) for name in each.co_names)


def last_line(code: CodeType) -> int:
    """The last line of a function that has code."""
    return max(last for each in codes(code) for _, _, last in each.co_lines() if last)


def covers(code: CodeType, path: str, line: int) -> bool:
    """Whether a function of a file holds a line."""
    return code.co_filename == path and code.co_firstlineno <= line <= last_line(code)


# What stands between a value and what is done with it.
_SILENT = frozenset("CACHE EXTENDED_ARG NOP PRECALL PUSH_NULL RESUME SWAP POP_TOP ROT_TWO".split())


def _read(
    code: CodeType, there: Mapping[str, Any], cells: Mapping[str, CellType]
) -> Iterator[Load]:
    """Follow the instructions in their order, with the one value on top of the stack."""
    holder = str(there.get("__name__", ""))
    variables: dict[str, Any] = {}
    constants: list[Any] = [0, ()]
    imported: Any = None
    value: Any = None
    for instruction in dis.get_instructions(code):
        kind, name = instruction.opname, instruction.argval
        if kind in _SILENT:
            continue
        before, value = value, None
        if kind == "LOAD_CONST":
            constants = [constants[-1], name]
        elif kind in ("LOAD_GLOBAL", "LOAD_NAME"):
            value = there.get(name)
            if value is not None:
                yield Load(holder, name, value)
        elif kind == "IMPORT_NAME":
            level, names = constants
            value = imported = _imported(name, level, names, there.get("__package__") or "")
        elif kind in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            of = imported if kind == "IMPORT_FROM" else before
            value = _attribute(of, name)
            if value is not None:
                yield Load(of.__name__, name, value)
        elif kind == "STORE_FAST":
            variables[name] = before
        elif kind.startswith("LOAD_FAST") and isinstance(name, str):
            value = variables.get(name)
        elif kind == "LOAD_DEREF" and name in cells:
            value = _contents(cells[name])


def _imported(name: str, level: int, names: Any, package: str) -> Any:
    """What an import statement gives, of modules that are loaded."""
    try:
        name = importlib.util.resolve_name("." * level + name, package)
    except (ImportError, TypeError):
        return None
    return sys.modules.get(name if names else name.partition(".")[0])


def _attribute(value: Any, name: str) -> Any:
    if isinstance(value, (_Ops, _OpNamespace)):
        return getattr(value, name, None)
    if not isinstance(value, ModuleType):
        return None
    return vars(value).get(name, sys.modules.get(f"{value.__name__}.{name}"))


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None
