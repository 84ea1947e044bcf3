"""A pass with a rule for everything that a pass can do to the engine.

Importable as a pass, and runnable as the command line with this pass instead of the real ones.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainify import passes
from trainify.findings import Edit, Finding, Fix, Safety
from trainify.source import Positions

_DOCS = ("Why not.", "fused(x)\n", "plain(x)\n")
RULES = (
    passes.Rule("TRN901", "fused", "A call of `fused` has no gradient.", *_DOCS),
    passes.Rule("TRN902", "risky", "A call of `risky` may have no gradient.", *_DOCS),
    passes.Rule("TRN911", "hopeless", "A call of `hopeless` has no gradient.", *_DOCS),
    passes.Rule("TRN912", "misbehaves", "The pass itself misbehaves.", *_DOCS),
)
NEEDLES = (b"fused(", b"risky(", b"hopeless(", b"shown(", b"misbehave_", b"wrapped(", b"behind(")

IMPORT = "from plain import plain\n"
CALL = re.compile(r"\b(fused|risky|hopeless|shown|wrapped|behind|misbehave_\w+)\(")


def install() -> None:
    passes.all_passes = lambda: (sys.modules[__name__],)  # type: ignore[assignment]
    passes.all_rules.cache_clear()


def find(module: Any, options: Any) -> Iterator[Finding]:
    text: str = module.text
    positions = Positions(text)
    for match in CALL.finditer(text):
        name = match[1]
        start, end = match.start(), _close(text, match.end())
        rule, fixes = "TRN901", {}
        call = text[match.end() : end]
        if name == "fused":
            edits = [Edit(start, end, f"plain({call}")]
            if IMPORT.strip() not in text:
                first = _after_prologue(text)
                newline = "\r\n" if "\r\n" in text else "\n"
                edits.insert(0, Edit(first, first, IMPORT.strip() + newline))
            fixes = {
                "flag": Fix("call plain", tuple(edits)),
                "replace": Fix("call it twice", (Edit(start, end, f"twice({call}"),)),
            }
        elif name == "risky":
            rule = "TRN902"
            edit = Edit(start, end, f"safe({call}")
            fixes = {"flag": Fix("call safe", (edit,), Safety.UNSAFE, "the sign")}
        elif name == "shown":
            fixes = {"flag": Fix("think", (Edit(start, end, "think()"),), Safety.DISPLAY)}
        elif name == "hopeless":
            rule = "TRN911"
        elif name == "wrapped":
            wrapper = module.project.load(Path(module.path).absolute().parents[1] / "wrapper.py")
            if not re.search(r"cuts|fused\(", wrapper.text):
                continue
        elif name == "behind":
            if "fused(" in text:
                continue
        else:
            rule, fixes = "TRN912", _misbehave(name, start, match.end() - 1)
        yield Finding(
            module.path,
            rule,
            f"`{name}` cuts",
            start,
            end,
            *positions.at(start),
            *positions.at(end),
            fixes,
        )


def _misbehave(name: str, start: int, end: int) -> dict[str, Fix]:
    what = name.removeprefix("misbehave_")
    if what == "raise":
        raise KeyError("oops")
    if what == "recurse":
        return _misbehave(name, start, end)
    if what == "die":
        os._exit(77)
    other = {"ping": "misbehave_pong", "pong": "misbehave_ping", "syntax": "1 +* ("}
    other["return"] = "return "
    return {"flag": Fix("misbehave", (Edit(start, end, other[what]),))}


def _after_prologue(text: str) -> int:
    """Past the comments and the docstring at the top."""
    match = re.match(r'(?:#[^\r\n]*\r?\n)*(?:""".*?"""\r?\n)?', text, re.S)
    return match.end() if match else 0


def _close(text: str, position: int) -> int:
    depth = 1
    while depth and position < len(text):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        position += 1
    return position


if __name__ == "__main__":
    import fake  # under the name by which worker processes know it

    from trainify.__main__ import main

    fake.install()
    main()
