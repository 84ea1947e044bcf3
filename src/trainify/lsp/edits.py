"""A changed text as the smallest edits that a client has to make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lsprotocol import types

from ..findings import Edit
from ..output.diff import opcodes
from .documents import Document, Source, difference


def minimal(old: str, new: str) -> list[Edit]:
    """Edits that turn one text into another and touch no character that both have in place."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    edits = []
    at = 0
    for tag, a, b, c, d in opcodes(before, after):
        text = "".join(before[a:b])
        if tag != "equal":
            edits.append(difference(text, "".join(after[c:d]), at))
        at += len(text)
    return edits


@dataclass(frozen=True)
class EditStyle:
    """How a client takes edits of several files: by version if it can, with reasons to confirm."""

    versioned: bool
    annotated: bool

    @classmethod
    def of(cls, client: types.ClientCapabilities) -> EditStyle:
        workspace = client.workspace.workspace_edit if client.workspace else None
        versioned = bool(workspace and workspace.document_changes)
        annotated = bool(workspace and workspace.change_annotation_support)
        return cls(versioned, versioned and annotated)


def workspace_edit(
    source: Source, edits: Sequence[Edit], style: EditStyle, look_at: str = ""
) -> types.WorkspaceEdit | None:
    """Edits of a source's text as the client has it; None where one cannot be made there.

    With ``look_at`` they have to be confirmed by a person, where the client can ask.
    """
    found: dict[str, tuple[Document, list[_TextEdit]]] = {}
    confirm = bool(look_at) and style.annotated
    for edit in edits:
        if not source.keeps(edit.start, edit.end):
            return None
        place = source.place(edit.start, edit.end)
        assert place is not None
        document, start, end = place
        where = document.lines.range(start, end)
        _, listed = found.setdefault(document.uri, (document, []))
        if confirm:
            listed.append(types.AnnotatedTextEdit(_LOOK, where, edit.text))
        else:
            listed.append(types.TextEdit(where, edit.text))
    if not style.versioned:
        return types.WorkspaceEdit(changes={uri: listed for uri, (_, listed) in found.items()})  # type: ignore[misc]
    annotation = types.ChangeAnnotation("Look at this first", True, look_at)
    return types.WorkspaceEdit(
        document_changes=list(map(_document_edit, found.values())),
        change_annotations={_LOOK: annotation} if confirm else None,
    )


_LOOK = "look"
_TextEdit = types.TextEdit | types.AnnotatedTextEdit | types.SnippetTextEdit


def _document_edit(edited: tuple[Document, list[_TextEdit]]) -> types.TextDocumentEdit:
    document, listed = edited
    identifier = types.OptionalVersionedTextDocumentIdentifier(document.uri, document.version)
    return types.TextDocumentEdit(identifier, listed)
