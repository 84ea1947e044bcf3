"""What trainify has to say, as plain data: findings, fixes and edits.

The command line, the language server and the Python API show the same objects in different ways.
None of them holds a syntax tree, so all of them can cross a process boundary.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


class Safety(str, enum.Enum):
    """How far a fix can be trusted without a person looking at it."""

    SAFE = "safe"
    """Same meaning by construction."""
    UNSAFE = "unsafe"
    """Right in the usual case; the fix's ``look_at`` says what a person should check."""
    DISPLAY = "display"
    """Shown, never applied."""


STRATEGIES = ("flag", "replace", "attach")
"""What a fused call can become; see :class:`Fix`."""


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replace ``text[start:end]`` by ``text``; offsets count characters of the decoded file."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """Edits that belong together: all of them are applied, or none is.

    Several findings may share one fix (three fused calls in a row under one condition); applying
    the same edit twice is applying it once.  ``only_copies``: all that ``look_at`` speaks of are
    copies into arguments, of which a wrong one raises in backward, and no call is known to be one.
    ``makes_properties``: attributes that instances hold become properties of their class.
    """

    title: str
    edits: tuple[Edit, ...]
    safety: Safety = Safety.SAFE
    look_at: str = ""
    only_copies: bool = False
    makes_properties: bool = False

    def unsafe(self, look_at: str) -> Fix:
        """The same edits, with one more reason to look at them first."""
        reasons = "; ".join(filter(None, (self.look_at, look_at)))
        return replace(self, safety=Safety.UNSAFE, look_at=reasons, only_copies=False)


@dataclass(frozen=True, slots=True)
class Related:
    """Another place that belongs to a finding, and what it has to do with it.

    ``start`` and ``end`` are character offsets, ``line`` and ``column`` count from 1.
    """

    path: str
    message: str
    start: int
    end: int
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One gradient cut, wrong gradient, or call that trainify could not understand.

    ``start`` and ``end`` are character offsets; ``line`` and ``column`` count from 1, columns in
    characters.  ``fixes`` maps a strategy (one of :data:`STRATEGIES`) to its fix.  ``op`` is the
    qualified name of the fused op, where a call of one is found, or of the class of a fused layer.
    ``related`` are other places to look at: the empty tensor that a fused op fills, the scope that
    a loss is computed in.
    """

    path: str
    rule: str
    message: str
    start: int
    end: int
    line: int
    column: int
    end_line: int
    end_column: int
    fixes: Mapping[str, Fix] = field(default_factory=dict)
    op: str = ""
    related: tuple[Related, ...] = ()

    def fix(self, strategy: str) -> Fix | None:
        return self.fixes.get(strategy)


@dataclass(frozen=True, slots=True, order=True)
class Proven:
    """A place in a file at which a run has shown that a gradient ends, though it should go on.

    ``kind`` is what ends it: ``"scope"``, a grad mode that ``line`` switches on; ``"detach"`` and
    ``"data"``; ``"value"``, that it becomes a number, a list or an array; ``"kept"``, that it is
    kept with its graph for the next step, whose backward ends there; ``"derived"``, that it is
    computed from weights once, and kept, when the model is made.  ``lines`` are those in the
    scope through which the gradient would go.  ``wholly``: nothing that ends here gets a gradient
    by another way.
    """

    line: int
    kind: str
    lines: tuple[int, ...] = ()
    wholly: bool = True


class OverlapError(ValueError):
    """Two different edits claim the same text."""


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Return ``text`` with every edit applied; equal edits count once.

    Insertions at one place are kept in the order given.  Raises :class:`OverlapError` when two
    different edits overlap.
    """
    unique = sorted(dict.fromkeys(edits), key=lambda e: (e.start, e.end))
    pieces: list[str] = []
    position = 0
    for edit in unique:
        if edit.start < position:
            raise OverlapError(f"edits overlap at character {edit.start}")
        pieces += (text[position : edit.start], edit.text)
        position = edit.end
    pieces.append(text[position:])
    return "".join(pieces)


def moved(offset: int, edits: Iterable[Edit]) -> int | None:
    """Where a character stands after edits; None where one of them has replaced it."""
    shift = 0
    for edit in dict.fromkeys(edits):
        if edit.start <= offset < edit.end:
            return None
        if edit.end <= offset:
            shift += len(edit.text) - (edit.end - edit.start)
    return offset + shift


def select_fixes(
    findings: Iterable[Finding], strategy: str, *, unsafe: bool = False
) -> list[tuple[Finding, Fix]]:
    """Pick, in file order, the fixes that can be applied together.

    A fix that overlaps an earlier one is left out; a second round over the edited text finds it
    again.  ``unsafe`` also takes fixes that a person should look at.
    """
    chosen: list[tuple[Finding, Fix]] = []
    taken: dict[Edit, None] = {}
    for finding in findings:
        fix = finding.fix(strategy)
        if fix is None or fix.safety is Safety.DISPLAY:
            continue
        if fix.safety is Safety.UNSAFE and not unsafe:
            continue
        if all(edit in taken or not any(_clash(edit, t) for t in taken) for edit in fix.edits):
            taken.update(dict.fromkeys(fix.edits))
            chosen.append((finding, fix))
    return chosen


def _clash(a: Edit, b: Edit) -> bool:
    if a.start == a.end and b.start == b.end:
        # Each line of a block that moves gets its indentation, and so would what goes above it.
        return a.start == b.start and not (a.text.strip() and b.text.strip())
    # What is inserted where a replaced text begins may belong into what comes for that: a statement
    # into the block that the one below it is moved to.
    return (a.start < b.end and b.start < a.end) or a.start == b.start
