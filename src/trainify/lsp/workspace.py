"""The folders and sources that a client has open, and what is found in them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from pygls import uris

from .documents import Document, Source
from .positions import Encoding
from .settings import ClientSettings, Configs, FileSettings


@dataclass(eq=False)
class Folder:
    """A folder of the workspace, or the one of a file that lies in none of them."""

    uri: str
    path: str
    roots: tuple[str, ...]
    client: ClientSettings = field(default_factory=ClientSettings)


class Workspace:
    """Everything that is open, by its URI."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self.folders: dict[str, Folder] = {}
        self.sources: dict[str, Source] = {}
        self.configs = Configs()
        self.client = ClientSettings()
        """What the client wants where it says nothing else for a folder."""
        self._documents: dict[str, tuple[Source, Document]] = {}
        self._elsewhere: dict[str, Folder] = {}

    # -- folders --------------------------------------------------------------------------------

    def add_folder(self, uri: str) -> None:
        path = uris.to_fs_path(uri)
        if path is not None:
            path = os.path.normpath(path)
            self.folders[uri] = Folder(uri, path, (path,), self.client)

    def remove_folder(self, uri: str) -> None:
        self.folders.pop(uri, None)

    def folder_of(self, source: Source) -> Folder:
        """The innermost folder that holds a source."""
        holding = [
            folder
            for folder in self.folders.values()
            if source.path.startswith(os.path.join(folder.path, ""))
        ]
        if holding:
            return max(holding, key=lambda folder: len(folder.path))
        path = os.path.dirname(source.path)
        if path not in self._elsewhere:
            self._elsewhere[path] = Folder("", path, (source.path,), self.client)
        return self._elsewhere[path]

    def settings_of(self, source: Source) -> FileSettings:
        folder = self.folder_of(source)
        return self.configs.for_file(source.path, folder.path, folder.client)

    # -- sources --------------------------------------------------------------------------------

    def open(self, uri: str, documents: list[Document], notebook: bool = False) -> Source:
        path = uris.to_fs_path(uri) if uri.startswith("file:") else None
        if path is None:  # a text that was never saved: as if it were in the first folder
            base = next((folder.path for folder in self.folders.values()), os.getcwd())
            path = os.path.join(base, uri.rpartition("/")[2].rpartition(":")[2] or "untitled")
        source = Source(uri, os.path.normpath(path), documents, notebook)
        self.sources[uri] = source
        for document in documents:
            self._documents[document.uri] = source, document
        return source

    def close(self, source: Source) -> None:
        self.sources.pop(source.uri, None)
        for document in source.documents:
            self._documents.pop(document.uri, None)

    def document(self, uri: str) -> tuple[Source, Document] | None:
        """The open text of a URI, and the source that it belongs to."""
        return self._documents.get(uri)

    def at(self, path: str) -> Source | None:
        """The open text of a file."""
        sources = self.sources.values()
        return next((s for s in sources if s.path == path and not s.notebook), None)

    def cells(self, source: Source, documents: list[Document]) -> None:
        """Give a notebook other cells."""
        for document in source.documents:
            self._documents.pop(document.uri, None)
        source.documents[:] = documents
        for document in documents:
            self._documents[document.uri] = source, document
        source.edited()
