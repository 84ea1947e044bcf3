"""Gradients that are stopped on purpose, and where that is known."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from types import FrameType
from typing import Any

from ...suppressions import allows
from ..rewritten import original_place
from .cuts import Suspect
from .places import callers

_RIGHT = (
    ("torch/nn/utils/parametrizations.py", "_update_vectors"),
    ("torch/nn/utils/parametrizations.py", "_power_method"),
    ("torch/nn/utils/spectral_norm.py", "compute_weight"),
    ("torch/nn/modules/batchnorm.py", "forward"),
)
"""Functions of torch that keep values out of the graph, and are right to do so."""


class Allowed:
    """What the caller, the source and torch itself allow."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        self._known: set[int] = set()
        self._matched: set[str] = set()

    def note(self, suspect: Suspect, frame: FrameType | None) -> None:
        """Look at the stack of a suspect's call while it is there."""
        for each in callers(frame):
            path = each.f_code.co_filename.replace("\\", "/")
            if any(path.endswith(p) and each.f_code.co_name == n for p, n in _RIGHT):
                self._known.add(id(suspect))

    def covers(self, suspect: Suspect) -> bool:
        """Whether the gradient may end there."""
        matching = [pattern for pattern in self._patterns if self._matches(pattern, suspect)]
        self._matched.update(matching)
        if matching or id(suspect) in self._known:
            return True
        places = [suspect.place, *([suspect.scope] if suspect.scope else [])]
        return any(_says_so(place.path, place.line) for place in places)

    def unmatched(self) -> tuple[str, ...]:
        """The caller's patterns that no suspect asked about so far lies in."""
        return tuple(pattern for pattern in self._patterns if pattern not in self._matched)

    def _matches(self, pattern: str, suspect: Suspect) -> bool:
        places = [suspect.place, *([suspect.scope] if suspect.scope else [])]
        functions = [place.function for place in places]
        names = (*functions, *(name.rpartition(".")[2] for name in functions), suspect.module)
        if any(fnmatchcase(name, pattern) for name in names if name):
            return True
        texts = []
        for place in places:
            path, line = original_place(place.path, place.line)
            path = path.replace("\\", "/")
            texts += [path, f"{path}:{line}"]
        return any(fnmatchcase(t, pattern) or fnmatchcase(t, f"*/{pattern}") for t in texts)


def _says_so(path: str, line: int) -> bool:
    """Whether a comment on the line, or the way it is written, says that it is meant."""
    text = linecache.getline(path, line)
    return allows(text) or _is_straight_through(text)


_DETACHED_DIFFERENCE = re.compile(r"\(.+\)\s*\.detach\(\)|\(.+\)\s*\.data\b")


def _is_straight_through(text: str) -> bool:
    """``x + (rounded - x).detach()``: the value of one thing with the gradient of another."""
    if not _DETACHED_DIFFERENCE.search(text):
        return False
    try:
        tree = ast.parse(text.strip().rstrip(":"))
    except SyntaxError:
        return False
    return any(_adds_back(node) for node in ast.walk(tree))


def _adds_back(node: ast.AST) -> bool:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))):
        return False
    for kept, cut in ((node.left, node.right), (node.right, node.left)):
        difference: Any = None
        if isinstance(cut, ast.Call) and isinstance(cut.func, ast.Attribute):
            difference = cut.func.value if cut.func.attr == "detach" else None
        elif isinstance(cut, ast.Attribute) and cut.attr == "data":
            difference = cut.value
        if isinstance(difference, ast.BinOp) and isinstance(difference.op, ast.Sub):
            parts = (ast.dump(difference.left), ast.dump(difference.right))
            if ast.dump(kept) in parts:
                return True
    return False
