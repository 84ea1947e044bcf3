"""What a file imports, told by its bytes, before it is parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from .words import declare, places

IMPORTS = declare(b"from .", b"\nfrom ", b"\nimport ")
"""The words of which each file that imports anything has one."""

_WELL_KNOWN = (
    rb"(?:torch|typing|numpy|collections|dataclasses|transformers|einops|functools|__future__|"
    rb"pathlib|contextlib|triton|math|os|re|sys|json|copy|time|random|logging|warnings|itertools|"
    rb"torchvision|tokenizers)\b"
)
# What is further up is the whole package's, and most of its files import from there.
_FROM = re.compile(
    rb"(?:from[ \t]+(\.\.?)(?!\.)|\nfrom[ \t]+(?!\.|%s))([\w.]*)[ \t]+import[ \t]+" % _WELL_KNOWN
)
_IMPORT = re.compile(rb"\nimport[ \t]+([^\n#;]+)")
_MODULE = re.compile(rb"(?:^|,)[ \t]*(?!%s)([\w.]+)(?:[ \t]+as[ \t]+(\w+))?" % _WELL_KNOWN)
_NAMES = re.compile(rb"\([^)]*\)|[^\n#;(]+")
_NAME = re.compile(rb"(\w+|\*)(?:[ \t]+as[ \t]+(\w+))?")


class Imported(NamedTuple):
    """The dots before a module, that, the name in it (none of the module itself), and its own."""

    dots: bytes
    owner: bytes
    name: bytes
    local: bytes


@lru_cache(maxsize=1)  # asked by several passes, one file after the other
def imports_of(data: bytes) -> tuple[Imported, ...]:
    """What a file imports, but of modules that everybody knows and of the files further up."""
    return tuple(_imports_of(data))


def _imports_of(data: bytes) -> Iterator[Imported]:
    starts = ((data, at) for word in IMPORTS for at in places(data, word))
    for text, at in chain(((b"\n" + data[: data.find(b"\n") + 1], 0),), starts):
        if match := _FROM.match(text, at):
            names = _NAMES.match(text, match.end())
            for name in _NAME.finditer(names[0]) if names is not None else ():
                yield Imported(match[1] or b"", match[2], name[1], name[2] or name[1])
        elif match := _IMPORT.match(text, at):
            for module in _MODULE.finditer(match[1]):
                yield Imported(b"", module[1], b"", module[2] or module[1])
