"""Which words stand in the bytes of a file, and where: the cheapest question of all.

An Aho-Corasick automaton reads a file once for all the words that any pass asks for; ``word in
data`` and patterns would read it once for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from ahocorasick_rs import BytesAhoCorasick, Implementation

_declared: dict[bytes, None] = {}


def declare(*words: bytes) -> tuple[bytes, ...]:
    """Have words looked for from now on; to be called when a module is imported."""
    _declared.update(dict.fromkeys(words))
    return words


def places(data: bytes, word: bytes) -> Sequence[int]:
    """The offsets of a declared word."""
    assert word in _declared, word
    return found(data).get(word, ())


def undeclared(data: bytes, word: bytes) -> Iterator[int]:
    """The offsets of any other word, looked for one after the other."""
    at = data.find(word)
    while at >= 0:
        yield at
        at = data.find(word, at + len(word))


_asked: tuple[bytes | None, int, Mapping[bytes, Sequence[int]]] = None, 0, {}
"""What was asked last, and its answer: a file is asked a hundred times in a row."""


def found(data: bytes) -> Mapping[bytes, Sequence[int]]:
    """The declared words that stand in ``data``, each with its offsets."""
    global _asked
    last, declared, offsets = _asked
    if data is last and declared == len(_declared):
        return offsets
    offsets = _found(data, len(_declared))
    _asked = data, len(_declared), offsets
    return offsets


@lru_cache(maxsize=2)
def _found(data: bytes, declared: int) -> Mapping[bytes, Sequence[int]]:
    words, automaton = _automaton(declared)
    offsets: dict[bytes, list[int]] = {}
    for number, start, _ in automaton.find_matches_as_indexes(data, overlapping=True):
        offsets.setdefault(words[number], []).append(start)
    return offsets


@lru_cache(maxsize=1)
def _automaton(declared: int) -> tuple[list[bytes], BytesAhoCorasick]:
    words = list(_declared)
    return words, BytesAhoCorasick(words, implementation=Implementation.DFA)
