"""The extensions that ``pyproject.toml``, CMake and Meson name.

Only what is said plainly is read: targets whose names and sources are written out, in CMake also
those of a variable that is set to some.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .extension import Extension
from .sources import Files, pattern_of

if TYPE_CHECKING:
    from ..project import Project


def built_by(project: Project, folder: str) -> Iterator[Extension]:
    """What these files in a folder say, where there are some."""
    for name, read in (("pyproject.toml", _setuptools), ("meson.build", _meson)):
        if Path(folder, name).is_file():
            text = project.content(Path(folder, name)).decode(errors="replace")
            for module, sources in read(text):
                yield Extension(module, Files(project, folder, filter(None, sources)))
    lists = Path(folder, "CMakeLists.txt")
    if lists.is_file():
        for module, sources in _Lists(project, lists).targets():
            yield Extension(module, Files(project, folder, filter(None, sources)))


def _setuptools(text: str) -> Iterator[tuple[str, list[str]]]:
    """``[tool.setuptools] ext-modules = [{name = "pkg._C", sources = [...]}]``."""
    if "ext-modules" not in text:
        return
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        modules = tomllib.loads(text).get("tool", {}).get("setuptools", {}).get("ext-modules", ())
    except (tomllib.TOMLDecodeError, AttributeError):
        return
    for each in modules if isinstance(modules, list) else ():
        known = each if isinstance(each, dict) else {}
        name, sources = known.get("name"), known.get("sources")
        if isinstance(name, str) and isinstance(sources, list):
            yield name, [pattern_of(source) for source in sources if isinstance(source, str)]


_MESON = re.compile(r"\.extension_module\s*\(\s*'([\w.]+)'([^()]*)")
_QUOTED = re.compile(r"'([^'\n]*)'")


def _meson(text: str) -> Iterator[tuple[str, list[str]]]:
    """``py.extension_module('_C', 'norm.cpp')``, ``files('norm.cpp')`` in it as well."""
    plain = re.sub(r"#[^\n]*|\bfiles\s*\(([^()]*)\)", lambda match: match[1] or "", text)
    for name, rest in _MESON.findall(plain):
        yield name, [pattern_of(source) for source in _QUOTED.findall(rest)]


_COMMAND = re.compile(r"^[ \t]*(\w+)\s*\(([^()]*)\)", re.MULTILINE)
_MODULES = re.compile(
    r"pybind11_add_module|nanobind_add_module|(?:python\d?_)?add_library"
    r"|define_(?:gpu_)?extension_target"  # of vLLM, and of those that build like it
)
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_MAX_LISTS = 8
_MAX_DEPTH = 4


class _Lists:
    """A ``CMakeLists.txt``, and those of the folders that it adds."""

    def __init__(self, project: Project, path: Path) -> None:
        self._variables: dict[str, list[str]] = {}
        self._commands: list[tuple[str, list[str]]] = []
        pending = [path]
        for each in pending:  # grows meanwhile
            text = project.content(each).decode(errors="replace")
            for command, given in _COMMAND.findall(re.sub(r"#[^\n]*", "", text)):
                words = given.replace('"', " ").split()
                self._commands.append((command.lower(), words))
                if command.lower() == "add_subdirectory" and len(pending) < _MAX_LISTS:
                    if words and (inner := each.parent / words[0] / path.name).is_file():
                        pending.append(inner)
        for command, words in self._commands:
            self._assign(command, words)

    def _assign(self, command: str, words: list[str]) -> None:
        values = self._variables
        if command == "set" and len(words) > 1:
            values[words[0]] = words[1:]
        elif command == "list" and words[:1] == ["APPEND"] and len(words) > 2:
            values.setdefault(words[1], []).extend(words[2:])
        elif command == "file" and words and words[0].startswith("GLOB") and len(words) > 2:
            values[words[1]] = words[2:]
        elif command == "project" and words:
            values["PROJECT_NAME"] = words[:1]

    def targets(self) -> Iterator[tuple[str, list[str]]]:
        """The names that Python imports targets by, or loads their operators by, and sources."""
        made_of: dict[str, list[str]] = {}
        linked: dict[str, list[str]] = {}
        for command, words in self._commands:
            names = list(self._expanded(words[0])) if len(words) > 1 else []
            rest = [each for word in words[1:] for each in self._expanded(word)]
            if len(names) != 1:
                continue
            if _MODULES.fullmatch(command) or command == "target_sources":
                made_of.setdefault(names[0], []).extend(map(pattern_of, rest))
            elif command == "target_link_libraries":
                linked.setdefault(names[0], []).extend(rest)
        for name, sources in made_of.items():
            others = [s for library in linked.get(name, ()) for s in made_of.get(library, ())]
            yield name, [*sources, *others]

    def _expanded(self, word: str, depth: int = 0) -> Iterator[str]:
        """A word with what its variables are set to in their places."""
        variable = _VARIABLE.fullmatch(word)
        if variable is not None and depth < _MAX_DEPTH:
            for value in self._variables.get(variable[1], ()):
                yield from self._expanded(value, depth + 1)
        else:
            yield word
