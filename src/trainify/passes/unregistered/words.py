"""By the bytes of a file: whether it puts what could be fresh modules into a list or dict."""

from __future__ import annotations

import re

from ...facts.words import declare, places

_MADE = rb"(?:\w+\.)*[A-Z]\w*\("
_KEY = rb"(?:[^{}:\n]|\{[^{}\n]*\})*"
"""The key of a dict; an f-string has braces in it."""


def _assigned(made: bytes) -> re.Pattern[bytes]:
    return re.compile(
        rb"= (?:"
        rb"\[(?:[\s\[({]|#[^\n]*\n)*" + made + rb"|"
        rb"\(" + made + rb"[^\n]*\), ?" + made + rb"|"
        rb"\{" + _KEY + rb"(?:\n" + _KEY + rb")?:[\s\[(]*" + made + rb"|"
        rb"(?:list|tuple)\([\s\[(]*(?:map\(lambda[^:\n]*: ?)?" + made + rb"|"
        rb"(?:\w+\.)?(?:d|OrderedD)ict\([^\n]*\n?[^\n]*?" + made + rb"|"
        rb"(?<=\] = )[\[({]?" + made + rb")"
    )


_ASSIGNED = _assigned(_MADE)
"""``= [Layer(``, ``= (Layer(...), Layer(``, ``= {"a": Layer(``, the same made by ``list(``,
``tuple(`` and ``dict(``, and what follows ``x[i] = ``."""
*ASSIGNS, APPENDS = declare(
    *(b"= [", b"= (", b"= {", b"= list(", b"= tuple(", b"= dict(", b"= OrderedDict("),
    *(b"= collections.OrderedDict(", b"] = ", b".append("),
)
ADDED, DEFAULTS = declare(b" + [", b".setdefault(")
_ADDED = re.compile(rb" \+ \[[\s\[({]*" + _MADE)
_IN_OTHER = re.compile(rb"\s*(self\.\w+) = \1$")
_DEFAULT = re.compile(rb"\.setdefault\([^\n,]+, *" + _MADE)
_APPENDED = re.compile(rb"\.append\((?:[\s\[({]*" + _MADE + rb"|(\w+)\))")
_IN_ATTRIBUTE = re.compile(rb"\s*self\.\w+(?:\s*:[^=]*)?\s*\+?$")
_ADDED_TO = re.compile(rb"((?:self\.)?\w+)(?:\[.*)?$")
_EMPTY = (b"[]", b"{}", b"list()", b"dict()", b"OrderedDict()")


def may_hide_modules(data: bytes) -> bool:
    """Whether a file puts what could be fresh modules into a list or dict of an object."""
    if b"nn" not in data or b"Module" not in data:
        return False
    held: dict[bytes, bool] = {}

    def is_held(line: bytes) -> bool:
        holder = _ADDED_TO.search(line)
        if holder is None:
            return False
        name = holder[1]
        if name not in held:
            held[name] = _is_held(data, name)
        return held[name]

    for at in (place + word.index(b"=") for word in ASSIGNS for place in places(data, word)):
        if not _assigns(data, at):
            continue
        if not _in_plain_class(data, at):
            line = _line_before(data, at)
            if _IN_ATTRIBUTE.match(line) or (line.endswith(b"] ") and is_held(line)):
                return True
    for at in places(data, APPENDS):
        match = _APPENDED.match(data, at)
        if match and is_held(_line_before(data, at)):
            if match[1] is None or _is_made(data, match[1]):
                return True
    if any(
        _DEFAULT.match(data, at) and is_held(_line_before(data, at))
        for at in places(data, DEFAULTS)
    ):
        return True
    return any(
        _ADDED.match(data, at) and _IN_OTHER.match(_line_before(data, at))
        for at in places(data, ADDED)
    )


_CALLED = _assigned(rb"([a-z_]\w*)\(")
_RETURNS = re.compile(rb"\n[ \t]+return (?:\w+\.)*[A-Z]\w*\(")
_NEAR = 2000
"""Bytes after the head of a function within which it returns a module."""


def _assigns(data: bytes, at: int) -> bool:
    """Whether modules are put into a list or dict there, or what a function of the file makes."""
    if _ASSIGNED.match(data, at):
        return True
    match = _CALLED.match(data, at)
    if match is None or match.lastindex is None:
        return False
    body = data.find(b"\ndef %s(" % match[match.lastindex])
    return body >= 0 and _RETURNS.search(data, body, body + _NEAR) is not None


def _in_plain_class(data: bytes, at: int) -> bool:
    """Whether a place is in a class without bases, which is no module."""
    begin = data.rfind(b"\nclass ", 0, at)
    nested = data.find(b" class ", begin, at) >= 0
    return begin >= 0 and not nested and _WITHOUT_BASES.match(data, begin) is not None


_WITHOUT_BASES = re.compile(rb"\nclass \w+(?:\(\))?:")


def _line_before(data: bytes, place: int) -> bytes:
    return data[data.rfind(b"\n", 0, place) + 1 : place]


def _is_made(data: bytes, name: bytes) -> bool:
    return re.search(rb" %s = %s" % (re.escape(name), _MADE), data) is not None


def _is_held(data: bytes, name: bytes) -> bool:
    """Whether a name begins as an empty list or dict, and is an attribute or becomes one."""
    if not name.startswith(b"self.") and b" = %s\n" % name not in data:
        return False
    if any(b"%s = %s" % (name, empty) in data for empty in _EMPTY):
        return True
    return b"collections.OrderedDict()" in data or b"%s: " % name in data
