"""What the judging process does, one request after the other.

It holds no connection and no protocol: every method takes and gives plain data.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..engine import Check, Options, fix_text, is_concerned
from ..findings import Finding
from ..source import SourceError
from ..suppressions import silenced
from .index import OpenProject
from .reparse import Parser

if TYPE_CHECKING:
    from .hover import Hovered

Roots = tuple[str, ...]


class Desk:
    """The open texts, and the project of each workspace folder."""

    def __init__(self, cancelled: Callable[[], bool] = lambda: False) -> None:
        self._cancelled = cancelled
        self._texts: dict[str, str] = {}
        self._projects: dict[Roots, OpenProject] = {}
        self._edited, self._parser = "", Parser()
        """The file that was edited last, and what parses it."""
        self._last: tuple[object, Check | None] | None = None
        """What was judged last, and how far that has come."""

    def _project(self, roots: Roots) -> OpenProject:
        if roots not in self._projects:
            self._projects[roots] = OpenProject(roots, self._texts.get)
        return self._projects[roots]

    # -- questions ------------------------------------------------------------------------------

    def judge(
        self, path: str, text: str, options: Options, roots: Roots, found_before: bool
    ) -> list[Finding]:
        """The findings in the open text of a file, without the fixes that take long.

        ``found_before`` says that there were some: a text that no longer has any must parse.
        Raises SourceError where it does not, and Cancelled.
        """
        check = self._check(path, text, options, roots)
        if check is not None:
            return check.findings(self._cancelled, plan=False)
        if found_before:
            _parse(text)
        return []

    def planned(self, path: str, text: str, options: Options, roots: Roots) -> list[Finding]:
        """The same findings, with all of their fixes."""
        check = self._check(path, text, options, roots)
        return check.findings(self._cancelled) if check is not None else []

    def _check(self, path: str, text: str, options: Options, roots: Roots) -> Check | None:
        """The check of a text; None where no pass has anything to say about it."""
        key = path, text, options, roots
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        self._last = None  # before there are two syntax trees
        if self._texts.get(path) != text:
            self._texts[path] = text
            self.changed(path)
            if self._edited != path:
                self._edited, self._parser = path, Parser()
        project = self._project(roots)
        data = text.encode(errors="replace")
        concerned = is_concerned(data, path, options, project)
        parse = self._parser.module if self._edited == path else None
        check = Check(text, path, options, project, parse) if concerned else None
        self._last = key, check
        return check

    def fixed(self, path: str, text: str, options: Options, roots: Roots) -> str | None:
        """What ``trainify fix`` makes of a text; None where it does not parse.

        Unsafe fixes are never part of it.
        """
        try:
            return fix_text(text, path, replace(options, unsafe=False), self._project(roots)).text
        except SourceError:
            return None

    def silenced(self, text: str, finding: Finding) -> str | None:
        return silenced(text, finding)

    def hovered(
        self, path: str, text: str, offset: int, options: Options, roots: Roots
    ) -> Hovered | None:
        from .hover import hovered

        return hovered(text, path, offset, options, self._project(roots))

    # -- news -----------------------------------------------------------------------------------

    def changed(self, path: str) -> None:
        """A file, or the open text in its place, is not what it was."""
        self._last = None
        for project in self._projects.values():
            project.changed(path)

    def closed(self, path: str) -> None:
        self._texts.pop(path, None)
        if self._edited == path:
            self._edited, self._parser = "", Parser()
        self.changed(path)

    def settle(self) -> None:
        """Changes are complete: what rests on other files is to be found anew."""
        self._last = None
        for project in self._projects.values():
            project.settle()

    def files_moved(self) -> None:
        """Files came or went."""
        self._last = None
        self._edited, self._parser = "", Parser()  # what a relative import means may have changed
        for project in self._projects.values():
            project.forget()


def _parse(text: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SourceError(str(error)) from None
