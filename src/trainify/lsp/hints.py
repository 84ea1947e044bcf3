"""Inlay hints: where a gradient ends, written behind the code that ends it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lsprotocol import types

from ..findings import Finding
from .documents import Document, Source

LABEL = "gradient stops here"
_STOPS = tuple(
    f"TRN{number}"
    for number in (101, 102, 104, 105, 106, 108, 109, 110, 201, 202, 204, 205, 206, 301, 302)
)


def hints(
    source: Source, document: Document, findings: Iterable[Finding], start: int, end: int
) -> Iterator[types.InlayHint]:
    """The hints between two offsets of a source."""
    for finding in findings:
        if finding.rule not in _STOPS or not start <= finding.end <= end:
            continue
        place = source.place(finding.end, finding.end)
        if place is not None and place[0] is document:
            yield types.InlayHint(
                document.lines.position(place[1]),
                LABEL,
                tooltip=finding.message,
                padding_left=True,
            )
