"""Settings from ``[tool.trainify]`` in ``pyproject.toml``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from .catalog import FusedOp
from .catalog.own import OpError, own_op, registered
from .engine import FLAGS, Options
from .findings import STRATEGIES
from .releases import LIBRARIES, Release, assumed_version, find_releases


class ConfigError(Exception):
    """A mistake in a configuration file; ``line`` is 0 when not known."""

    def __init__(self, path: str, message: str, line: int = 0) -> None:
        super().__init__(path, message, line)
        self.path = path
        self.message = message
        self.line = line

    def __str__(self) -> str:
        return (
            f"{self.path}:{self.line}: {self.message}"
            if self.line
            else f"{self.path}: {self.message}"
        )


@dataclass(frozen=True, slots=True)
class Config:
    """The settings that apply to a run; ``root`` is where their patterns start from."""

    options: Options = field(default_factory=Options)
    exclude: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    root: str = ""

    def options_for(self, path: str, options: Options) -> Options:
        """``options`` less the rules that are ignored in this file."""
        ignored = tuple(
            code
            for pattern, codes in self.per_file_ignores
            if _matches(pattern, path, self.root)
            for code in codes
        )
        return replace(options, ignore=options.ignore + ignored) if ignored else options

    def excludes(self, path: str) -> bool:
        """Whether a file or folder found on the way is to be passed over."""
        return any(_matches(pattern, path, self.root) for pattern in self.exclude)


def _matches(pattern: str, path: str, root: str) -> bool:
    """A pattern with a slash is held against the path from ``root``, others against each part."""
    relative = os.path.relpath(path, root or ".").replace(os.sep, "/")
    pattern = pattern.rstrip("/")
    if "/" not in pattern:
        return any(fnmatchcase(part, pattern) for part in relative.split("/"))
    pattern = pattern.removeprefix("./")
    below = f"{pattern}/*"
    return any(fnmatchcase(p, q) for p in (relative, f"/{relative}") for q in (pattern, below))


# -- finding the file -----------------------------------------------------------------------------


def common_folder(paths: Iterable[str]) -> str:
    """The deepest folder that holds all of ``paths``."""
    folders = [
        path if os.path.isdir(path) else os.path.dirname(path)
        for path in map(os.path.abspath, paths)
    ]
    try:
        return os.path.commonpath(folders)
    except ValueError:  # none given, or on different drives
        return os.getcwd()


def find_upwards(folder: str, *names: str) -> str | None:
    """The nearest folder, from ``folder`` upwards, that holds one of ``names``."""
    while True:
        if any(os.path.exists(os.path.join(folder, name)) for name in names):
            return folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def load_config(paths: Iterable[str]) -> Config:
    """Read the nearest ``pyproject.toml`` above ``paths`` that has a ``[tool.trainify]`` table."""
    start = common_folder(paths)
    folder: str | None = start
    while folder and (folder := find_upwards(folder, "pyproject.toml")):
        path = os.path.join(folder, "pyproject.toml")
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            raise ConfigError(_shown(path), f"cannot read: {error.strerror}") from None
        if b"trainify" in data:
            table = _table(data, _shown(path))
            if table is not None:
                config = _parse(table, _shown(path), folder, data.decode())
                break
        parent = os.path.dirname(folder)
        folder = parent if parent != folder else None
    else:
        config = Config()
    releases = find_releases(start, settled=config.options.releases)
    return replace(config, options=replace(config.options, releases=releases))


def _shown(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _table(data: bytes, path: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        tool = tomllib.loads(data.decode()).get("tool", {})
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(path, "not UTF-8", line) from None
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"line (\d+)", str(error))
        raise ConfigError(path, f"not valid TOML: {error}", int(place[1]) if place else 0) from None
    return tool.get("trainify") if isinstance(tool, dict) else None


# -- reading the table ----------------------------------------------------------------------------


class _Mistake(Exception):
    """What is wrong with a value, and the key below the setting's own where that is.

    In an array of tables ``index`` is the table's.
    """

    def __init__(self, message: str, *, below: str = "", index: int | None = None) -> None:
        super().__init__(message)
        self.below = below
        self.index = index


def _choice(*choices: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise _Mistake(f"must be one of {', '.join(map(repr, choices))}")
        return value

    return read


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Mistake("must be true or false")
    return value


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _Mistake("must be a list of strings")
    return tuple(value)


def _codes(value: object) -> tuple[str, ...]:
    codes = _strings(value)
    for code in codes:
        if not is_code(code):
            raise _Mistake(f"no rule has the code {code!r}")
    return codes


def _codes_by_pattern(value: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(value, dict):
        raise _Mistake("must be a table of patterns, each with a list of codes")
    found = []
    for pattern, codes in value.items():
        try:
            found.append((pattern, _codes(codes)))
        except _Mistake as mistake:
            raise _Mistake(str(mistake), below=pattern) from None
    return tuple(found)


def _ops(value: object) -> tuple[FusedOp, ...]:
    """The user's ops: those of the file, then those that were registered."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise _Mistake("must be an array of tables: [[tool.trainify.ops]]")
    found: list[FusedOp] = []
    names: dict[str, int] = {}
    for index, fields in enumerate(value):
        try:
            op = own_op(fields)
        except OpError as error:
            raise _Mistake(error.message, below=error.field, index=index) from None
        for name in op.names:
            if names.setdefault(name, index) != index:
                message = f"{name!r} is the name of ops[{names[name]}] too"
                raise _Mistake(message, below="names", index=index)
        found.append(replace(op, source=op.source or "pyproject.toml"))
    return (*found, *registered())


