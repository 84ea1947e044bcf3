"""The part of a file's rewriting that some of its functions need."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..facts.walk import walk
from ..output.diff import opcodes


@dataclass(frozen=True)
class Span:
    """A function of the old text: its lines, decorators included, and whether it is rewritten."""

    first: int
    last: int
    wanted: bool


def partial(
    before: str, after: str, spans: Sequence[Span], new: Iterable[ast.AST], added: list[ast.stmt]
) -> str:
    """The old text with the new functions in place of those that are wanted, and what these need.

    Args:
        before: The old text.
        after: The new one.
        spans: The functions of the old text.
        new: What becomes of those that are wanted.
        added: The statements of the new text that the old one does not have.
    """
    text = _joined(before, after, spans, added, _needed(new, added))
    return text if _compiles(text) else _joined(before, after, spans, added, added)


def _joined(
    before: str,
    after: str,
    spans: Sequence[Span],
    added: Iterable[ast.stmt],
    needed: Sequence[ast.stmt],
) -> str:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    beside = {line for node in added for line in _lines(node, new)}
    without = {line for node in added if node not in needed for line in _lines(node, new)}
    lines: list[str] = []
    for tag, a, b, c, d in opcodes(old, new):
        if tag == "equal":
            lines += old[a:b]
            continue
        first = a + (a == b)  # what is put before a function, as a decorator, is part of it
        around = [each for each in spans if each.first - 1 < max(b, first) and a < each.last]
        if around and a == b:  # unless it is a definition of its own
            while c < d and c + 1 in beside:
                lines += new[c : c + 1] if c + 1 not in without else []
                c += 1
        if around:
            lines += new[c:d] if any(each.wanted for each in around) else old[a:b]
            continue
        taken = [line for number, line in enumerate(new[c:d], c + 1) if number not in without]
        while _empty(taken) > _empty(new[c:d]):  # before something that is left out
            taken.pop()
        if len(taken) < d - c:
            lines += old[a:b]  # an import that was given another name
        lines += taken
    return "".join(lines)


def _empty(lines: Sequence[str]) -> int:
    """How many lines without text these end in."""
    return next((n for n, line in enumerate(reversed(lines)) if line.strip()), len(lines))


def _needed(new: Iterable[ast.AST], added: Iterable[ast.stmt]) -> list[ast.stmt]:
    """What functions use of the statements, and what these use of them."""
    names = set().union(*map(_names, new))
    rest, needed = list(added), []
    while found := [node for node in rest if not names.isdisjoint(_defined(node))]:
        needed += found
        rest = [node for node in rest if node not in found]
        names.update(*map(_names, found))
    return needed


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in walk(node) if isinstance(each, ast.Name)}


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    else:
        yield from _names(node)


def _lines(node: ast.stmt, text: Sequence[str]) -> range:
    """The lines of a definition, with the empty ones after it."""
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
    last = node.end_lineno or node.lineno
    while last < len(text) and not text[last].strip():
        last += 1
    return range(first, last + 1)


def _compiles(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
