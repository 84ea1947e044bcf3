"""Findings as diagnostics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lsprotocol import types
from pygls import uris

from ..findings import Finding
from .documents import Source
from .positions import Encoding, Lines

SOURCE = "trainify"

_SEVERITY = {
    # backward() raises, or gives a wrong gradient.
    "TRN102": types.DiagnosticSeverity.Error,
    "TRN107": types.DiagnosticSeverity.Error,
    "TRN202": types.DiagnosticSeverity.Error,
    # The code alone does not tell.
    "TRN103": types.DiagnosticSeverity.Information,
    "TRN108": types.DiagnosticSeverity.Information,
}
_TAGS = {
    "TRN001": types.DiagnosticTag.Unnecessary,  # a comment that silences nothing
    "TRN207": types.DiagnosticTag.Unnecessary,  # requires_grad on a loss does nothing for it
    "TRN505": types.DiagnosticTag.Deprecated,  # use_reentrant=True
}


@dataclass(frozen=True)
class Style:
    """What a client can show."""

    encoding: Encoding
    related: bool = True
    tags: frozenset[types.DiagnosticTag] = frozenset(types.DiagnosticTag)
    links: bool = True

    @classmethod
    def of(cls, client: types.ClientCapabilities, encoding: Encoding) -> Style:
        """What a client says of itself."""
        document = client.text_document or types.TextDocumentClientCapabilities()
        given = document.publish_diagnostics
        if given is None:
            none: frozenset[types.DiagnosticTag] = frozenset()
            # A client that only pulls cannot say what it shows before version 3.18.
            return cls(encoding) if document.diagnostic else cls(encoding, False, none, False)
        return cls(
            encoding,
            related=bool(given.related_information),
            tags=frozenset(given.tag_support.value_set if given.tag_support else ()),
            links=bool(given.code_description_support),
        )


Opened = Callable[[str], Source | None]
"""The open source of a path."""


def diagnostics(
    source: Source,
    findings: Iterable[Finding],
    style: Style,
    opened: Opened = lambda path: None,
) -> dict[str, list[types.Diagnostic]]:
    """The diagnostics of each document of a source, by its URI."""
    found: dict[str, list[types.Diagnostic]] = {document.uri: [] for document in source.documents}
    for finding in findings:
        place = source.place(finding.start, finding.end) or source.place(
            finding.start, finding.start
        )
        if place is not None:
            document, start, end = place
            where = document.lines.range(start, end)
            related = list(_related(finding, source, style, opened)) or None
            found[document.uri].append(_diagnostic(finding, where, related, style))
    return found


def _diagnostic(
    finding: Finding,
    where: types.Range,
    related: list[types.DiagnosticRelatedInformation] | None,
    style: Style,
) -> types.Diagnostic:
    tag = _TAGS.get(finding.rule)
    page = rule_page(finding.rule) if style.links else None
    return types.Diagnostic(
        range=where,
        message=finding.message,
        severity=_SEVERITY.get(finding.rule, types.DiagnosticSeverity.Warning),
        code=finding.rule,
        code_description=types.CodeDescription(page) if page else None,
        source=SOURCE,
        tags=[tag] if tag in style.tags else None,
        related_information=related,
    )


def _related(
    finding: Finding, source: Source, style: Style, opened: Opened
) -> Iterator[types.DiagnosticRelatedInformation]:
    for related in finding.related if style.related else ():
        home = source if related.path == source.path else opened(related.path)
        if home is not None:
            place = home.place(related.start, related.end)
            if place is None:
                continue
            document, start, end = place
            location = types.Location(document.uri, document.lines.range(start, end))
        else:
            lines = _lines_of(related.path, style.encoding)
            uri = uris.from_fs_path(related.path)
            if lines is None or uri is None:
                continue
            location = types.Location(uri, lines.range(related.start, related.end))
        yield types.DiagnosticRelatedInformation(location, related.message)


def _lines_of(path: str, encoding: Encoding) -> Lines | None:
    from ..source import SourceError, decode

    try:
        return Lines(decode(Path(path).read_bytes())[0], encoding)
    except (OSError, SourceError):
        return None


# -- pages of rules -------------------------------------------------------------------------------


@cache
def _pages() -> dict[str, str]:
    """Where each rule is explained: the line of its heading, which editors jump to."""
    package = Path(__file__).resolve().parents[1]
    for page in (package / "rules.md", package.parents[1] / "docs" / "rules.md"):
        if page.is_file():
            lines = page.read_text(encoding="utf-8").splitlines()
            headings = ((n, re.match(r"## (TRN\d+)", line)) for n, line in enumerate(lines, 1))
            return {match[1]: f"{page.as_uri()}#L{n}" for n, match in headings if match}
    return {}


def rule_page(code: str) -> str | None:
    return _pages().get(code)
