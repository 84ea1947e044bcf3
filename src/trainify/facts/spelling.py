"""The bytes of a file as most files are spelled.

What a file may hold is told by its bytes, before it is parsed, and what is looked for has the
spaces that PEP 8 asks for.  Few files are spelled otherwise, so it is they that are put right.
"""

from __future__ import annotations

import re
from functools import lru_cache

_PLACE = rb"[\w.]+(?:\[[^\]\n]*\][\w.]*)*"
# A pattern that begins with letters is found fastest, so each is one of its own.
_TIGHT = (re.compile(rb"self\.\w+[-+*/@|&]?=[^=\s]"), re.compile(rb"\][-+*/@|&]?=[^=\s]"))
"""Assignments without spaces, which are no arguments by name."""
_APART = re.compile(rb"def \w+ \(")
"""Parentheses that stand apart, as they then do everywhere."""
_ASSIGNED = re.compile(
    rb"^([ \t]*%s(?:, ?%s)*(?::[^=\n]*[^=\s])?) ?([-+*/@|&]?=)(?!=)[ \t]*" % (_PLACE, _PLACE),
    re.MULTILINE,
)
_KEYWORD = (
    rb"if|elif|while|for|in|is|not|and|or|return|yield|assert|await|lambda|else|import|del|raise"
)
_CALLED = re.compile(rb"\b(?!(?:%s|except|with|print|case|match|from|as)\b)(\w+) +\(" % _KEYWORD)
_OPENED = re.compile(rb"\( +(?=\S)")
_CLOSED = re.compile(rb"(?<=\S) +\)")


@lru_cache(maxsize=2)  # asked for a file by several, and for one beside it
def usual(data: bytes) -> bytes:
    """What a file is looked through for; it may be of another length."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"( " in data:
        data = _CLOSED.sub(b")", _OPENED.sub(b"(", data))
    if _APART.search(data):
        data = _CALLED.sub(rb"\1(", data)
    if any(each.search(data) for each in _TIGHT):
        data = _ASSIGNED.sub(rb"\1 \2 ", data)
    return data


def usual_text(text: str) -> str:
    """The same of text, that is of another length then: for words, not for places."""
    data = text.encode(errors="replace")
    found = usual(data)
    return text if found == data else found.decode(errors="replace")
