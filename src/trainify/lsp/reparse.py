"""Parsing a text that is being edited: of most edits, only one statement is parsed again."""

from __future__ import annotations

import ast
from bisect import bisect_right

from ..facts import ModuleFacts, Project, parse_module
from ..facts.inside import Inside
from ..facts.module import first_line


class Parser:
    """Parses the texts that one file has, one after the other.

    A tree shares the nodes of statements at the top of the file with the tree before it, and the
    facts about a text what is known of these.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._tree = ast.Module([], [])
        self.inside = Inside()

    def module(self, text: str, path: str, project: Project | None = None) -> ModuleFacts:
        """The facts about a text, in place of those about the one before; raises what ast does."""
        return parse_module(text, path, project, self.parse, self.inside)

    def parse(self, text: str, path: str) -> ast.Module:
        """The tree of a text; takes and raises what :func:`ast.parse` does."""
        lines = text.split("\n")
        tree = self._parse_edited(lines, path) if "\r" not in text else None
        if tree is None:
            tree = ast.parse(text, path)
            self.inside.clear()
        self._tree = tree
        self._lines = lines
        return self._tree

    def _parse_edited(self, lines: list[str], path: str) -> ast.Module | None:
        """The tree of lines of which few differ from those before; None where all are to be parsed.

        Python reads a statement that begins at the start of a line by itself, and nothing moves
        while the number of lines is the same.
        """
        if len(lines) != len(self._lines):
            return None
        pairs = enumerate(zip(self._lines, lines, strict=True), 1)
        changed = [number for number, (old, new) in pairs if old != new]
        if not changed:
            return self._tree
        body = self._tree.body
        starts = [first_line(statement) for statement in body]
        first = max(bisect_right(starts, changed[0]) - 1, 0)
        behind = bisect_right(starts, changed[-1])
        while first > 0 and _end(body[first - 1]) >= starts[first]:  # x = 1; y = 2
            first -= 1
        while 0 < behind < len(body) and _end(body[behind - 1]) >= starts[behind]:
            behind += 1
        if any(":=" in self._lines[n - 1] or ":=" in lines[n - 1] for n in changed):
            return None  # what is known of functions rests on whether the file has any of these
        begin = min(starts[first], changed[0]) if body else 1
        end = starts[behind] - 1 if behind < len(body) else len(lines)
        if begin > 1 and lines[begin - 2].endswith("\\"):
            return None
        try:
            parsed = ast.parse("\n" * (begin - 1) + "\n".join(lines[begin - 1 : end]), path)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        self.inside.forget(self._tree, body[first:behind])
        return ast.Module([*body[:first], *parsed.body, *body[behind:]], [])


def _end(statement: ast.stmt) -> int:
    assert statement.end_lineno is not None
    return statement.end_lineno
