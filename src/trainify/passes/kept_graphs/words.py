"""By the bytes of a file: whether it may keep a value of one call for the next."""

from __future__ import annotations

import re

from ...facts import places, words
from ...facts.cached import names_cache
from ...facts.words import declare
from .. import Look, Needle

_REGISTERS, *_MEMOIZES = declare(
    *(b"register_buffer(", b".setdefault(", b"lru_cache", b"functools.cache"),
    *(b"] = torch.empty(", b"] = torch.zeros("),
)
_MAKES = declare(b"= torch.zeros(", b"= torch.ones(", b"= torch.empty(")
_ATTRIBUTE = re.compile(rb"\s*self\.(\w+) $")
_JOINS = declare(b"torch.cat(", b"torch.concat(", b"torch.roll(")
_NOT_A_STEP = re.compile(rb"def \w*(?:init|reset|clear|load|build|setup)")
_JOINED = re.compile(rb"torch\.(?:(?:cat|concat)\(\s*[\[(]|roll\()\s*self\.(\w+)")
_REGISTERED = re.compile(rb"register_buffer\(\s*[\"'](\w+)[\"']")
_MEMOIZED = re.compile(rb"torch\.(?:empty|zeros|ones|full)\(")
_NEAR = 400
"""Bytes after ``lru_cache`` within which the function has its result, and a call its callee."""
_CALL = re.compile(rb"(?<!def )\b(\w+)\s*\(")


def _writes_buffer(data: bytes) -> bool:
    """Whether a file writes into what it registers as a buffer, or updates that."""
    registered = {
        m[1] for at in words.places(data, _REGISTERS) if (m := _REGISTERED.match(data, at))
    }
    made = {m[1] for word in _MAKES for at in words.places(data, word) if (m := _made(data, at))}
    kept = {name for name in registered | made if not names_cache(name.decode())}
    written = places.writes(data)
    if any(
        name in kept and _is_attribute(data, at, name) and places.may_be_trained(data, at)
        for at, name in written
    ):
        return True
    names = {name for _, name in written}
    if any(_is_passed(data, name) for name in kept):
        return True
    if any(
        m[1] in names
        for kind in kept
        for at in words.undeclared(data, b"= self.%s" % kind)
        if (m := _ALIAS.search(data, data.rfind(b"\n", 0, at) + 1, at)) is not None
        and _VIEW.match(data, at + len(b"= self.") + len(kind))
    ):
        return True
    return any(_is_updated(data, b"self.%s" % name) for name in registered | made)


def _is_passed(data: bytes, name: bytes) -> bool:
    """Whether an attribute is an argument of a function of the file: ``ema(self.mean, h)``."""
    calls = re.finditer(rb"(?<![\w.])(\w+)\((?:[\w.]+, )?self\.%s[,)]" % name, data)
    return any(b"\ndef %s(" % call[1] in data for call in calls)


_ALIAS = re.compile(rb"\b(\w+)(?:: [\w.]+)? $")
_VIEW = re.compile(rb"[ \t]*(?:\[|\.\w+\(|\r?\n|#)")


def _made(data: bytes, at: int) -> re.Match[bytes] | None:
    """``self.name`` before ``= torch.zeros(``, where an object is made."""
    found = _ATTRIBUTE.match(data, data.rfind(b"\n", 0, at) + 1, at)
    function = places.function_around(data, at) if found is not None else -1
    return found if data.startswith(b"def __init__(", function) else None


def _is_attribute(data: bytes, at: int, name: bytes) -> bool:
    """Whether what is written at a place is an attribute, not a local name."""
    return data.find(b".%s" % name, data.rfind(b"\n", 0, at) + 1, at) >= 0


def _is_updated(data: bytes, attribute: bytes) -> bool:
    return any(
        data.find(attribute, at + len(attribute), data.find(b"\n", at)) >= 0
        for at in words.undeclared(data, attribute + b" = ")
    )


def _writes_memoized(data: bytes) -> bool:
    starts = (at for word in _MEMOIZES for at in words.places(data, word))
    return any(_MEMOIZED.search(data, at, at + _NEAR) for at in starts) and any(
        _is_handed_out(data, name) for name in {name for _, name in places.writes(data)}
    )


def _is_handed_out(data: bytes, name: bytes) -> bool:
    """Whether a name is given what ``setdefault``, or a function of the file, returns."""
    return any(
        call[1] == b"setdefault" or b"def %s(" % call[1] in data
        for bound in re.finditer(rb"\b%s(?:: [^\n=]+)?\s*:?=(?!=)" % name, data)
        for call in _CALL.finditer(data, bound.end(), _end_of_value(data, bound.end()))
    )


