"""The server: what the client sends, and what it is told."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from lsprotocol import types
from pygls import uris
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer

from .. import __version__
from ..engine import Options
from ..findings import Finding
from . import actions, hints
from .diagnostics import SOURCE, Style, diagnostics
from .documents import Document, Source
from .edits import EditStyle, minimal, workspace_edit
from .judging import Judge, Judgement
from .positions import Encoding
from .process import JudgingProcess
from .protocol import Protocol
from .settings import SECTION, WATCHED, ClientSettings, FileSettings
from .workspace import Workspace

log = logging.getLogger(__name__)

_BURST = 0.002
"""Seconds without an edit before a text is judged: editors send several changes at once."""

_PAUSE = 0.25
"""Seconds without an edit before fixes are worked out that nobody has asked for."""

_SETTLED = 0.4
"""Seconds without an edit before other open files follow."""

_CONFIGURED = 1.0
"""Seconds that the first judgement waits for the client's settings."""

_NOTEBOOKS = types.NotebookDocumentSyncOptions(
    [
        types.NotebookDocumentFilterWithCells(
            cells=[types.NotebookCellLanguage("python")],
            notebook=types.NotebookDocumentFilterNotebookType("jupyter-notebook"),
        )
    ]
)


_DIAGNOSTICS = types.DiagnosticOptions(
    inter_file_dependencies=True, workspace_diagnostics=False, identifier=SOURCE
)


