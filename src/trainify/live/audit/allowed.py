"""Gradients that are stopped on purpose, and where that is known."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from fnmatch import fnmatchcase
from types import FrameType

from ...suppressions import allows
from ..rewritten import original_place
from .cuts import Suspect
from .places import callers
from .straight import is_straight_through

_RIGHT = (
    ("torch/nn/utils/parametrizations.py", "_update_vectors"),
    ("torch/nn/utils/parametrizations.py", "_power_method"),
    ("torch/nn/utils/spectral_norm.py", "compute_weight"),
    ("torch/nn/modules/batchnorm.py", "forward"),
)
"""Functions of torch that keep values out of the graph, and are right to do so."""


def named_places(places: Iterable[str], argument: str) -> tuple[str, ...]:
    """Places as a caller names them, one or several; raises TypeError for anything else."""
    if isinstance(places, str):
        return (places,)
    named = tuple(places) if isinstance(places, Iterable) else (places,)
    if not all(isinstance(each, str) for each in named):
        raise TypeError(f"{argument} takes names of files, lines or functions, not {places!r}")
    return named


class Allowed:
    """What the caller, the source and torch itself allow."""

    def __init__(self, allow: Iterable[str]) -> None:
        self._patterns = named_places(allow, "allow")
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
        return any(
            allows(linecache.getline(place.path, place.line)) or is_straight_through(place)
            for place in places
        )

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
