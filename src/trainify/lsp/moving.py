"""Findings in a text that has been edited since."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..findings import Edit, Finding


def moved(findings: Iterable[Finding], edits: Iterable[Edit]) -> tuple[Finding, ...]:
    """The findings where they are after the edits, each of which is in the text before it.

    A finding goes with the last character that it was about.  Only ``start`` and ``end`` hold in
    what is returned; there are no fixes.
    """
    kept = [replace(finding, fixes={}, related=()) for finding in findings]
    for edit in edits:
        kept = [now for finding in kept if (now := _after(finding, edit)) is not None]
    return tuple(kept)


def _after(finding: Finding, edit: Edit) -> Finding | None:
    start, end = finding.start, finding.end
    growth = len(edit.text) - (edit.end - edit.start)
    if edit.start >= end:
        return finding
    if edit.end <= start:
        return replace(finding, start=start + growth, end=end + growth)
    if edit.start <= start and edit.end >= end:
        return None
    new_start = start if edit.start >= start else edit.start + len(edit.text)
    new_end = end + growth if edit.end <= end else edit.start
    return replace(finding, start=new_start, end=new_end) if new_end > new_start else None
