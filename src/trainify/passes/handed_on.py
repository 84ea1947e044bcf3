"""TRN101 in files that name no library: ``from .ops import rn``, which is a fused op there.

The same goes for ``import pkg.ops as ops`` with ``ops.rn(x)``, and for ``from pkg.ops import *``.

What they call is found by the import, and by what the file that this leads to says of the name,
both told by their bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..facts.imported_names import IMPORTS, imports_of
from . import Look, Needle, Rule, fused_calls
from .fused_calls.words import words_for

if TYPE_CHECKING:
    from ..catalog import FusedOp
    from ..engine import Options
    from ..facts import ModuleFacts, Project
    from ..findings import Finding

_CALLED = re.compile(rb"(?<![\w.])([a-z_]\w*)\(")
_CLASS = re.compile(rb"_*[A-Z]\w*[a-z]")

RULES: tuple[Rule, ...] = ()
PLANS = True

NEEDLES: tuple[Needle, ...] = (Look(IMPORTS, bool),)


def concerns(data: bytes, path: str, project: Project, options: Options) -> bool:
    return _calls_handed_on(data, path, project, options.ops)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    if not words_for(options.ops).exports(module.usual.encode(errors="replace")):
        yield from fused_calls.calls(module, options, direct=False)


def _calls_handed_on(data: bytes, path: str, project: Project, own: tuple[FusedOp, ...]) -> bool:
    """Whether a file calls what another file of the project has from a library of kernels."""
    exports = words_for(own).tells_exports
    for dots, owner, name, local in imports_of(data):
        used: Iterable[bytes]
        if _CLASS.match(name):
            continue
        if name == b"*":
            if path.endswith("__init__.py"):  # which hands it on
                continue
            used = ()
        elif name and _is_called(data, local):
            used = (name,)
        elif local + b"." in data:  # a module: import pkg.ops as ops, from pkg import ops
            used = _used_of(data, local)
            owner = b".".join(filter(None, (owner, name)))
            if not used:
                continue
        else:
            continue
        folder = path.rsplit(os.sep, len(dots))[0] if dots else ""
        file = _file(project, path, folder, owner.decode())
        if file is not None and project.tells(file, exports, ""):
            used = used or set(_CALLED.findall(data))
            if any(project.tells(file, _binds, each.decode()) for each in used):
                return True
    return False


def _file(project: Project, path: str, folder: str, owner: str) -> Path | None:
    """The file of a module, from a folder on where the import is a relative one."""
    if folder:
        return project.find_below(Path(folder), owner) if owner else None
    return project.find_file(path, owner)


def _is_called(data: bytes, name: bytes) -> bool:
    """``name(``, or ``name["``, of a table."""
    return name + b"(" in data or (name.isupper() and name + b"[" in data)


def _used_of(data: bytes, module: bytes) -> set[bytes]:
    """What is called of a module that goes by a name: ``ops.norm(``, ``ops.TABLE[``."""
    called = re.compile(rb"%s\.([a-z_]\w*(?=\()|[A-Z_]+(?=\[))" % re.escape(module))
    return set(called.findall(data))


def _binds(data: bytes, name: str) -> bool:
    """Whether a file imports or assigns a name; a function of its own is judged where it is."""
    word = re.escape(name.encode())
    bound = rb"%s[ \t]*(?::[^=\n]*)?=(?!=)|(?:from|import)\b[^\n]*\b%s\b|%s,?[ \t]*$|\w+ as %s\b"
    return re.search(rb"(?m)^[ \t]*(?:" + bound % ((word,) * 4) + rb")", data) is not None
