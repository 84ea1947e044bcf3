"""Offsets in a text as positions of the protocol, and back."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property

from lsprotocol import types

_LINE_END = re.compile(r"\r\n|\r|\n")
Encoding = types.PositionEncodingKind


class Lines:
    """The lines of a text, which end where the protocol and Python say: not at a form feed.

    Positions count the code units of an encoding that client and server agreed on; what lies behind
    the end of a line or of the text is taken for that end.
    """

    def __init__(self, text: str, encoding: Encoding) -> None:
        self.text = text
        self.encoding = encoding

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    def line_of(self, offset: int) -> int:
        """The line that an offset is in, from 0."""
        return bisect_right(self._starts, offset) - 1

    def span(self, line: int) -> tuple[int, int]:
        """Start and end of a line, without what ends it."""
        start = self._starts[line]
        end = self._starts[line + 1] if line + 1 < len(self._starts) else len(self.text)
        while end > start and self.text[end - 1] in "\r\n":
            end -= 1
        return start, end

    def position(self, offset: int) -> types.Position:
        line = self.line_of(offset)
        return types.Position(line, _units(self.text[self._starts[line] : offset], self.encoding))

    def offset(self, position: types.Position) -> int:
        if position.line >= len(self._starts):
            return len(self.text)
        start, end = self.span(position.line)
        return start + _characters(self.text[start:end], position.character, self.encoding)

    def range(self, start: int, end: int) -> types.Range:
        return types.Range(self.position(start), self.position(end))


def _units(text: str, encoding: Encoding) -> int:
    if text.isascii() or encoding is Encoding.Utf32:
        return len(text)
    return sum(_width(character, encoding) for character in text)


def _characters(line: str, units: int, encoding: Encoding) -> int:
    """How many characters lie in front of so many units; half of one does not count."""
    if line.isascii() or encoding is Encoding.Utf32:
        return min(units, len(line))
    seen = 0
    for index, character in enumerate(line):
        seen += _width(character, encoding)
        if seen > units:
            return index
    return len(line)


def _width(character: str, encoding: Encoding) -> int:
    if encoding is Encoding.Utf8:
        return len(character.encode("utf-8", "surrogatepass"))
    return 2 if character > "\uffff" else 1
