"""By the bytes of a file: what its methods call their object, where that is not ``self``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .words import declare, places

_METHODS = declare(b"def __init__(", b"def forward(")
_NAME = re.compile(rb"\s*(?!(?:self|cls)\b)(\w+)\s*[,)]")


def called_self(data: bytes) -> Iterator[bytes]:
    """The same bytes with ``self`` for such names, since that is what passes look for."""
    names = {
        found[1]
        for word in _METHODS
        for at in places(data, word)
        if (found := _NAME.match(data, at + len(word))) is not None
    }
    if names:
        listed = b"|".join(sorted(map(re.escape, names)))
        yield re.sub(rb"\b(?:%s)(?=\.)" % listed, b"self", data)
