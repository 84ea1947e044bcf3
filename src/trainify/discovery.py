"""Which files a command looks at."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

SKIPPED = frozenset(
    {
        ".git",
        ".hg",
        ".mypy_cache",
        ".nox",
        ".pytest_cache",
        ".ruff_cache",
        ".svn",
        ".tox",
        ".trainify_cache",
        ".venv",
        "__pycache__",
        "build",
        "dist",
        "node_modules",
        "site-packages",
        "venv",
    }
)
"""Directories that are only entered when they are named on the command line."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file to look at, as it was when it was found."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A path that cannot be looked at, and why."""

    path: str
    reason: str


def find_files(
    paths: Iterable[str], excludes: Callable[[str], bool] = lambda path: False
) -> Iterator[FoundFile | Unreadable]:
    """Yield the ``.py`` files under ``paths``, each once, in the order of their names.

    A file named in ``paths`` is taken whatever it is called and whatever ``excludes`` says, but for
    a notebook: its JSON is Python to the parser, and nothing would be found in it.
    Linked directories are not entered unless named, so that a loop of links is no loop here.
    """
    seen: set[str] = set()
    for path in paths:
        path = os.path.normpath(path)
        real = os.path.realpath(path)
        try:
            if os.path.isdir(path):
                found = _walk(path, real, excludes)
            elif path.endswith(".ipynb") and os.path.exists(path):
                yield Unreadable(path, "a notebook, not Python")
                continue
            else:
                named = os.stat(path)
                # A pipe would be waited for; those below /dev are what a shell makes.
                if not stat.S_ISREG(named.st_mode) and not path.startswith("/dev/"):
                    yield Unreadable(path, "no regular file")
                    continue
                found = iter(((path, real, named),))
            for name, real, status in found:
                if isinstance(status, OSError):
                    yield _unreadable(name, status)
                elif real not in seen:
                    seen.add(real)
                    yield FoundFile(name, status.st_size, status.st_mtime_ns)
        except (OSError, ValueError) as error:
            yield _unreadable(path, error)


def _walk(
    directory: str, real: str, excludes: Callable[[str], bool]
) -> Iterator[tuple[str, str, os.stat_result | OSError]]:
    """Yield each file's path, its path without links, and its status or why there is none."""
    try:
        with os.scandir(directory) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        yield directory, real, error
        return
    prefix = "" if directory == "." else os.path.join(directory, "")
    for entry in entries:
        name = entry.name
        path = prefix + name
        real_path = os.path.join(real, name)
        try:
            if entry.is_dir(follow_symlinks=False):
                if name not in SKIPPED and not excludes(path):
                    yield from _walk(path, real_path, excludes)
            # Emacs locks an edited file by a dangling link with this prefix.
            elif name.endswith(".py") and not name.startswith(".#") and not excludes(path):
                if entry.is_symlink():
                    real_path = os.path.realpath(path)
                status = entry.stat()
                if stat.S_ISREG(status.st_mode):
                    yield path, real_path, status
        except OSError as error:
            yield path, real_path, error


def _unreadable(path: str, error: OSError | ValueError) -> Unreadable:
    reason = error.strerror if isinstance(error, OSError) else None
    if os.path.islink(path) and isinstance(error, FileNotFoundError):
        reason = "broken link"
    return Unreadable(path, reason or str(error))
