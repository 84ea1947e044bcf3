"""The extensions that a file compiles and loads: ``load`` and ``load_inline``."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ..memo import once
from ..names import last_name
from ..walk import walk
from .extension import Extension
from .sources import files_around, pattern_of, patterns_in, values_of

if TYPE_CHECKING:
    from ..module import ModuleFacts
    from ..native import Unit
    from ..project import Project

_LOAD = re.compile(rb"\bload(?:_inline)?\(")
_LOADS = ("torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline")


def loaded_around(project: Project, path: str) -> tuple[Extension, ...]:
    """What the files around one compile and load, whose operators all of them may call."""
    return tuple(each for found in project.summaries(path, loaded_in, may_load) for each in found)


def may_load(data: bytes) -> bool:
    """Whether a file may load an extension, told by its bytes."""
    return b"cpp_extension" in data and _LOAD.search(data) is not None


def tells_loads(data: bytes, _: str) -> bool:
    """The same, as a question that a project asks each file once."""
    return may_load(data)


@once
def loaded_in(module: ModuleFacts) -> tuple[Extension, ...]:
    """All extensions that a file compiles and loads."""
    return tuple(loaded(module, call) for call in sorted(loads(module), key=_line))


def _line(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


@once
def loads(module: ModuleFacts) -> frozenset[ast.Call]:
    """The calls that load one."""
    if "cpp_extension" not in module.usual:
        return frozenset()
    calls = (call for call in module.calls if last_name(call.func) in ("load", "load_inline"))
    return frozenset(call for call in calls if module.is_name(call.func, *_LOADS))


@once
def loaded(module: ModuleFacts, call: ast.Call) -> Extension:
    """The extension that one of these calls loads."""
    given = _given(module, call)
    if last_name(call.func) == "load":
        made_of = given.get("sources")
        patterns = patterns_in(module, made_of) if made_of is not None else ()
        return Extension("", files_around(module, patterns))
    texts = [given.get(name) for name in ("sources", "cpp_sources", "cuda_sources")]
    units = [unit for node in texts if node is not None for unit in _inline(module, node)]
    functions = given.get("functions")
    parts = walk(functions) if functions is not None and not isinstance(functions, ast.Dict) else ()
    if isinstance(functions, ast.Dict):
        parts = iter([key for key in functions.keys if key is not None])
    names = [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]
    return Extension("", units, names)


def _given(module: ModuleFacts, call: ast.Call) -> Mapping[str, ast.expr]:
    """What a call passes, by name; also what it unpacks of a dict that shows."""
    given: dict[str, ast.expr] = dict(zip(("name", "sources"), call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg is not None:
            given[keyword.arg] = keyword.value
            continue
        values: Iterable[ast.expr] = [keyword.value]
        if isinstance(keyword.value, ast.Name):
            values = values_of(module).get(keyword.value.id, ())
        for value in values:
            if isinstance(value, ast.Dict):
                keys = (getattr(key, "value", None) for key in value.keys)
                named = zip(keys, value.values, strict=True)
                given |= {key: each for key, each in named if isinstance(key, str)}
            elif isinstance(value, ast.Call) and last_name(value.func) == "dict":
                given |= {k.arg: k.value for k in value.keywords if k.arg is not None}
    return given


def _inline(module: ModuleFacts, node: ast.expr, depth: int = 0) -> Iterator[Unit]:
    """The C++ texts that stand in Python, and those of files that it reads."""
    from .. import native

    pending: list[ast.AST] = [node]
    while pending:
        part = pending.pop(0)
        text = _text(part)
        if text is not None:
            pattern = pattern_of(text)
            if pattern and "\n" not in text:
                yield from files_around(module, [pattern])
            else:
                line = getattr(part, "lineno", 1)
                yield native.Unit(os.path.basename(module.path), text, line)
            continue
        pending += [n for n in ast.iter_child_nodes(part) if isinstance(n, (ast.expr, ast.keyword))]
        if depth >= 3:
            continue
        if isinstance(part, ast.Name):
            for value in values_of(module).get(part.id, ()):
                yield from _inline(module, value, depth + 1)
        if isinstance(part, (ast.Name, ast.Attribute)):
            for target in module.resolve(part):
                yield from _of_other_file(module, target.name, depth + 1)


def _text(node: ast.AST) -> str | None:
    """A text, with a name in each place that an f-string leaves open."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "_" for part in node.values)
    return None


def _of_other_file(module: ModuleFacts, qualified: str, depth: int) -> Iterator[Unit]:
    """The texts of a constant of another file: ``pkg.sources.NORM``."""
    owner, _, name = qualified.rpartition(".")
    path = module.project.find_module(module, owner) if owner else None
    other = module.project.load(path) if path is not None else None
    if other is not None and owner != module.module_name:
        for value in values_of(other).get(name, ()):
            yield from _inline(other, value, depth)
