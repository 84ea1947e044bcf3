"""By the bytes of a file: whether it sets an attribute to what could be made of weights."""

from __future__ import annotations

import re

from ...facts.words import declare, places, undeclared

_OF_SELF = rb"(?:[^\n]*(?<=[(\[{,+*/@\\-])[ \t]*(?:#[^\n]*)?\r?\n)?[^\n]*self\."
"""On the same line, or on the next one where that goes on."""
_ANEW = (
    rb"(?:data\b|T\b|mT\b|"
    rb"(?:detach|t|transpose|permute|chunk|split|clone|exp|sigmoid)\()"
)
_MAKERS = declare(
    *(
        b"= torch.%s(" % name
        for name in b"cat stack concat hstack vstack matmul mm bmm einsum".split()
    ),
    *(b"= self.", b"= (self.", b"= torch.exp(", b"= -torch.exp(", b"= F.softplus("),
)
_COMPUTED = re.compile(
    rb"= -?\(?(?:(?:torch|F|nn\.functional)\.\w+\(" + _OF_SELF + rb"|"
    rb"self\.(?:\w+\.)*(?:\w+\." + _ANEW + rb"|weight [*@/+-]))"
)
(_REGISTERS,) = declare(b"register_buffer(")
_BUFFER = re.compile(
    rb"register_buffer\(\s*[\"']\w+[\"'],\s*(?:torch\.(?:cat|stack|concat|matmul|b?mm|einsum)\("
    + _OF_SELF
    + rb"|\(*self\.)"
)
_NAMED = declare(b"weight = ", b"weights = ")
_PRODUCT = re.compile(rb"= self\.\w+ [*@/+-] ")
(_PARAMETER,) = declare(b"Parameter(")
_HOLDS = re.compile(rb"self\.(\w+)(?:: [\w.]+)? = [\w.]*$")
_SET = re.compile(rb"[ \t]*self\.\w+(?:: [\w.]+)? = ")
_OPERATOR = re.compile(
    rb"(?:\.m?T|\.t\(\)|\.(?:transpose|unsqueeze)\([^()\n]*\))?"
    rb"(?: [*@/+-] |\.(?:matmul|mm|bmm|mul|add|sub|div)\()"
)
_CALLED = re.compile(rb"= (?:self\.)?(\w+)\(([^\n]*)")
_ATTRIBUTE = re.compile(rb"\s*self\.\w+(?:, self\.\w+)*(?:\s*:.*)?\s$")
_ENTRY = re.compile(rb"\s*self\.\w+\[[^\]\n]+\] $")
_MEMOIZERS = declare(
    b"@cached_property", b"@functools.c", b"@lru_cache", b"@functools.l", b"@cache\n"
)
_NEAR = 500
"""Bytes after the head of a function within which it computes something of weights."""


def may_derive_weights(data: bytes) -> bool:
    """Whether a file sets an attribute to what could be made of weights."""
    if b"Module" not in data or b"self." not in data:
        return False
    for at in (at for maker in _MAKERS for at in places(data, maker)):
        line = data.rfind(b"\n", 0, at) + 1
        if data[at - 2 : at] == b"] " and _ENTRY.match(data, line, at):
            if b"weight" in data[at : data.find(b"\n", at)]:
                return True
        if _ATTRIBUTE.match(data, line, at):
            if _COMPUTED.match(data, at) or _calls_maker(data, at):
                return True
    for at in (at + name.index(b"=") for name in _NAMED for at in places(data, name)):
        if _calls_maker(data, at) or _PRODUCT.match(data, at):
            return True
    for at in (at for decorator in _MEMOIZERS for at in places(data, decorator)):
        body = data.find(b"(self):", at, at + _NEAR)
        if body >= 0 and b"self." in data[body : data.find(b"\n    def ", body)]:
            return True
    if any(_BUFFER.match(data, at) for at in places(data, _REGISTERS)):
        return True
    return any(_operates_on(data, b"self." + name) for name in _parameters(data))


def _parameters(data: bytes) -> frozenset[bytes]:
    """The attributes that hold a parameter."""
    held = (
        _HOLDS.search(data, data.rfind(b"\n", 0, at) + 1, at) for at in places(data, _PARAMETER)
    )
    return frozenset(match[1] for match in held if match is not None)


def _operates_on(data: bytes, parameter: bytes) -> bool:
    """Whether an attribute is set to a sum or product of a parameter: ``self.a @ self.b``."""
    for at in undeclared(data, parameter):
        behind = at + len(parameter)
        if _OPERATOR.match(data, behind) or data.endswith(_OPERATORS, 0, at):
            if _SET.match(data, data.rfind(b"\n", 0, at) + 1, at):
                return True
    return False


_OPERATORS = (b" * ", b" @ ", b" / ", b" + ", b" - ")


def _calls_maker(data: bytes, at: int) -> bool:
    """Whether a function of the file, of ``self`` or given a part of it, mentions weights."""
    match = _CALLED.match(data, at)
    if match is None or not (data.startswith(b"self.", at + 2) or b"self." in match[2]):
        return False
    body = data.find(b"def %s(" % match[1])
    return body >= 0 and data.find(b".weight", body, body + _NEAR) >= 0


WORDS = (*_MAKERS, *_NAMED, _REGISTERS, _PARAMETER, *_MEMOIZERS)
