"""The words without which a file is not read: ``out=``, and writes beside what saves its result."""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import lru_cache

from ...facts import places, words
from ...facts.saved import RESULT_SAVED
from .. import Look, Needle

_FUNCTIONS = words.declare(
    *(f".{name}(".encode() for name in [*sorted(RESULT_SAVED), "leaky_relu"])
)
_OF_TENSORS = re.compile(rb"(?<!\bmath)(?<!\bself)\.")
_SAVERS = words.declare(b"LU(", b"Sigmoid(", b"Tanh(", b"Softmax(", b"Softmin(")
_HOLDS = re.compile(rb"self\.(\w+)(?:: [\w.]+)? = [\w.]*$")
_METHODS = tuple(f"{name}_(".encode() for name in [*sorted(RESULT_SAVED), "elu", "leaky_relu"])
(_APPLIED,) = words.declare(b".apply(")
(_OUT,) = words.declare(b", out=")


def _has_out(data: bytes) -> bool:
    return any(places.may_be_trained(data, at) for at in words.places(data, _OUT))


def _saves_result(data: bytes, begin: int, end: int) -> bool:
    """Whether a function, or a module that the file makes, may save its result there."""
    found = _saving(data)
    first = bisect_left(found, begin)
    return first < len(found) and found[first] < end


@lru_cache(maxsize=2)
def _saving(data: bytes) -> list[int]:
    """Where something is called that may save its result, in order."""
    found = [at for name in _modules(data) for at in words.undeclared(data, b"self.%s(" % name)]
    found += (
        at for word in _FUNCTIONS for at in words.places(data, word) if _OF_TENSORS.match(data, at)
    )
    found += (at for word in _calls_of_own(data) for at in words.undeclared(data, word))
    found += words.places(data, _APPLIED)
    return sorted(found)


@lru_cache(maxsize=2)
def _calls_of_own(data: bytes) -> frozenset[bytes]:
    """How functions and modules of the file are called that may return what was saved in them."""
    found = set()
    for word in (*_FUNCTIONS, _APPLIED):
        for at in words.places(data, word):
            line = data.rfind(b"\n", 0, at) + 1
            start = data.rfind(b"def ", 0, line)
            name = _DEFINED.match(data, start) if start >= 0 else None
            if name is None or not _is_returned(data, line):
                continue
            if name[1] != b"forward":
                found.add(b"%s(" % name[1])
                continue
            cls = _DEFINED.match(data, data.rfind(b"class ", 0, start))
            if cls is not None:
                made = re.finditer(rb"self\.(\w+) = %s\(" % cls[1], data)
                found.update(b"self.%s(" % each[1] for each in made)
    return frozenset(found)


_DEFINED = re.compile(rb"(?:def|class) (\w+)")
_BOUND = re.compile(rb"[ \t]*(\w+) = ")


def _is_returned(data: bytes, line: int) -> bool:
    """Whether a line returns something, or names what its function returns."""
    bound = _BOUND.match(data, line)
    if bound is None:
        return data[line : line + 80].lstrip().startswith(b"return ")
    end = data.find(b"def ", line)
    return data.find(b"return %s" % bound[1], line, end if end >= 0 else len(data)) >= 0


@lru_cache(maxsize=2)
def _modules(data: bytes) -> frozenset[bytes]:
    """The attributes that hold a module which may save its result."""
    made = (
        _HOLDS.search(data, data.rfind(b"\n", 0, at) + 1, at)
        for word in _SAVERS
        for at in words.places(data, word)
    )
    return frozenset(match[1] for match in made if match is not None)


def _may_concern(data: bytes) -> bool:
    return (
        places.overwrites(data, _saves_result, _METHODS)
        or places.chained(data, _saves_result, _METHODS)
        or places.in_a_row(data)
    )


NEEDLES: tuple[Needle, ...] = (Look((_OUT,), _has_out), Look(places.SIGNS, _may_concern))
