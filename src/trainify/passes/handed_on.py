"""TRN101 in files that name no library: ``from .ops import rn``, which is a fused op there.

What they call is found by the import, and by what the file that this leads to says of the name,
both told by their bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..facts.words import declare, places
from . import Look, Needle, Rule, fused_calls
from .fused_calls.words import words_for

if TYPE_CHECKING:
    from ..catalog import FusedOp
    from ..engine import Options
    from ..facts import ModuleFacts, Project
    from ..findings import Finding

_FROM = declare(b"from .", b"\nfrom ")
# What is further up is the whole package's, and most of its files import from there.
_IMPORT = re.compile(
    rb"(?:from[ \t]+(\.\.?)(?!\.)|\nfrom[ \t]+(?!\.|(?:torch|typing|numpy|collections|dataclasses|"
    rb"transformers|einops|functools|__future__|pathlib|contextlib|triton)\b))"
    rb"([\w.]*)[ \t]+import[ \t]+"
)
_NAMES = re.compile(rb"\([^)]*\)|[^\n#;(]+")
_NAME = re.compile(rb"(\w+)(?:[ \t]+as[ \t]+(\w+))?")
_CLASS = re.compile(rb"_*[A-Z]\w*[a-z]")

RULES: tuple[Rule, ...] = ()
PLANS = True

NEEDLES: tuple[Needle, ...] = (Look(_FROM, bool),)


def concerns(data: bytes, path: str, project: Project, options: Options) -> bool:
    return _calls_handed_on(data, path, project, options.ops)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    if not words_for(options.ops).exports(module.text.encode(errors="replace")):
        yield from fused_calls.calls(module, options, direct=False)


def _calls_handed_on(data: bytes, path: str, project: Project, own: tuple[FusedOp, ...]) -> bool:
    """Whether a file calls what another file of the project has from a library of kernels."""
    exports = words_for(own).tells_exports
    for word in _FROM:
        for at in places(data, word):
            match = _IMPORT.match(data, at)
            for name, local in _names(data, match.end()) if match is not None else ():
                assert match is not None
                called = _is_called(data, local)
                if not called and (match[2] or local + b"." not in data):
                    continue
                folder = path.rsplit(os.sep, len(match[1]))[0] if match[1] else ""
                owner = match[2].decode()
                used = [name.decode()]
                if not called:  # from . import ops
                    owner, used = used[0], _used_of(data, local)
                file = _file(project, path, folder, owner) if used else None
                if file is not None and project.tells(file, exports, ""):
                    if any(project.tells(file, _binds, each) for each in used):
                        return True
    return False


def _file(project: Project, path: str, folder: str, owner: str) -> Path | None:
    """The file of a module, from a folder on where the import is a relative one."""
    if folder:
        return project.find_below(Path(folder), owner) if owner else None
    return project.find_file(path, owner)


def _names(data: bytes, at: int) -> list[tuple[bytes, bytes]]:
    """The names that an import statement imports, but classes, each with the one it gets."""
    names = _NAMES.match(data, at)
    found = _NAME.finditer(names[0]) if names is not None else ()
    return [(name[1], name[2] or name[1]) for name in found if not _CLASS.match(name[1])]


def _is_called(data: bytes, name: bytes) -> bool:
    """``name(``, or ``name["``, of a table."""
    return name + b"(" in data or (name.isupper() and name + b"[" in data)


def _used_of(data: bytes, module: bytes) -> list[str]:
    """What is called of a module that goes by a name."""
    called = re.compile(rb"%s\.([a-z_]\w*)\(" % re.escape(module))
    return [each.decode() for each in set(called.findall(data))]


def _binds(data: bytes, name: str) -> bool:
    """Whether a file imports or assigns a name; a function of its own is judged where it is."""
    word = re.escape(name.encode())
    bound = rb"%s[ \t]*(?::[^=\n]*)?=(?!=)|(?:from|import)\b[^\n]*\b%s\b|%s,?[ \t]*$|\w+ as %s\b"
    return re.search(rb"(?m)^[ \t]*(?:" + bound % ((word,) * 4) + rb")", data) is not None
