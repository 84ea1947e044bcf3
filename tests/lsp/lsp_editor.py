"""An editor for tests: it keeps texts, sends what a client sends, and does what it is told.

Positions are computed here by encoding text, and edits applied by lines, so that nothing of the
server's own arithmetic is used to check it.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from lsprotocol import types
from pytest_lsp import LanguageClient, client_capabilities, make_test_lsp_client
from warm_servers import WarmServers

SERVER = (sys.executable, "-m", "trainify", "lsp")
"""The command itself; where a test gives none, a server comes from :class:`WarmServers`."""

PROFILES = ("neovim@v0.11.0", "neovim@v0.7.0", "visual_studio_code", "emacs", "pulling")
_CODEC = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$")


class Editor:
    """A client with a server, and the texts that are open in it."""

    def __init__(self, client: LanguageClient) -> None:
        self.client = client
        self.texts: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self.published: dict[str, list[types.PublishDiagnosticsParams]] = {}
        self.registered: list[types.Registration] = []
        self.refreshed = 0
        self.folder: types.WorkspaceFolder | None = None
        self._news = asyncio.Condition()
        features = client.protocol.fm.features
        features[types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS] = self._publish
        features[types.CLIENT_REGISTER_CAPABILITY] = self._register
        features[types.WORKSPACE_DIAGNOSTIC_REFRESH] = self._refresh

    async def _publish(self, params: types.PublishDiagnosticsParams) -> None:
        async with self._news:
            self.published.setdefault(params.uri, []).append(params)
            self._news.notify_all()

    async def _register(self, params: types.RegistrationParams) -> None:
        self.registered += params.registrations

    async def _refresh(self, params: object) -> None:
        async with self._news:
            self.refreshed += 1
            self._news.notify_all()

    async def until(self, what, timeout: float = 30) -> None:
        """Wait for a condition on what the server has sent."""

        async def wait() -> None:
            async with self._news:
                await self._news.wait_for(what)

        await asyncio.wait_for(wait(), timeout)

    # -- life -----------------------------------------------------------------------------------

    @classmethod
    async def start(
        cls,
        profile: str | types.ClientCapabilities,
        *folders: Path,
        options: object = None,
        settings: dict[str, object] | None = None,
        servers: WarmServers | None = None,
        command: Sequence[str] = (),
    ) -> Editor:
        client = make_test_lsp_client()
        if settings is not None:
            client.set_configuration({"trainify": settings})
        editor = cls(client)
        if command:
            await client.start_io(*command)
        else:
            assert servers is not None
            await servers.start(client)
        capabilities = _capabilities(profile) if isinstance(profile, str) else profile
        given = await client.initialize_session(
            types.InitializeParams(
                capabilities=capabilities,
                workspace_folders=[types.WorkspaceFolder(f.as_uri(), f.name) for f in folders],
                root_uri=folders[0].as_uri() if folders else None,
                initialization_options=options,
            )
        )
        editor.capabilities = given.capabilities
        editor.encoding = given.capabilities.position_encoding or "utf-16"
        editor.pulls = given.capabilities.diagnostic_provider is not None
        return editor

    async def enter(self, path: Path) -> None:
        """Open a folder."""
        assert self.folder is None and not self.texts
        self.folder = types.WorkspaceFolder(path.as_uri(), path.name)
        await self._folders([self.folder], [])

    async def leave(self) -> None:
        """Close the folder that was entered, and all texts."""
        assert self.folder is not None
        for uri in list(self.texts):
            self.close(uri)  # a cell of a notebook that is still open is left alone
        await self._folders([], [self.folder])
        self.folder = None

    async def _folders(
        self, added: list[types.WorkspaceFolder], removed: list[types.WorkspaceFolder]
    ) -> None:
        event = types.WorkspaceFoldersChangeEvent(added, removed)
        self.client.workspace_did_change_workspace_folders(
            types.DidChangeWorkspaceFoldersParams(event)
        )
        # The server asks for settings and goes on when it has them: that is over by then.
        nowhere = types.HoverParams(types.TextDocumentIdentifier("file:///"), types.Position(0, 0))
        for _ in range(4):
            await self.client.text_document_hover_async(nowhere)

    async def stop(self) -> None:
        await self.client.shutdown_session()
        await self.client.stop()

    # -- positions ------------------------------------------------------------------------------

    def position(self, uri: str, offset: int) -> types.Position:
        before = self.texts[uri][:offset]
        line = len(re.findall(r"\r\n|\r|\n", before))
        column = re.split(r"\r\n|\r|\n", before)[-1]
        codec, size = _CODEC[self.encoding]
        return types.Position(line, len(column.encode(codec, "surrogatepass")) // size)

    def offset(self, uri: str, position: types.Position) -> int:
        lines = [*_LINE.findall(self.texts[uri]), ""]
        codec, size = _CODEC[self.encoding]
        line = lines[position.line].encode(codec, "surrogatepass")
        column = line[: position.character * size].decode(codec, "surrogatepass")
        return sum(map(len, lines[: position.line])) + len(column)

    def shown(self, uri: str, where: types.Range) -> str:
        """The text that a range covers."""
        return self.texts[uri][self.offset(uri, where.start) : self.offset(uri, where.end)]

    def range_of(self, uri: str, text: str) -> types.Range:
        start = self.texts[uri].index(text)
        return types.Range(self.position(uri, start), self.position(uri, start + len(text)))

    # -- texts ----------------------------------------------------------------------------------

    def open(self, path: Path | str, text: str | None = None) -> str:
        uri = path if isinstance(path, str) else path.as_uri()
        if text is None:
            text = path.read_bytes().decode()
        self.texts[uri] = text
        self.versions[uri] = 1
        self.client.text_document_did_open(
            types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, "python", 1, text))
        )
        return uri

    def edit(self, uri: str, *edits: tuple[int, int, str]) -> None:
        """Change a text; each edit is in the text before it."""
        changes = []
        for start, end, new in edits:
            where = types.Range(self.position(uri, start), self.position(uri, end))
            changes.append(types.TextDocumentContentChangePartial(range=where, text=new))
            self.texts[uri] = self.texts[uri][:start] + new + self.texts[uri][end:]
        self._send(uri, changes)

    def replace(self, uri: str, text: str) -> None:
        self.texts[uri] = text
        self._send(uri, [types.TextDocumentContentChangeWholeDocument(text=text)])

    def exchange(self, uri: str, old: str, new: str) -> None:
        start = self.texts[uri].index(old)
        self.edit(uri, (start, start + len(old), new))

    def _send(self, uri: str, changes: list[types.TextDocumentContentChangeEvent]) -> None:
        self.versions[uri] += 1
        identifier = types.VersionedTextDocumentIdentifier(self.versions[uri], uri)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(identifier, changes))

    def save(self, uri: str) -> None:
        self.client.text_document_did_save(
            types.DidSaveTextDocumentParams(types.TextDocumentIdentifier(uri))
        )

    def close(self, uri: str) -> None:
        del self.texts[uri]
        self.client.text_document_did_close(
            types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(uri))
        )

    # -- what the server says -------------------------------------------------------------------

    async def diagnostics(self, uri: str) -> list[types.Diagnostic]:
        """Those of the text as it is now."""
        if self.pulls:
            report = await self.client.text_document_diagnostic_async(
                types.DocumentDiagnosticParams(types.TextDocumentIdentifier(uri))
            )
            return list(report.items)
        version = self.versions[uri]
        await self.until(lambda: any(p.version == version for p in self.published.get(uri, ())))
        return list(self.published[uri][-1].diagnostics)

    async def again(self, uri: str) -> list[types.Diagnostic]:
        """Those that come without an edit, because something else has changed."""
        if self.pulls:
            before = self.refreshed
            await self.until(lambda: self.refreshed > before)
            return await self.diagnostics(uri)
        before = len(self.published.get(uri, ()))
        await self.until(lambda: len(self.published.get(uri, ())) > before)
        return list(self.published[uri][-1].diagnostics)

    async def request(self, method: str, params: object) -> object:
        """Ask with parameters that may not be those of the method."""
        protocol = self.client.protocol
        number = f"raw {len(protocol._request_futures)}"
        answer = protocol._request_futures[number] = asyncio.get_running_loop().create_future()
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        body = json.dumps(message).encode()
        protocol.writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return await asyncio.wait_for(answer, 30)

    async def actions(
        self, uri: str, where: types.Range, *only: str, known: Sequence[types.Diagnostic] = ()
    ) -> list[types.CodeAction]:
        found = await self.client.text_document_code_action_async(
            types.CodeActionParams(
                types.TextDocumentIdentifier(uri),
                where,
                types.CodeActionContext(list(known), only=list(only) or None),
            )
        )
        return list(found or ())

    async def resolved(self, action: types.CodeAction) -> types.CodeAction:
        if action.edit is None:
            action = await self.client.code_action_resolve_async(action)
        return action

    async def apply(self, action: types.CodeAction) -> None:
        """Do what an action says, as an editor would."""
        edit = (await self.resolved(action)).edit
        assert edit is not None
        listed = dict(edit.changes or {})
        for each in edit.document_changes or ():
            uri = each.text_document.uri
            assert each.text_document.version == self.versions[uri]
            listed[uri] = each.edits
        for uri, edits in listed.items():
            places = [
                (self.offset(uri, e.range.start), self.offset(uri, e.range.end), e.new_text)
                for e in edits
            ]
            assert all(
                a[1] <= b[0] for a, b in zip(sorted(places), sorted(places)[1:], strict=False)
            )
            self.edit(uri, *sorted(places, reverse=True))


def _capabilities(profile: str) -> types.ClientCapabilities:
    """Those of a client that pytest-lsp knows, or of one that asks for diagnostics.

    Newer versions of VS Code and Neovim do; the newest that pytest-lsp knows cannot be told to ask
    again.
    """
    if profile != "pulling":
        return client_capabilities(profile)
    found = client_capabilities("neovim@v0.11.0")
    assert found.workspace is not None
    found.workspace.diagnostics = types.DiagnosticWorkspaceClientCapabilities(True)
    return found