def _releases(value: object) -> tuple[Release, ...]:
    """Releases that are stated here, and need not be looked for: ``vllm==0.8.5``."""
    found = []
    for text in _strings(value):
        library = re.match(r"[\w.-]*", text)
        assert library is not None
        specifier = text[library.end() :].replace(" ", "")
        if library[0] not in LIBRARIES:
            known = ", ".join(LIBRARIES)
            raise _Mistake(f"releases of {library[0]!r} make no difference; those do of: {known}")
        if not specifier or assumed_version(specifier, ()) is None:
            raise _Mistake(f"{specifier!r} is no version specifier, like '==0.8.5' or '>=0.6,<0.9'")
        found.append(Release(library[0], specifier, "pyproject.toml"))
    return tuple(found)


def is_code(prefix: str) -> bool:
    """Whether any rule's code starts so."""
    from . import passes

    return bool(prefix) and any(code.startswith(prefix) for code in passes.all_rules())


_OPTIONS: Mapping[str, Callable[[object], Any]] = {
    "strategy": _choice(*STRATEGIES),
    "flag": _choice(*FLAGS),
    "unsafe": _boolean,
    "select": _codes,
    "ignore": _codes,
    "ops": _ops,
    "releases": _releases,
}


def read_options(values: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields of :class:`Options` that are right, and what is wrong with the others, by name."""
    options: dict[str, Any] = {}
    mistakes: dict[str, str] = {}
    for key, value in values.items():
        if key not in _OPTIONS:
            mistakes[key] = f"unknown; known are {', '.join(_OPTIONS)}"
            continue
        try:
            options[key] = _OPTIONS[key](value)
        except _Mistake as mistake:
            mistakes[key] = str(mistake)
    return options, mistakes


_SETTINGS: Mapping[str, Callable[[object], Any]] = {
    **_OPTIONS,
    "exclude": _strings,
    "per-file-ignores": _codes_by_pattern,
}


def _parse(table: object, path: str, root: str, text: str) -> Config:
    """The settings of a table."""
    if not isinstance(table, dict):
        raise ConfigError(path, "tool.trainify must be a table", _line(text, "trainify"))
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _SETTINGS:
            from difflib import get_close_matches

            near = get_close_matches(key, _SETTINGS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(_SETTINGS)}"
            raise ConfigError(path, f"tool.trainify.{key}: unknown key{hint}", _line(text, key))
        try:
            values[key.replace("-", "_")] = _SETTINGS[key](value)
        except _Mistake as mistake:
            name, below = f"tool.trainify.{key}", mistake.below
            if mistake.index is not None:
                name = ".".join(filter(None, (f"{name}[{mistake.index}]", below)))
                line = _line_in_table(text, key, mistake.index, below)
            else:
                name = ".".join(filter(None, (name, below and repr(below))))
                line = _line(text, key, below)
            raise ConfigError(path, f"{name}: {mistake}", line) from None
    options = Options(**{key: values.pop(key) for key in _OPTIONS if key in values})
    return Config(options, root=root, **values)


def _line(text: str, *keys: str) -> int:
    """The line of the last of ``keys``, each looked for below the one before it."""
    line = 0
    lines = text.splitlines()
    for index, content in enumerate(lines):
        if re.match(r"\s*\[+\s*tool\s*\.\s*[\"']?trainify\b", content):
            line = index
            break
    for key in filter(None, keys):
        here = re.compile(rf"(?<![\w-])[\"']?{re.escape(key)}[\"']?\s*[=\]]")
        line = next((i for i in range(line, len(lines)) if here.search(lines[i])), line)
    return line + 1


def _line_in_table(text: str, array: str, index: int, key: str) -> int:
    """The line of ``key`` in one of an array of tables, else that of the table itself."""
    lines = text.splitlines()
    header = re.compile(rf"\s*\[\[\s*tool\s*\.\s*[\"']?trainify[\"']?\s*\.\s*{array}\s*\]\]")
    tables = [number for number, content in enumerate(lines) if header.match(content)]
    if index >= len(tables):  # written as one value: ops = [{ ... }]
        return _line(text, array)
    entry = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=") if key else header
    for number in range(tables[index], len(lines)):
        if number > tables[index] and re.match(r"\s*\[", lines[number]):
            break
        if entry.match(lines[number]):
            return number + 1
    return tables[index] + 1
