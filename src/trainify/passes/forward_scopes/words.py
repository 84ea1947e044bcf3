"""By the bytes of a file: whether it has a mode on a forward, or may start inference."""

from __future__ import annotations

import re

from ...facts.grad_bytes import (
    FORWARD,
    MODES,
    Mention,
    decorated_elsewhere,
    decorators_of_forwards,
    makes_modules,
    mentions,
)
from ...facts.grad_bytes import returns_numbers as returns_numbers_by_bytes
from ...facts.words import declare, found, places

STARTS = declare(
    *(
        word + name
        for word in (b"def ", b"def _")
        for name in (
            b"generate sample predict evaluate infer complet chat stream text_completion "
            b"beam_search greedy_ profile warm dummy_run capture"
        ).split()
    )
)
_CALLS_OWN = re.compile(rb"\bself\.\w+(?:\[[^\]]*\])?\(")


def scopes_forward(data: bytes) -> bool:
    """Whether a file has a grad mode on a forward, in it, or around it."""
    if b"forward" not in data:
        return any(
            m.kind in ("decorator", "with") and _is_call_of_module(data, m) for m in mentions(data)
        )
    return any(
        m.function[:1].isupper()
        or _is_call_of_module(data, m)
        or (m.kind in ("decorator", "with") and _is_delegate(data, m))
        or (
            m.function.startswith(b"forward")
            and makes_modules(data, m.at)
            and (
                not returns_numbers_by_bytes(data, m.at)
                if m.kind == "decorator"
                else _works(m.block)
            )
        )
        if m.kind in ("decorator", "with")
        else b"forward" in m.line
        or m.line.endswith(MODES)
        or b" as " in m.line
        or (m.function.startswith(b"forward") and _SETS.search(m.line) is not None)
        for m in mentions(data)
    )


def _is_call_of_module(data: bytes, mention: Mention) -> bool:
    """Whether a mode is on ``__call__`` of a class that says it is a module."""
    if mention.function != b"__call__":
        return False
    begin = data.rfind(b"class ", 0, mention.at)
    return b"Module" in data[begin : data.find(b"\n", begin)]


def _is_delegate(data: bytes, mention: Mention) -> bool:
    """Whether a forward may hand all of its work to a function with a mode in it or on it."""
    name = mention.function
    if not name or name in (b"forward", b"__init__", b"__call__"):
        return False
    if data.count(name + b"(") < 2:  # nothing but its definition, as a rule
        return False
    if not makes_modules(data, mention.at):
        return False
    called = re.compile(rb"return [^\n]*\b" + name + rb"\(|= *(?:self\.)?" + name + rb"\(")
    return any(called.search(data, at, _method_end(data, at)) for at in places(data, FORWARD))


_METHOD = re.compile(rb"\n(?:    |\t)?(?:def |class |@)")


def _method_end(data: bytes, at: int) -> int:
    """Where the next method or function begins."""
    after = _METHOD.search(data, at)
    return after.start() if after else len(data)


def may_start(data: bytes) -> bool:
    """Whether a file may have a function that starts inference."""
    return not found(data).keys().isdisjoint(STARTS)


_SETS = re.compile(rb"^[^=]*set_grad_enabled\(|\)\(|__enter__|no_grad\(\w|=[^=]*\(\)$")
"""What else puts work of a forward under a mode: a switch, a wrapper, a context that is entered."""


def _works(block: bytes) -> bool:
    """Whether a block calls something of ``self``."""
    return _CALLS_OWN.search(block) is not None


def is_decorated(data: bytes) -> bool:
    """Whether a forward has a decorator that may be a mode, where its file says so."""
    return decorated_elsewhere(data) or bool(decorators_of_forwards(data))
