"""The text of C++ and CUDA: its functions, their parameters, and the calls in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Parameter(NamedTuple):
    type: str
    name: str


class Function(NamedTuple):
    unit: int
    name: str
    parameters: tuple[Parameter, ...]
    start: int
    end: int
    """Where its body begins and ends, in the text of the unit."""


_TOKEN = re.compile(
    r'R"(?P<mark>\w*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
    r"|//[^\n]*|/\*.*?\*/|^[ \t]*#(?:\\\r?\n|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
_NOT_LINE = re.compile(r"[^\n]")


def blank(text: str, *, strings: bool) -> str:
    def instead(match: re.Match[str]) -> str:
        found = match[0]
        if found[0] in "\"'R":
            if not strings:
                return found
            return '"' + _NOT_LINE.sub(" ", found[1:-1]) + '"'
        return _NOT_LINE.sub(" ", found)

    return _TOKEN.sub(instead, text)


_BRACKETS = {"(": re.compile(r"[()]"), "{": re.compile(r"[{}]")}


def close(text: str, opened: int) -> int:
    """Where the bracket ends that begins at a place; the end of the text where it does not."""
    if opened < 0 or text[opened] not in _BRACKETS:
        return len(text)
    depth = 0
    for bracket in _BRACKETS[text[opened]].finditer(text, opened):
        depth += 1 if bracket[0] in "({" else -1
        if depth == 0:
            return bracket.start()
    return len(text)


def split(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts between commas that stand in no bracket."""
    depth, begun = 0, start
    for sign in re.compile(r"[][(){}<>,]").finditer(text, start, end):
        if sign[0] in "([{<":
            depth += 1
        elif sign[0] in ")]}":
            depth -= 1
        elif sign[0] == ">":
            depth -= text[sign.start() - 1] != "-"
        elif depth <= 0:
            yield begun, sign.start()
            begun = sign.end()
    if text[begun:end].strip():
        yield begun, end


def _before_template(text: str, at: int) -> str:
    """The name that stands before ``<float><<<``."""
    before = text[:at].rstrip()
    if before.endswith(">"):
        depth = 0
        for index in range(len(before) - 1, -1, -1):
            depth += {">": 1, "<": -1}.get(before[index], 0)
            if depth == 0:
                before = before[:index].rstrip()
                break
    named = re.search(r"(\w+)$", before)
    return named[1] if named else ""


def calls(text: str) -> Iterator[tuple[str, int, int]]:
    """The calls and launches in a text: what is called, its arguments' bracket, and its place."""
    for match in _CALL.finditer(text):
        if match[1] not in _WORDS:
            yield match[1], match.end() - 1, match.start()
    for match in _LAUNCH.finditer(text):
        closed = text.find(">>>", match.end())
        opened = text.find("(", closed)
        if closed >= 0 and opened >= 0 and not text[closed + 3 : opened].strip():
            yield _before_template(text, match.start()), opened, match.start()


_WORDS = frozenset("if for while switch catch return sizeof decltype alignas defined".split())
_HEAD = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_BEFORE_BODY = re.compile(r"\s*(?:(?:const|noexcept|override|final)\s*)*(?:->[\w\s:<>,&*]+?)?\{")


def functions(unit: int, text: str) -> Iterator[Function]:
    at = 0
    while (match := _HEAD.search(text, at)) is not None:
        at = match.end()
        if match[1] in _WORDS:
            continue
        closed = close(text, match.end() - 1)
        body = _BEFORE_BODY.match(text, closed + 1)
        if body is None:
            continue
        end = close(text, body.end() - 1)
        given = parameters(text[match.end() : closed])
        yield Function(unit, match[1], given, body.end() - 1, end)
        at = end


def parameters(text: str) -> tuple[Parameter, ...]:
    found = []
    for start, end in split(text, 0, len(text)):
        declared = re.sub(r"\[\s*\w*\s*\]\s*$", "", text[start:end].partition("=")[0].strip())
        name = re.search(r"(\w+)$", declared)
        kind = declared[: name.start()] if name else declared
        found.append(Parameter(kind.strip(), name[1] if name and kind.strip() else ""))
    return tuple(found)


_LAUNCH = re.compile(r"<<<")
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*(?:<[^<>;(){}]*>)?\s*\(")
