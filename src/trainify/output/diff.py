"""Unified diffs that plain ``git apply`` takes, from any encoding and any line ending."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import AnyStr

from ..config import common_folder, find_upwards
from ..source import Change

Opcode = tuple[str, int, int, int, int]
"""As in :mod:`difflib`: a tag, a range of old lines, a range of new lines."""


def opcodes(old: Sequence[AnyStr], new: Sequence[AnyStr]) -> list[Opcode]:
    """What turns ``old`` into ``new``; quick where only a few lines in a large file differ."""
    shorter = min(len(old), len(new))
    head = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    tail = next((i for i in range(shorter - head) if old[-1 - i] != new[-1 - i]), shorter - head)
    inner = SequenceMatcher(
        None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False
    )
    codes: list[Opcode] = [("equal", 0, head, 0, head)] if head else []
    codes += (
        (tag, a + head, b + head, c + head, d + head) for tag, a, b, c, d in inner.get_opcodes()
    )
    if tail:
        codes.append(("equal", len(old) - tail, len(old), len(new) - tail, len(new)))
    return codes


def hunks(codes: Sequence[Opcode], context: int) -> Iterator[list[Opcode]]:
    """Group what changes with up to ``context`` equal lines around it."""
    hunk: list[Opcode] = []
    for index, (tag, a, b, c, d) in enumerate(codes):
        if tag != "equal":
            hunk.append((tag, a, b, c, d))
            continue
        leads, follows = index + 1 < len(codes), index > 0
        if leads and follows and b - a <= 2 * context:
            hunk.append((tag, a, b, c, d))
            continue
        size = min(context, b - a)
        if follows:
            hunk.append((tag, a, a + size, c, c + size))
            yield hunk
            hunk = []
        if leads:
            hunk.append((tag, b - size, b, d - size, d))
    if hunk:
        yield hunk


def unified_diff(change: Change, name: str, context: int = 3) -> bytes:
    """A change as git would show it, for a file that is called ``name`` from the top."""
    old, new = _lines(change.before), _lines(change.after)
    a, b = _quoted(f"a/{name}"), _quoted(f"b/{name}")
    # As git does: a tab ends a name that holds a blank.
    tab = b"\t" if b" " in a else b""
    pieces = [b"diff --git %s %s\n--- %s%s\n+++ %s%s\n" % (a, b, a, tab, b, tab)]
    for hunk in hunks(opcodes(old, new), context):
        first, last = hunk[0], hunk[-1]
        spans = (_span(first[1], last[2]), _span(first[3], last[4]))
        pieces.append(b"@@ -%s +%s @@\n" % spans)
        for tag, i, j, k, m in hunk:
            if tag == "equal":
                pieces += (_marked(b" ", line) for line in old[i:j])
            else:
                pieces += (_marked(b"-", line) for line in old[i:j])
                pieces += (_marked(b"+", line) for line in new[k:m])
    return b"".join(pieces)


def _lines(data: bytes) -> list[bytes]:
    """Lines with their ends; for git only a line feed ends one."""
    lines = data.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def _marked(sign: bytes, line: bytes) -> bytes:
    if line.endswith(b"\n"):
        return sign + line
    return sign + line + b"\n\\ No newline at end of file\n"


def _span(start: int, end: int) -> bytes:
    size = end - start
    first = start + 1 if size else start
    return b"%d" % first if size == 1 else b"%d,%d" % (first, size)


_ESCAPES = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r"}
_ESCAPES |= {ord('"'): b'\\"', ord("\\"): b"\\\\"}


def _quoted(name: str) -> bytes:
    """A path as git writes it: in quotes, C style, where it is not plain ASCII."""
    raw = os.fsencode(name)
    if all(32 <= byte < 127 and byte not in _ESCAPES for byte in raw):
        return raw
    escaped = (
        _ESCAPES.get(byte) or (bytes((byte,)) if 32 <= byte < 127 else b"\\%03o" % byte)
        for byte in raw
    )
    return b'"%s"' % b"".join(escaped)


def patch_names(paths: Iterable[str]) -> dict[str, str]:
    """What each file is called in a patch: its path from the top of its git work tree.

    Outside of any work tree that is the path from the current folder or, for files elsewhere, from
    the folder that holds them all.
    """
    real = {path: os.path.realpath(path) for path in paths}
    tops: dict[str, str | None] = {}
    here = os.path.realpath(os.getcwd())
    outside = common_folder([here, *real.values()])
    outside = here if outside == here else common_folder(real.values())
    names: dict[str, str] = {}
    for path, target in real.items():
        folder = os.path.dirname(target)
        if folder not in tops:
            tops[folder] = find_upwards(folder, ".git")
        names[path] = os.path.relpath(target, tops[folder] or outside).replace(os.sep, "/")
    return names


class LineMap:
    """Where a line of the new text stood in the old one."""

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        self._codes = opcodes(old, new)
        self._starts = [code[3] for code in self._codes]

    def old_line(self, line: int) -> int:
        """For a line that is new, the place where it was put."""
        if not self._codes:
            return line
        tag, old, _, new, _ = self._codes[max(bisect_right(self._starts, line - 1) - 1, 0)]
        return old + (line - 1 - new if tag == "equal" else 0) + 1
