"""The extensions that a project compiles itself: by its ``setup.py``, or when they are loaded.

``CUDAExtension("pkg._C", ["csrc/norm.cu"])`` says under which name C++ is imported, and in which
files it stands; ``load(name="ext", sources=[...])`` and ``load_inline`` say it where it is used.
What the sources bind is read from them, see :mod:`.native`.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from .memo import once
from .names import last_name
from .walk import walk

if TYPE_CHECKING:
    from .module import ModuleFacts
    from .native import Effect, Sources, Unit
    from .project import Project

_LOADS = ("torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline")
_CLASSES = ("CUDAExtension", "CppExtension")
_SOURCE = re.compile(r"[\w./*?\[\]-]*\.(?:cpp|cc|cxx|cu|c?u?\*)")
_UPWARDS = re.compile(r"^(.*(\}|%s)|\.{0,2})/+|(?<=/)\.{1,2}/")
"""What a path begins with that does not show, or leads out of the folder: ``{here}/../``."""
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_PASSED_OVER = frozenset({"build", "dist", "node_modules", "third_party", "3rdparty", "cutlass"})
_MAX_FILES = 20_000
_MAX_ABOVE = 4
_MAX_BYTES = 2_000_000
"""More source text than this is not read for one extension."""


class Extension:
    """One extension; ``name`` is the dotted name of its import, empty where it has none."""

    def __init__(self, name: str, folder: str, units: Iterable[Unit], names: Iterable[str]) -> None:
        self.name = name
        self.folder = folder
        self._units = units
        self._names = names

    @cached_property
    def _sources(self) -> Sources:
        from .native import Sources  # which few projects have a use for

        return Sources(self._units, self.name.rpartition(".")[2], self._names)

    @property
    def functions(self) -> Mapping[str, Effect]:
        """What its functions do, by the names that Python calls them by."""
        return self._sources.functions

    @cached_property
    def operators(self) -> Mapping[str, Effect]:
        """The same of what it registers with the dispatcher, by ``namespace.name``."""
        return self._sources.operators


# -- by setup.py ----------------------------------------------------------------------------------


def built_around(project: Project, path: str) -> tuple[Extension, ...]:
    """The extensions of the nearest ``setup.py`` above a file that builds any."""
    folder = os.path.dirname(path)
    known = project.extensions.get(folder)
    if known is None:
        known = project.extensions[folder] = _built(project, os.path.abspath(folder))
    return known


def _built(project: Project, folder: str) -> tuple[Extension, ...]:
    known = project.extensions.get(folder)
    if known is None:
        known = tuple(_built_by(project, folder))
        above = os.path.dirname(folder)
        if not known and above != folder and not os.path.exists(os.path.join(folder, ".git")):
            known = _built(project, above)
        project.extensions[folder] = known
    return known


def _built_by(project: Project, folder: str) -> Iterator[Extension]:
    path = Path(folder, "setup.py")
    if not path.is_file():
        return
    if not any(name in project.content(path) for name in (b"CUDAExtension", b"CppExtension")):
        return
    module = project.load(path)
    if module is None:
        return
    for call in module.calls:
        if last_name(call.func) not in _callees(module):
            continue
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        named = given.get("name", call.args[0] if call.args else None)
        made_of = given.get("sources", call.args[1] if len(call.args) > 1 else None)
        name = _text(module, named)
        if name and made_of is not None:
            patterns = tuple(_patterns(module, made_of))
            yield Extension(name, folder, _Files(project, folder, patterns), ())


@once
def _callees(module: ModuleFacts) -> frozenset[str]:
    """The names of the classes of extensions, and those that a file gives them."""
    found = set(_CLASSES)
    for statement in module.statements:
        if isinstance(statement, ast.Assign):
            value = statement.value
            either = (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
            if any(last_name(each) in _CLASSES for each in either):
                found.update(t.id for t in statement.targets if isinstance(t, ast.Name))
    return frozenset(found)


def _text(module: ModuleFacts, node: ast.expr | None, depth: int = 0) -> str:
    """A text that shows: a constant, a name of one, or an f-string of such; empty otherwise."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.Name) and depth < 3:
        values = [b.value for b in module.names.visible(node)]
        return _text(module, values[0], depth + 1) if len(values) == 1 else ""
    if isinstance(node, ast.FormattedValue):
        return _text(module, node.value, depth)
    if isinstance(node, ast.JoinedStr):
        parts = [_text(module, part, depth) for part in node.values]
        return "".join(parts) if all(parts) else ""
    return ""


def _patterns(module: ModuleFacts, node: ast.expr, depth: int = 0) -> Iterator[str]:
    """The sources that an expression names, as far as the names of files show: ``norm.cu``."""
    for part in walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            named = _UPWARDS.sub("", part.value.strip())
            if _SOURCE.fullmatch(named):
                yield named
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and depth < 4:
            for value in _values(module).get(part.id, ()):
                yield from _patterns(module, value, depth + 1)


@once
def _values(module: ModuleFacts) -> Mapping[str, list[ast.expr]]:
    """What a file assigns to names, or adds to them, wherever."""
    found: dict[str, list[ast.expr]] = {}
    for statement in module.statements:
        if isinstance(statement, ast.Assign):
            names = [t.id for t in statement.targets if isinstance(t, ast.Name)]
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            names = [statement.target.id]
        else:
            continue
        for name in names:
            found.setdefault(name, []).append(statement.value)
    return found


