"""What the client has open: texts as they stand in the editor, and notebooks of such texts."""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache

from lsprotocol import types

from ..findings import Edit
from .positions import Encoding, Lines

_BOM = "\ufeff"


class Document:
    """One text of the client's: a file, or a cell of a notebook."""

    def __init__(self, uri: str, version: int | None, text: str, encoding: Encoding) -> None:
        self.uri = uri
        self.version = version
        self.lines = Lines(text, encoding)

    @property
    def text(self) -> str:
        return self.lines.text

    def apply(
        self, changes: Iterable[types.TextDocumentContentChangeEvent], version: int | None
    ) -> list[Edit]:
        """Change the text as the client did; returns the edits, each in the text before it."""
        edits = []
        for change in changes:
            if isinstance(change, types.TextDocumentContentChangePartial):
                start = self.lines.offset(change.range.start)
                end = max(self.lines.offset(change.range.end), start)
                edit = Edit(start, end, change.text)
            else:
                edit = difference(self.text, change.text)
            text = self.text[: edit.start] + edit.text + self.text[edit.end :]
            self.lines = Lines(text, self.lines.encoding)
            edits.append(edit)
        self.version = version
        return edits


def difference(old: str, new: str, at: int = 0) -> Edit:
    """The one edit that turns a text, which begins at an offset, into another."""
    head = _common_length(old, new)
    limit = min(len(old), len(new)) - head
    tail = min(_common_length(old[::-1], new[::-1]), limit)
    return Edit(at + head, at + len(old) - tail, new[head : len(new) - tail])


def _common_length(a: str, b: str) -> int:
    """How many characters two texts begin with in common."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # slices compare many times as fast as a loop over characters
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Source:
    """What is judged as one Python file: a document, or the code cells of a notebook, in order.

    ``revision`` changes whenever an older judgement no longer holds.
    """

    def __init__(self, uri: str, path: str, documents: list[Document], notebook: bool) -> None:
        self.uri = uri
        self.path = path
        self.documents = documents
        self.notebook = notebook
        self.revision = 0

    def edited(self) -> None:
        """Put the text together anew."""
        self.revision += 1
        for name in ("_pieces", "_starts", "text"):
            self.__dict__.pop(name, None)

    def apply(
        self,
        document: Document,
        changes: Sequence[types.TextDocumentContentChangeEvent],
        version: int | None,
    ) -> list[Edit]:
        """Change one of the documents; returns the edits, as edits of ``text``."""
        start = self._starts[self.documents.index(document)]
        edits = document.apply(changes, version)
        self.edited()
        return [
            Edit(max(start + edit.start, 0), max(start + edit.end, 0), edit.text) for edit in edits
        ]

    @cached_property
    def _pieces(self) -> list[str]:
        """Each document as Python, of the same length, but for a byte order mark."""
        texts = [document.text for document in self.documents]
        if self.notebook:
            return list(map(without_magics, texts))
        return [text.removeprefix(_BOM) for text in texts]

    @cached_property
    def _starts(self) -> list[int]:
        """Where each document begins in ``text``: before it, where a mark is left out."""
        starts, at = [], 0
        for piece, document in zip(self._pieces, self.documents, strict=True):
            starts.append(at - (len(document.text) - len(piece)))
            at += len(piece) + 1
        return starts

    @cached_property
    def text(self) -> str:
        return "\n".join(self._pieces)

    def place(self, start: int, end: int) -> tuple[Document, int, int] | None:
        """The document that a stretch of ``text`` lies in, and where; None across two of them."""
        if not self.documents:
            return None
        index = max(bisect_right(self._starts, start) - 1, 0)
        document, begin = self.documents[index], self._starts[index]
        if end - begin > len(document.text):
            return None
        return document, start - begin, end - begin

    def offset(self, document: Document, position: types.Position) -> int:
        """Where a position of a document lies in ``text``."""
        start = self._starts[self.documents.index(document)]
        return max(start + document.lines.offset(position), 0)

    def keeps(self, start: int, end: int) -> bool:
        """Whether a stretch of ``text`` is what the client has there: no magic stands in it."""
        place = self.place(start, end)
        return place is not None and place[0].text[place[1] : place[2]] == self.text[start:end]


# -- notebooks ------------------------------------------------------------------------------------

_MAGIC = re.compile(
    r"(?P<before>[ \t]*(?:[\w.,\[\] \t]+=[ \t]*)?)(?P<magic>[%!].*|\?.*|[\w.]+\?+[ \t]*)$"
)
_PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%memit", "%%mprun")


@lru_cache(maxsize=256)
def without_magics(cell: str) -> str:
    """A cell as Python, of the same length: commands of IPython become a number and a comment."""
    if not any(sign in cell for sign in "%!?") or _parses(cell):
        return cell
    lines = cell.splitlines(keepends=True)
    first = next((line for line in lines if line.strip()), "")
    foreign = first.startswith("%%") and not first.startswith(_PYTHON_CELLS)
    found, continued = [], False
    for line in lines:
        content = line.rstrip("\r\n")
        match = None if foreign or continued else _MAGIC.match(content)
        if match:
            content = match["before"] + _masked(match["magic"])
        elif foreign or continued:
            content = _masked(content)
        continued = (continued or match is not None) and content.endswith("\\")
        found.append(content + line[len(content) :])
    return "".join(found)


def _masked(text: str) -> str:
    return ("0#" + text[2:])[: len(text)]


def _parses(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
