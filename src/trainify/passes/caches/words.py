"""The words without which a file is not read: writes into what may be a cache."""

from __future__ import annotations

import re

from ...facts.cached import INDEX, SETTERS, names_cache
from ...facts.words import declare, places
from .. import Look, Needle

_WRITES = (b"index_copy_(", b"index_put_(", b"].copy_(", b"self.keys[:", b"self.values[:")
_OF_CACHE = (
    *(b"cache[", b"caches[", b"CACHE[", b"CACHES[", b"cache_k[", b"cache_v[", b"_cache.view("),
    *(b"cache.k[", b"cache.v[", b"cache.keys[", b"cache.values[", b"cache.key[", b"cache.value["),
    *(b"= self.k_cache", b"= self.v_cache", b"= self.key_cache", b"= self.cache_k"),
)
_OF_BUFFER = (b"k_buffer[", b"v_buffer[")
_OF_SELF = (b"self.k[", b"self.v[", b"self.key[", b"self.value[")
_OF_OBJECT = (b".k[", b".v[", b".kv[")
_ASSIGNED, *_SET = declare(b"] = ", *(f"{name}(".encode() for name in SETTERS))
_NAME = re.compile(rb"[A-Za-z_]\w*")
_DECLARED = re.compile(rb"(?!(?:else|try|finally)\b)[\w.]+[ \t]*:")
_DEFINES_CACHE = re.compile(rb"^class \w*Cache", re.MULTILINE)
_LOCAL = re.compile(rb"(\w+)(?:\[|\.(?:\w+\(|$))")


def writes_cache(data: bytes) -> bool:
    """Whether something that may be a cache is written to, as far as a line shows."""
    return any(
        _may_be_cache(data, at, word) for word in (*_SET, _ASSIGNED) for at in places(data, word)
    )


def _may_be_cache(data: bytes, at: int, word: bytes) -> bool:
    line = data[data.rfind(b"\n", 0, at) + 1 : at].strip()
    names = [name.decode() for name in _NAME.findall(line)]
    if not names or line.startswith((b"]", b")", b".")):
        return True  # it begins on an earlier line
    if word == _ASSIGNED:
        addressed = b":" in line or b"..." in line or any(map(INDEX.search, names))
        if not addressed or _DECLARED.match(line):
            return False
    elif not line.endswith((b"].", b").") if word == b"copy_(" else b"."):
        return False
    if b".keys" in line or b".values" in line:
        return True
    if line.startswith(_OF_SELF) and _DEFINES_CACHE.search(data):
        return True
    if any(map(names_cache, names)):
        return True
    held = _HELD.match(line)
    if held is not None and re.search(_GLOBAL % (held[1], held[1], held[1]), data, re.MULTILINE):
        return True
    local = _LOCAL.match(line)
    return local is not None and re.search(_KEPT % local[1], data) is not None


_HELD = re.compile(rb"(\w+)\.[kv]\[")
_GLOBAL = rb"^%s(?:: [^\n=]+)? = |^from [^\n]*\b%s\b|\b%s = [\w.]+(?:\(\))?[ \t]*\r?$"
"""What an object is that no call made: a global, an import, or ``ctx = get_context()``."""
_KEPT = rb"%s\b[^\n=]*=[^=]{0,200}?\.\w*(?:cache|past_|buffer|kv)\w*\b(?!\()"
"""``k_out, v_out = self.k_cache, self.v_cache``."""

NEEDLES: tuple[Needle, ...] = (
    Look((*_WRITES, *_OF_CACHE, *_OF_BUFFER, *_OF_SELF, *_OF_OBJECT), writes_cache),
)