class _Files:
    """The files below a folder that patterns mean, and what they include of the project."""

    def __init__(self, project: Project, folder: str, patterns: tuple[str, ...]) -> None:
        self._project = project
        self._folder = folder
        self._patterns = patterns

    def __iter__(self) -> Iterator[Unit]:
        from . import native

        here = _files_below(self._folder)
        pending = [file for pattern in self._patterns for file in _meant(here, pattern)]
        seen: set[str] = set()
        size = 0
        while pending:
            relative = pending.pop(0)
            if relative in seen:
                continue
            seen.add(relative)
            data = self._project.content(Path(self._folder, relative))
            size += len(data)
            if size > _MAX_BYTES:
                return
            text = data.decode("utf-8", errors="replace")
            yield native.Unit(relative, text)
            beside = os.path.dirname(relative)
            for included in _INCLUDE.findall(text):
                file = os.path.normpath(os.path.join(beside, included)).replace(os.sep, "/")
                pending += [file] if file in here else _meant(here, os.path.basename(included))


def _files_below(folder: str) -> dict[str, None]:
    """The C++ and CUDA files below a folder, relative to it, in order."""
    found: list[str] = []
    count = 0
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f[0] != "." and f not in _PASSED_OVER)
        count += len(names)
        if count > _MAX_FILES:
            break
        relative = os.path.relpath(base, folder).replace(os.sep, "/")
        prefix = "" if relative == "." else f"{relative}/"
        found += (
            prefix + name
            for name in sorted(names)
            if name.endswith((".cpp", ".cc", ".cxx", ".cu", ".cuh", ".h", ".hpp"))
        )
    return dict.fromkeys(found)


def _meant(files: dict[str, None], pattern: str) -> list[str]:
    """The files that a path means, seen from a folder that may not show."""
    if pattern in files:
        return [pattern]
    pattern = pattern.replace("**/", "*")
    globbed = any(sign in pattern for sign in "*?[")
    found = [f for f in files if fnmatchcase(f, pattern) or fnmatchcase(f, f"*/{pattern}")]
    return found if globbed or len(found) == 1 else []


# -- by load and load_inline ----------------------------------------------------------------------


def loaded_by(module: ModuleFacts, node: ast.expr) -> Extension | None:
    """The extension that an expression holds, which the file itself compiles and loads."""
    if not _loads(module):
        return None
    found = set(_made_by(module, node, 0))
    extensions = [_loaded(module, call) for call in found]
    return extensions[0] if len(extensions) == 1 else None


@once
def loaded_in(module: ModuleFacts) -> tuple[Extension, ...]:
    """All extensions that a file compiles and loads."""
    return tuple(_loaded(module, call) for call in sorted(_loads(module), key=_line))


def _line(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


@once
def _loads(module: ModuleFacts) -> frozenset[ast.Call]:
    if "cpp_extension" not in module.text:
        return frozenset()
    calls = (call for call in module.calls if last_name(call.func) in ("load", "load_inline"))
    return frozenset(call for call in calls if module.is_name(call.func, *_LOADS))


def _made_by(module: ModuleFacts, node: ast.expr, depth: int) -> Iterator[ast.Call]:
    """The calls that load what an expression may stand for."""
    if depth > 4:
        return
    if isinstance(node, ast.Call):
        if node in _loads(module):
            yield node
        elif isinstance(node.func, ast.Name):  # a function that loads it once
            for function in module.functions:
                if function.name == node.func.id:
                    for part in walk(function):
                        if isinstance(part, ast.Return) and part.value is not None:
                            yield from _made_by(module, part.value, depth + 1)
    elif isinstance(node, ast.Name):
        for binding in module.names.visible(node):
            if binding.value is not None:
                yield from _made_by(module, binding.value, depth + 1)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        cls = module.names.self_class(node.value)
        for binding in module.names.attributes(cls).get(node.attr, ()) if cls else ():
            if binding.value is not None:
                yield from _made_by(module, binding.value, depth + 1)


@once
def _loaded(module: ModuleFacts, call: ast.Call) -> Extension:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    for name, node in zip(("name", "sources"), call.args, strict=False):
        given.setdefault(name, node)
    folder = os.path.dirname(os.path.abspath(module.path))
    if last_name(call.func) == "load":
        made_of = given.get("sources")
        patterns = tuple(_patterns(module, made_of)) if made_of is not None else ()
        folder = _around(folder, patterns)
        return Extension("", folder, _Files(module.project, folder, patterns), ())
    texts = [given.get(name) for name in ("sources", "cpp_sources", "cuda_sources")]
    units = [unit for node in texts if node is not None for unit in _inline(module, node)]
    functions = given.get("functions")
    parts = walk(functions) if functions is not None and not isinstance(functions, ast.Dict) else ()
    if isinstance(functions, ast.Dict):
        parts = iter([key for key in functions.keys if key is not None])
    names = [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]
    return Extension("", folder, units, names)


def _around(folder: str, patterns: tuple[str, ...]) -> str:
    """The folder, from this one upwards, below which all sources stand; this where none is."""
    above = folder
    for _ in range(_MAX_ABOVE):
        files = _files_below(above)
        if all(_meant(files, pattern) for pattern in patterns):
            return above
        if above == os.path.dirname(above) or os.path.exists(os.path.join(above, ".git")):
            break
        above = os.path.dirname(above)
    return folder


def _inline(module: ModuleFacts, node: ast.expr, depth: int = 0) -> Iterator[Unit]:
    """The C++ texts that stand in the file itself."""
    from . import native

    for part in walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield native.Unit(os.path.basename(module.path), part.value, part.lineno)
        elif isinstance(part, ast.Name) and depth < 3:
            for value in _values(module).get(part.id, ()):
                yield from _inline(module, value, depth + 1)
