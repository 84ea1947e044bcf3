"""The C++ and CUDA files of an extension: what a list of sources names, and where that is."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from ..memo import once
from ..walk import walk

if TYPE_CHECKING:
    from ..module import ModuleFacts
    from ..native import Unit
    from ..project import Project

_SOURCE = re.compile(r"[\w./*?\[\]-]*\.(?:cpp|cc|cxx|cu|c?u?\*)")
_FOLDER = re.compile(r"\w[\w./-]*")
_UPWARDS = re.compile(r"^(.*(\}|%s)|\.{0,2})/+|(?<=/)\.{1,2}/")
"""What a path begins with that does not show, or leads out of the folder: ``{here}/../``."""
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_PASSED_OVER = frozenset({"build", "dist", "node_modules", "third_party", "3rdparty", "cutlass"})
_MAX_FILES = 20_000
_MAX_ABOVE = 4
_MAX_BYTES = 4_000_000
"""More source text than this is not read for one extension."""


def pattern_of(text: str) -> str:
    """The source that a text names, as far as the name of a file shows; empty for other texts."""
    named = _UPWARDS.sub("", text.strip())
    return named if _SOURCE.fullmatch(named) else ""


def patterns_in(module: ModuleFacts, node: ast.expr) -> Sequence[str]:
    """The sources that an expression names, as far as the names of files show: ``norm.cu``.

    Where it names none, those in the folders that it names: a function looks for them there.
    """
    texts = list(_texts_in(module, node))
    found = [pattern for text in texts if (pattern := pattern_of(text))]
    folders = (_UPWARDS.sub("", text).rstrip("/") for text in texts)
    return found or [f"{each}/*.c*" for each in folders if _FOLDER.fullmatch(each)]


def _texts_in(module: ModuleFacts, node: ast.expr, depth: int = 0) -> Iterator[str]:
    for part in walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and depth < 4:
            for value in values_of(module).get(part.id, ()):
                yield from _texts_in(module, value, depth + 1)


@once
def values_of(module: ModuleFacts) -> Mapping[str, list[ast.expr]]:
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


class Files:
    """The files below a folder that patterns mean, and what they include of the project."""

    def __init__(self, project: Project, folder: str, patterns: Iterable[str]) -> None:
        self._project = project
        self._folder = folder
        self._patterns = tuple(patterns)

    def __iter__(self) -> Iterator[Unit]:
        from .. import native

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


def files_around(module: ModuleFacts, patterns: Iterable[str]) -> Files:
    """The same, below the folder, from that of a file upwards, below which all of them stand."""
    wanted = tuple(patterns)
    folder = above = os.path.dirname(os.path.abspath(module.path))
    for _ in range(_MAX_ABOVE):
        files = _files_below(above)
        if all(_meant(files, pattern) for pattern in wanted):
            folder = above
            break
        if above == os.path.dirname(above) or os.path.exists(os.path.join(above, ".git")):
            break
        above = os.path.dirname(above)
    return Files(module.project, folder, wanted)


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
