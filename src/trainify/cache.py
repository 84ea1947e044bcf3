"""Remembering between runs what there was to report.

A file that no pass needs to read stays so until it changes.  What was found in a file that was read
may also rest on other files, whose functions it calls; so this is believed only while every file of
the run, and every other file that was read for it, is unchanged.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from . import __version__
from .findings import Edit, Finding, Fix, Related, Safety

if TYPE_CHECKING:
    from .discovery import FoundFile
    from .engine import FileReport

FOLDER = ".trainify_cache"

_RECENT_NS = 2_000_000_000
"""A file changed this recently may change again without its time or size showing it."""


class _Verdict(IntEnum):
    IRRELEVANT = 0
    READ = 1
    LOOK_AGAIN = 2


_Stamp = list[int]
"""Size and time of change; ``[]`` where there is none to trust."""


class Cache:
    """What is remembered for one combination of paths and settings."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._now = time.time_ns()
        self._fingerprint = _fingerprint()
        self._files: dict[str, _Stamp] = {}
        self._verdicts: dict[str, int] = {}
        self._findings: dict[str, list[Finding]] = {}
        self._old_others: dict[str, _Stamp] = {}

    @classmethod
    def for_run(cls, paths: Sequence[str], settings: object) -> Cache | None:
        """The cache next to the project's root; None outside of a project.

        Single files are not worth remembering: a commit hook names others each time.
        """
        from .config import common_folder, find_upwards

        if not all(map(os.path.isdir, paths)):
            return None
        root = find_upwards(common_folder(paths), "pyproject.toml", "setup.py", ".git")
        if root is None:
            return None
        key = repr((os.getcwd(), tuple(paths), settings))
        return cls(os.path.join(root, FOLDER, f"{_digest(key)}.json"))

    def known(self, files: Iterable[FoundFile]) -> dict[str, list[Finding]]:
        """The paths, out of ``files``, that need not be looked at, and what was found there."""
        self._files = {file.path: self._stamp(file.size, file.mtime_ns) for file in files}
        old = self._load()
        try:
            if old["fingerprint"] != self._fingerprint:
                return {}
            stamps: dict[str, _Stamp] = old["files"]
            verdicts: dict[str, int] = old["verdicts"]
            others: dict[str, _Stamp] = old["others"]
            same = {
                path for path, stamp in self._files.items() if stamp and stamps.get(path) == stamp
            }
            believed = _Verdict.IRRELEVANT
            findings: dict[str, list[Finding]] = {}
            if len(same) == len(stamps) == len(self._files) and others == self._stamps(others):
                believed = _Verdict.READ
                findings = {p: list(map(_finding, found)) for p, found in old["findings"].items()}
            known = {path: verdicts[path] for path in same if verdicts[path] <= believed}
        except (AttributeError, KeyError, TypeError, ValueError):
            return {}  # not something that we wrote
        if believed is _Verdict.READ:
            self._old_others = others
        self._verdicts, self._findings = known, findings
        return {path: findings.get(path, []) for path in known}

    def saw(self, file: FoundFile, report: FileReport | None) -> None:
        """Note what looking at ``file`` gave."""
        if report is None:
            verdict = _Verdict.IRRELEVANT
        elif report.problem:
            verdict = _Verdict.LOOK_AGAIN
        else:
            verdict = _Verdict.READ
            if report.findings:
                self._findings[file.path] = report.findings
        self._verdicts[file.path] = verdict

    def store(self, others: Iterable[str]) -> None:
        """Write it down; where that is not possible, the next run just takes longer."""
        extra = self._stamps({path for path in others if path not in self._files})
        data = {
            "fingerprint": self._fingerprint,
            "files": self._files,
            "verdicts": self._verdicts,
            "findings": {p: list(map(asdict, found)) for p, found in self._findings.items()},
            "others": {**self._old_others, **extra},
        }
        folder = os.path.dirname(self.path)
        temporary = f"{self.path}.{os.getpid()}"
        try:
            if not os.path.isdir(folder):
                os.mkdir(folder)
                with open(os.path.join(folder, ".gitignore"), "w", encoding="ascii") as file:
                    file.write("*\n")
            with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(json.dumps(data, ensure_ascii=False, separators=(",", ":")))
            os.replace(temporary, self.path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def _load(self) -> Any:
        try:
            with open(self.path, encoding="utf-8", errors="surrogateescape") as file:
                return json.load(file)
        except (OSError, ValueError, RecursionError):
            return {}

    def _stamps(self, paths: Iterable[str]) -> dict[str, _Stamp]:
        stamps: dict[str, _Stamp] = {}
        for path in paths:
            try:
                status = os.stat(path)
                stamps[path] = self._stamp(status.st_size, status.st_mtime_ns)
            except OSError:
                stamps[path] = []
        return stamps

    def _stamp(self, size: int, mtime_ns: int) -> _Stamp:
        return [size, mtime_ns] if mtime_ns < self._now - _RECENT_NS else []


def _finding(written: dict[str, Any]) -> Finding:
    """The inverse of ``asdict``."""
    fixes = {
        strategy: Fix(
            fix["title"],
            tuple(Edit(**edit) for edit in fix["edits"]),
            Safety(fix["safety"]),
            fix["look_at"],
            fix["only_copies"],
            fix["makes_properties"],
        )
        for strategy, fix in written["fixes"].items()
    }
    related = tuple(Related(**each) for each in written["related"])
    return Finding(**{**written, "fixes": fixes, "related": related})


def _fingerprint() -> str:
    """Changes with trainify, its rules and Python, also while trainify itself is being edited."""
    parts: list[object] = [__version__, sys.version_info[:3]]
    for folder, folders, names in os.walk(os.path.dirname(__file__)):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                status = os.stat(os.path.join(folder, name))
                parts.append((name, status.st_size, status.st_mtime_ns))
    return _digest(repr(parts))


def _digest(text: str) -> str:
    from hashlib import blake2b

    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
