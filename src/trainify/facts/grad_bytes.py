"""What the bytes of a file show of grad modes: the cheap half of each pass's prefilter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from .words import declare, places

MODES = declare(b"no_grad", b"inference_mode", b"set_grad_enabled")
_NEAR = 160
_NAME = re.compile(rb"def (\w+)|class (\w+)")


@dataclass(frozen=True)
class Mention:
    """A line of code with a grad mode on it.

    ``function`` is the decorated function or class, else the one that the line stands in;
    ``before`` and ``block`` are a few lines before a ``with``, and what it holds.
    """

    kind: Literal["with", "decorator", "statement", "import"]
    mode: bytes
    line: bytes
    function: bytes
    before: bytes = b""
    block: bytes = b""


@lru_cache(maxsize=2)
def mentions(data: bytes) -> tuple[Mention, ...]:
    """Every line of code that names a grad mode; comments and doctests are none."""
    found = []
    for mode in MODES:
        end = 0
        for position in places(data, mode):
            if position < end:
                continue  # a second time on the same line
            start = data.rfind(b"\n", 0, position) + 1
            end = data.find(b"\n", position)
            end = len(data) if end < 0 else end
            mention = _mention(data, mode, start, end)
            if mention is not None:
                found.append(mention)
    return tuple(found)


def _mention(data: bytes, mode: bytes, start: int, end: int) -> Mention | None:
    line = data[start:end].strip()
    if line.startswith((b">>>", b"...", b"#")):
        return None
    if line.startswith(b"@"):
        match = _NAME.search(data, end)
        return Mention("decorator", mode, line, (match[1] or match[2]) if match else b"")
    if line.startswith((b"import ", b"from ")):
        return Mention("import", mode, line, b"")
    where = data.rfind(b"def ", 0, start)
    match = _NAME.match(data, where) if where >= 0 else None
    function = match[1] if match else b""
    if line.startswith((b"with ", b"async with ")) or b"enter_context" in line:
        before = data[max(0, start - _NEAR) : start]
        return Mention("with", mode, line, function, before, _block(data, start, end))
    return Mention("statement", mode, line, function)


def _block(data: bytes, start: int, end: int) -> bytes:
    """The lines after a ``with`` that are further in; after ``enter_context``, as far in."""
    first = data[start:end]
    indent = len(first) - len(first.lstrip())
    deeper = 0 if b"enter_context" in first else 1
    stop = end + 1
    while stop < len(data):
        line_end = data.find(b"\n", stop)
        line_end = len(data) if line_end < 0 else line_end
        line = data[stop:line_end]
        text = line.lstrip()
        if text and len(line) - len(text) < indent + deeper and not text.startswith((b")", b"#")):
            break
        stop = line_end + 1
    return data[end:stop]