def _end_of_value(data: bytes, at: int) -> int:
    """Where what is assigned ends, at the earliest: with its line, or soon after an open one."""
    end = data.find(b"\n", at)
    if end < 0 or data[at:end].rstrip().endswith((b"(", b"[", b"\\", b"if", b"else", b"or")):
        return at + _NEAR
    return end


def _joins_kept(data: bytes) -> bool:
    """Whether a step sets an attribute where it has joined something to it."""
    joined = (_JOINED.match(data, at) for word in _JOINS for at in words.places(data, word))
    return any(
        match is not None and places.may_be_trained(data, match.start()) and _is_set(data, match)
        for match in joined
    )


def _step(data: bytes, at: int) -> int:
    """Where the function around a place begins, if its name lets it run in each step; else -1."""
    function = places.function_around(data, at)
    if function < 0 or _NOT_A_STEP.match(data, function):
        return -1
    return function


def _is_set(data: bytes, joined: re.Match[bytes]) -> bool:
    step = _step(data, joined.start())
    if step < 0:
        return False
    ends = [at for word in _NEXT if (at := data.find(word, joined.end())) >= 0]
    function = data[step : min(ends, default=len(data))]
    return any(
        not function.startswith((b"nn.Buffer(", b"nn.Parameter("), found.end())
        for found in re.finditer(_SET % joined[1], function)
    )


_NEXT = (b"\n    def ", b"\ndef ", b"\nclass ")
_SET = rb"self\.%s(?:, *[\w.]+)* = "
_RECURRENT = declare(b"LSTM(", b"GRU(", b"RNN(", b"LSTMCell(", b"GRUCell(", b"RNNCell(")
_STATE = re.compile(rb"self\.(\w+)[ \t]*(?:=[^=]|,[^\n=()]*\)?[ \t]*=[^=])")


def _keeps_state(data: bytes) -> bool:
    """Whether a file has a recurrent layer, and gives something it keeps to a call."""
    return any(
        re.search(rb"\([^\n()]*\([^\n]*self\." + name + rb"\)|, *self\." + name + rb"\)", data)
        for name in {m[1] for m in _STATE.finditer(data) if _step(data, m.start()) >= 0}
    )


(_IF_OWN,) = declare(b"if self.")
_ASKED = re.compile(rb"if self\.(\w+) is (?:not )?None\b")


def _goes_on(data: bytes) -> bool:
    """Whether a step sets an attribute that it has asked for, as in the first step there is none.

    ``h = self.h if self.h is not None else zeros``, and ``self.h = h`` afterwards.
    """
    if b"def forward" not in data:
        return False
    for at in words.places(data, _IF_OWN):
        asked = _ASKED.match(data, at)
        if asked is None or data.find(b"self.%s = " % asked[1], at, at + _LONG) < 0:
            continue
        function = places.function_around(data, at)
        if not data.startswith(b"def forward", function) or names_cache(asked[1].decode()):
            continue
        ends = [end for word in _NEXT if (end := data.find(word, at)) >= 0]
        body = data[function : min(ends, default=len(data))]
        if re.search(_GOES_ON.replace(b"NAME", asked[1]), body):
            return True
    return False


_LONG = 4000
"""Bytes of a forward, at most, between where it asks for a state and where it sets it."""
_GOES_ON = (
    rb"self\.NAME\b(?! is |\s*=[^=])[^\0]*\n\s+self\.NAME = (?!None\b)"
    rb"|self\.NAME = [^\n]*self\.NAME\b"
)
_HOLDERS = declare(b" = {}\n", b" = []\n", b" = dict()\n", b" = list()\n", b" = [None] * ")
_HOLDER = re.compile(rb"[ \t]*self\.(\w+)(?:: [^\n=]+)?$")


def _fills_holder(data: bytes) -> bool:
    """Whether a step puts something into a list or a dict that an object is made with."""
    for word in _HOLDERS:
        for at in words.places(data, word):
            found = _HOLDER.match(data, data.rfind(b"\n", 0, at) + 1, at)
            if found is None or not data.startswith(b"def __init__(", _function(data, at)):
                continue
            filled = rb"self\.%s(?:\.append\(|\[[^\n\]]+\] = )" % found[1]
            if any(
                places.may_be_trained(data, m.start()) and _step(data, m.start()) >= 0
                for m in re.finditer(filled, data)
            ):
                return True
    return False


def _function(data: bytes, at: int) -> int:
    return max(places.function_around(data, at), 0)


NEEDLES: tuple[Needle, ...] = (
    Look(_RECURRENT, _keeps_state),
    Look(_HOLDERS, _fills_holder),
    Look((_IF_OWN,), _goes_on),
    Look((_REGISTERS, *_MAKES), _writes_buffer),
    Look(tuple(_MEMOIZES), _writes_memoized),
    Look(_JOINS, _joins_kept),
)
