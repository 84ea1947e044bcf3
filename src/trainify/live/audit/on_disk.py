"""A report of code that was rewritten in memory, with places that can be opened."""

from __future__ import annotations

from dataclasses import replace

from ..rewritten import by_file, original_place
from .report import Cut, Report


def on_disk(report: Report) -> Report:
    """The same, by the lines that the files have on disk."""
    return replace(
        report,
        cuts=tuple(map(_cut, report.cuts)),
        error=by_file(report.error),
        notes=tuple(map(by_file, report.notes)),
    )


def _cut(cut: Cut) -> Cut:
    path, line = original_place(cut.path, cut.line)
    scope = cut.scope and by_file(cut.scope)
    lines = cut.lines
    if scope != cut.scope and cut.scope_place is not None:
        inside, _ = cut.scope_place
        lines = tuple(sorted({original_place(inside, each)[1] for each in lines}))
    message = by_file(cut.message)
    wrapped = tuple(map(by_file, cut.wrapped))
    return replace(
        cut, path=path, line=line, scope=scope, lines=lines, wrapped=wrapped, message=message
    )