class Server(LanguageServer):
    """State and behaviour; what each message calls is listed in :func:`create`."""

    def __init__(self, process: JudgingProcess) -> None:
        super().__init__(
            "trainify",
            __version__,
            protocol_cls=Protocol,
            text_document_sync_kind=types.TextDocumentSyncKind.Incremental,
            notebook_document_sync=_NOTEBOOKS,
        )
        self.process = process
        self.open = Workspace(Encoding.Utf16)
        self.judge = Judge(self._find, self._planned)
        self.client = types.ClientCapabilities()
        self.style = Style(Encoding.Utf16)
        self.edit_style = EditStyle(False, False)
        self.pulls = False
        """Whether the client asks for diagnostics; else it is sent them."""
        self.watched = False
        """Whether the client says when files change."""
        self.configured = asyncio.Event()
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._published: dict[str, list[types.Diagnostic]] = {}
        self._told: set[str] = set()
        self._faulty: set[str] = set()

    # -- life -----------------------------------------------------------------------------------

    def begin(self, params: types.InitializeParams) -> None:
        self.client = params.capabilities
        encoding = Encoding(self.workspace.position_encoding or Encoding.Utf16)
        self.open.encoding = encoding
        self.style = Style.of(self.client, encoding)
        self.edit_style = EditStyle.of(self.client)
        self.pulls = _pulls(self.client)
        if self.pulls:
            self.feature(types.TEXT_DOCUMENT_DIAGNOSTIC, _DIAGNOSTICS)(_function(self.pulled))
        self.open.client = ClientSettings.read(params.initialization_options)
        folders = [folder.uri for folder in params.workspace_folders or ()]
        root = params.root_uri
        if not root and params.root_path:
            root = uris.from_fs_path(params.root_path)
        for uri in folders or filter(None, [root]):
            self.open.add_folder(uri)

    def end(self, params: None) -> None:
        self.process.stop()

    async def ready(self, params: types.InitializedParams) -> None:
        """The client can be asked things now."""
        await asyncio.gather(self._watch(), self.configure())

    async def _watch(self) -> None:
        workspace = self.client.workspace or types.WorkspaceClientCapabilities()
        wanted = []
        files = workspace.did_change_watched_files
        if files and files.dynamic_registration:
            watchers = [types.FileSystemWatcher(pattern) for pattern in WATCHED]
            options = types.DidChangeWatchedFilesRegistrationOptions(watchers)
            method = types.WORKSPACE_DID_CHANGE_WATCHED_FILES
            wanted.append(types.Registration("watch", method, options))
        settings = workspace.did_change_configuration
        if settings and settings.dynamic_registration:
            method = types.WORKSPACE_DID_CHANGE_CONFIGURATION
            wanted.append(types.Registration("settings", method, {"section": SECTION}))
        if wanted:
            try:
                await self.client_register_capability_async(types.RegistrationParams(wanted))
                self.watched = any(each.id == "watch" for each in wanted)
            except JsonRpcException as error:
                log.warning("the client watches no files: %s", error)

    # -- settings -------------------------------------------------------------------------------

    async def configure(self) -> None:
        """Ask the client for its settings, for each folder."""
        try:
            if self.client.workspace and self.client.workspace.configuration:
                folders = list(self.open.folders.values())
                items = [types.ConfigurationItem(folder.uri, SECTION) for folder in folders]
                items.append(types.ConfigurationItem(section=SECTION))
                given = await self.workspace_configuration_async(types.ConfigurationParams(items))
                for folder, settings in zip(folders, given, strict=False):
                    if settings is not None:
                        folder.client = self._client_settings(settings)
                if len(given) == len(items) and given[-1] is not None:
                    self.open.client = self._client_settings(given[-1])
        except JsonRpcException as error:
            log.warning("the client gives no settings: %s", error)
        finally:
            self.configured.set()

    def _client_settings(self, given: object) -> ClientSettings:
        settings = ClientSettings.read(given)
        for mistake in settings.mistakes:
            self._tell(mistake)
        return settings

    def _tell(self, text: str) -> None:
        """Show a message, once."""
        if text not in self._told:
            self._told.add(text)
            message = types.ShowMessageParams(types.MessageType.Warning, f"trainify: {text}")
            self.window_show_message(message)

    async def settings_changed(self, params: types.DidChangeConfigurationParams) -> None:
        given = params.settings
        if isinstance(given, dict) and isinstance(given.get(SECTION), dict):
            self.open.client = self._client_settings(given[SECTION])
            for folder in self.open.folders.values():
                folder.client = self.open.client
        await self.configure()
        self.judge_all()

    def files_changed(self, params: types.DidChangeWatchedFilesParams) -> None:
        configured = False
        for event in params.changes:
            path = uris.to_fs_path(event.uri)
            if path is None:
                continue
            path = os.path.normpath(path)
            if not path.endswith(".py") or os.path.basename(path) == "setup.py":
                configured = True
            self.process.tell("changed", path)
            if event.type != types.FileChangeType.Changed:
                self.process.tell("files_moved")
        if configured:
            self.open.configs.forget()
        self.judge_all()

    def look_again(self) -> None:
        """Where the client watches no files, they are looked at again when one is saved."""
        if not self.watched:
            self.open.configs.forget()
            self.process.tell("files_moved")
            self.judge_all()

    def folders_changed(self, params: types.DidChangeWorkspaceFoldersParams) -> None:
        for folder in params.event.removed:
            self.open.remove_folder(folder.uri)
        for folder in params.event.added:
            self.open.add_folder(folder.uri)
        self._task("settings", self._configure_and_judge())

    async def _configure_and_judge(self) -> None:
        await self.configure()
        self.judge_all()

    # -- sources --------------------------------------------------------------------------------

    def opened(self, params: types.DidOpenTextDocumentParams) -> None:
        given = params.text_document
        if self.open.document(given.uri) or not _is_python(given):
            return
        document = Document(given.uri, given.version, given.text, self.open.encoding)
        self._opened(self.open.open(given.uri, [document]))

    def _opened(self, source: Source) -> None:
        self.judge.opened(source)
        self._show(source, 0)

    def changed(self, params: types.DidChangeTextDocumentParams) -> None:
        found = self.open.document(params.text_document.uri)
        if found is None:
            return
        source, document = found
        edits = source.apply(document, params.content_changes, params.text_document.version)
        self._edited(source)
        self.judge.edited(source, edits)

    def _edited(self, source: Source) -> None:
        self._show(source, _BURST)
        self._task("settle", self._settle(source))

    async def _settle(self, source: Source) -> None:
        """Have the other open files follow an edit, when there have been no more for a while."""
        await asyncio.sleep(_SETTLED)
        await self.judge.judgement(source)
        self.process.tell("settle")
        folder = self.open.folder_of(source)
        others = [s for s in self.open.sources.values() if self.open.folder_of(s) is folder]
        self._again(other for other in others if other is not source)

    def saved(self, params: types.DidSaveTextDocumentParams) -> None:
        self.look_again()

    def closed(self, params: types.DidCloseTextDocumentParams) -> None:
        found = self.open.document(params.text_document.uri)
        if found is not None and not found[0].notebook:
            self._closed(found[0])

    def _closed(self, source: Source) -> None:
        self._cancel(source)
        self.judge.closed(source)
        self.open.close(source)
        self.process.tell("closed", source.path)
        self._task("settle", self._settle(source))
        for document in source.documents:
            self._publish(document, [])

    # -- notebooks ------------------------------------------------------------------------------

    def notebook_opened(self, params: types.DidOpenNotebookDocumentParams) -> None:
        documents = [
            Document(cell.uri, cell.version, cell.text, self.open.encoding)
            for cell in params.cell_text_documents
        ]
        notebook = self.open.open(params.notebook_document.uri, documents, notebook=True)
        self._opened(notebook)

    def notebook_changed(self, params: types.DidChangeNotebookDocumentParams) -> None:
        notebook = self.open.sources.get(params.notebook_document.uri)
        cells = params.change.cells
        if notebook is None or cells is None:
            return
        if cells.structure is not None:
            self._restructured(notebook, cells.structure)
        for content in cells.text_content or ():
            found = self.open.document(content.document.uri)
            if found is not None:
                edits = notebook.apply(found[1], content.changes, content.document.version)
                self.judge.edited(notebook, edits)
        self._edited(notebook)

    def _restructured(
        self, notebook: Source, structure: types.NotebookDocumentCellChangeStructure
    ) -> None:
        known = {document.uri: document for document in notebook.documents}
        for cell in structure.did_open or ():
            known[cell.uri] = Document(cell.uri, cell.version, cell.text, self.open.encoding)
        array = structure.array
        inserted = [known[cell.document] for cell in array.cells or () if cell.document in known]
        documents = list(notebook.documents)
        documents[array.start : array.start + array.delete_count] = inserted
        gone = [document for document in notebook.documents if document not in documents]
        old = notebook.text
        self.open.cells(notebook, documents)
        self.judge.edited(notebook, minimal(old, notebook.text)[::-1])
        for document in gone:
            self._publish(document, [])

    def notebook_closed(self, params: types.DidCloseNotebookDocumentParams) -> None:
        notebook = self.open.sources.get(params.notebook_document.uri)
        if notebook is not None:
            self._closed(notebook)

    # -- diagnostics ----------------------------------------------------------------------------

    def judge_all(self) -> None:
        """What is known of every open source may no longer hold."""
        self.process.tell("settle")
        self._again(self.open.sources.values())

    async def _find(self, source: Source, found_before: bool) -> list[Finding]:
        settings = self.open.settings_of(source)
        if not settings.wanted:
            return []
        start = time.perf_counter()
        found: list[Finding] = await self.process.ask(
            "judge", *self._question(source, settings), found_before
        )
        log.info("%s: %d findings in %.3f s", source.path, len(found), time.perf_counter() - start)
        return found

    async def _planned(self, source: Source) -> list[Finding]:
        settings = self.open.settings_of(source)
        if not settings.wanted:
            return []
        found: list[Finding] = await self.process.ask("planned", *self._question(source, settings))
        return found

    def _question(
        self, source: Source, settings: FileSettings
    ) -> tuple[str, str, Options, tuple[str, ...]]:
        """What a judgement is about."""
        return source.path, source.text, settings.options, self.open.folder_of(source).roots

    def _again(self, sources: Iterable[Source]) -> None:
        listed = list(sources)
        for source in listed:
            source.revision += 1
        if self.pulls and listed:
            self._task("refresh", self._refresh())
        for source in listed:
            self._show(source, 0)

    async def _refresh(self) -> None:
        try:
            await self.workspace_diagnostic_refresh_async(None)
        except JsonRpcException as error:
            log.info("no refresh: %s", error)

    def _show(self, source: Source, delay: float) -> None:
        if not self.pulls:
            self._task(source, self._push(source, delay))

    async def _push(self, source: Source, delay: float) -> None:
        await asyncio.sleep(delay)
        shown = await self._judgement(source)
        self._publish_all(source, shown)
        planned = await self._planned_later(source, shown)
        if planned.shows() != shown.shows():
            self._publish_all(source, planned)

    def _publish_all(self, source: Source, judgement: Judgement) -> None:
        if self.open.sources.get(source.uri) is source:
            found = diagnostics(source, judgement.findings, self.style, self.open.at)
            for document in source.documents:
                self._publish(document, found.get(document.uri, []))

    async def _judgement(self, source: Source) -> Judgement:
        """What is to be shown of a source."""
        await self._wait_for_settings()
        judgement = await self.judge.judgement(source)
        self._report_mistakes()
        return judgement

    async def _wait_for_settings(self) -> None:
        if not self.configured.is_set():
            try:
                await asyncio.wait_for(self.configured.wait(), _CONFIGURED)
            except asyncio.TimeoutError:
                self.configured.set()

    def _publish(self, document: Document, found: list[types.Diagnostic]) -> None:
        if not self.pulls:
            self.text_document_publish_diagnostics(
                types.PublishDiagnosticsParams(document.uri, found, document.version)
            )

    async def pulled(
        self, params: types.DocumentDiagnosticParams
    ) -> types.DocumentDiagnosticReport:
        opened = self.open.document(params.text_document.uri)
        if opened is None:
            return types.RelatedFullDocumentDiagnosticReport([])
        source, document = opened
        shown = await self._judgement(source)
        if not shown.planned and shown.parsed:
            self._task(source, self._plan(source, shown))
        result = hashlib.blake2b(repr(shown.shows()).encode(errors="replace"), digest_size=8)
        if result.hexdigest() == params.previous_result_id:
            return types.RelatedUnchangedDocumentDiagnosticReport(result.hexdigest())
        found = diagnostics(source, shown.findings, self.style, self.open.at).get(document.uri, [])
        return types.RelatedFullDocumentDiagnosticReport(found, result_id=result.hexdigest())

    async def _plan(self, source: Source, shown: Judgement) -> None:
        """Have the client ask again where more is known after what it was shown."""
        planned = await self._planned_later(source, shown)
        if planned.shows() != shown.shows():
            await self._refresh()

    async def _planned_later(self, source: Source, shown: Judgement) -> Judgement:
        """The judgement with its fixes, which can say more."""
        if not shown.planned:
            await asyncio.sleep(_PAUSE)
        return await self.judge.judgement(source, planned=True)

    def _report_mistakes(self) -> None:
        """Show what is wrong in configuration files, where it is wrong."""
        mistakes = self.open.configs.mistakes
        for path in self._faulty - mistakes.keys():
            self._publish_file(path, [])
        for path in mistakes.keys() - self._faulty:
            mistake = mistakes[path]
            line = max(mistake.line - 1, 0)
            where = types.Range(types.Position(line, 0), types.Position(line + 1, 0))
            error = types.DiagnosticSeverity.Error
            self._publish_file(
                path, [types.Diagnostic(where, mistake.message, error, source=SOURCE)]
            )
        self._faulty = set(mistakes)

    def _publish_file(self, path: str, found: list[types.Diagnostic]) -> None:
        uri = uris.from_fs_path(path)
        if uri is not None:
            params = types.PublishDiagnosticsParams(uri, found)
            self.text_document_publish_diagnostics(params)

    # -- what is asked for ----------------------------------------------------------------------

    async def actions(self, params: types.CodeActionParams) -> list[types.CodeAction]:
        document = self.client.text_document
        can = document and document.code_action
        opened = self.open.document(params.text_document.uri)
        if opened is None or not can or not can.code_action_literal_support:
            return []
        source, text = opened
        await self._wait_for_settings()
        judgement = await self.judge.judgement(source, planned=True)
        if not judgement.parsed or source.revision != judgement.revision:
            return []
        context = params.context
        request = actions.Request(
            source.offset(text, params.range.start),
            source.offset(text, params.range.end),
            context.only,
            context.diagnostics,
        )
        options = self.open.settings_of(source).options
        found = list(
            actions.offered(source, judgement, request, options, bool(can.disabled_support))
        )
        lazy = can.resolve_support and "edit" in can.resolve_support.properties and can.data_support
        if not lazy:
            for action in found:
                await self._complete(action)
            found = [action for action in found if action.edit or action.disabled]
            for action in found:
                action.data = None
        return found

    async def resolve(self, action: types.CodeAction) -> types.CodeAction:
        log.info("asked for: %s", action.title)
        if not action.disabled and not await self._complete(action):
            raise JsonRpcException(
                "the text has changed, and this no longer applies",
                types.LSPErrorCodes.ContentModified.value,
            )
        return action

    async def _complete(self, action: types.CodeAction) -> bool:
        """Put the edit into an action; False where it no longer applies."""
        data: Any = action.data
        source = self.open.sources.get(data["uri"]) if isinstance(data, dict) else None
        if source is None or action.disabled:
            return False
        judgement = await self.judge.judgement(source, planned=True)
        if not judgement.parsed:
            return False
        text = source.text
        change = await actions.change(
            data,
            source,
            judgement.findings,
            self.open.settings_of(source).options,
            self.open.folder_of(source).roots,
            self.process.ask,
        )
        if change is None or source.text is not text:
            return False
        action.edit = workspace_edit(
            source, minimal(text, change.text), self.edit_style, change.look_at
        )
        return action.edit is not None

    async def hover(self, params: types.HoverParams) -> types.Hover | None:
        opened = self.open.document(params.text_document.uri)
        if opened is None:
            return None
        source, document = opened
        await self._wait_for_settings()
        offset = source.offset(document, params.position)
        settings = self.open.settings_of(source)
        roots = self.open.folder_of(source).roots
        text = source.text
        if not settings.wanted:
            return None
        found = await self.process.ask(
            "hovered", source.path, text, offset, settings.options, roots
        )
        if found is None or source.text is not text:
            return None
        markdown, start, end = found
        place = source.place(start, end)
        where = document.lines.range(*place[1:]) if place else None
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, markdown), where)

    async def hints(self, params: types.InlayHintParams) -> list[types.InlayHint]:
        opened = self.open.document(params.text_document.uri)
        if opened is None:
            return []
        source, document = opened
        await self._wait_for_settings()
        if not self.open.folder_of(source).client.inlay_hints:
            return []
        judgement = await self.judge.judgement(source)
        if source.revision != judgement.revision:
            return []
        start = source.offset(document, params.range.start)
        end = source.offset(document, params.range.end)
        return list(hints.hints(source, document, judgement.findings, start, end))

    # -- tasks ----------------------------------------------------------------------------------

    def _task(self, key: object, work: Coroutine[Any, Any, None]) -> None:
        """Do something soon; what was to be done for the same reason is not done any more."""
        self._cancel(key)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[key] = task
        task.add_done_callback(partial(self._done, key))

    def _cancel(self, key: object) -> None:
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    def _done(self, key: object, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("internal error", exc_info=error)


def _pulls(client: types.ClientCapabilities) -> bool:
    """Whether a client asks for diagnostics, and can be told that it should ask again.

    One that cannot would go on showing what an edit of another file has made untrue: it is sent
    them, like one that never asks.
    """
    document, workspace = client.text_document, client.workspace
    asks = bool(document and document.diagnostic)
    return asks and bool(
        workspace and workspace.diagnostics and workspace.diagnostics.refresh_support
    )


def _is_python(given: types.TextDocumentItem) -> bool:
    return given.language_id == "python" or given.uri.endswith(".py")


def create(process: JudgingProcess) -> Server:
    """A server that listens to every message that it understands."""
    server = Server(process)
    # Texts are kept by documents.py: pygls cuts lines at form feeds too, where no client does.
    for method in (
        types.TEXT_DOCUMENT_DID_OPEN,
        types.TEXT_DOCUMENT_DID_CHANGE,
        types.TEXT_DOCUMENT_DID_CLOSE,
        types.NOTEBOOK_DOCUMENT_DID_OPEN,
        types.NOTEBOOK_DOCUMENT_DID_CHANGE,
        types.NOTEBOOK_DOCUMENT_DID_CLOSE,
    ):
        del server.protocol.fm.builtin_features[method]

    handlers: dict[str, Callable[[Any], Any]] = {
        types.INITIALIZE: server.begin,
        types.INITIALIZED: server.ready,
        types.SHUTDOWN: server.end,
        types.TEXT_DOCUMENT_DID_OPEN: server.opened,
        types.TEXT_DOCUMENT_DID_CHANGE: server.changed,
        types.TEXT_DOCUMENT_DID_SAVE: server.saved,
        types.TEXT_DOCUMENT_DID_CLOSE: server.closed,
        types.NOTEBOOK_DOCUMENT_DID_OPEN: server.notebook_opened,
        types.NOTEBOOK_DOCUMENT_DID_CHANGE: server.notebook_changed,
        types.NOTEBOOK_DOCUMENT_DID_CLOSE: server.notebook_closed,
        types.WORKSPACE_DID_CHANGE_CONFIGURATION: server.settings_changed,
        types.WORKSPACE_DID_CHANGE_WATCHED_FILES: server.files_changed,
        types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS: server.folders_changed,
        types.TEXT_DOCUMENT_CODE_ACTION: server.actions,
        types.CODE_ACTION_RESOLVE: server.resolve,
        types.TEXT_DOCUMENT_HOVER: server.hover,
        types.TEXT_DOCUMENT_INLAY_HINT: server.hints,
    }
    options = {
        types.TEXT_DOCUMENT_CODE_ACTION: types.CodeActionOptions(
            code_action_kinds=actions.KINDS, resolve_provider=True
        ),
    }
    for method, handler in handlers.items():
        server.feature(method, options.get(method))(_function(handler))
    return server


def _function(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A method as what pygls can register."""
    if asyncio.iscoroutinefunction(handler):

        async def asynchronous(params: Any) -> Any:
            return await handler(params)

        return asynchronous

    def synchronous(params: Any) -> Any:
        return handler(params)

    return synchronous


def serve(spawn: Callable[[], subprocess.Popen[bytes]]) -> None:
    """Serve over standard input and output until the client ends it, or is gone.

    ``spawn`` gives a judging process.
    """
    stdout = sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing else may write there
    process = JudgingProcess(spawn)
    server = create(process)
    gc.freeze()
    gc.enable()
    try:
        server.start_io(stdout=stdout)
    finally:
        process.stop()
