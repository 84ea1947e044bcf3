"""The server for editors that no package index has here: Helix and Zed.

What they say of themselves is written down from their sources (``helix-lsp/src/client.rs`` and
``crates/lsp/src/lsp.rs``), as far as this server asks for it; the command is that of
docs/editors.md.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from lsp_editor import Editor
from lsprotocol import converters, types
from test_real_editors import LAYERS, blocks

from trainify.engine import check_paths, fix_paths

_WORKSPACE = {
    "applyEdit": True,
    "configuration": True,
    "workspaceFolders": True,
    "workspaceEdit": {
        "documentChanges": True,
        "resourceOperations": ["create", "rename", "delete"],
    },
}
HELIX = {
    "workspace": {
        **_WORKSPACE,
        "didChangeConfiguration": {"dynamicRegistration": False},
        "didChangeWatchedFiles": {"dynamicRegistration": True, "relativePatternSupport": False},
        "inlayHint": {"refreshSupport": False},
    },
    "textDocument": {
        "codeAction": {
            "codeActionLiteralSupport": {
                "codeActionKind": {"valueSet": ["", "quickfix", "refactor", "source"]}
            },
            "isPreferredSupport": True,
            "disabledSupport": True,
            "dataSupport": True,
            "resolveSupport": {"properties": ["edit", "command"]},
        },
        "hover": {"contentFormat": ["markdown"]},
        "inlayHint": {"dynamicRegistration": False},
        "publishDiagnostics": {"versionSupport": True, "tagSupport": {"valueSet": [1, 2]}},
    },
    "general": {"positionEncodings": ["utf-8", "utf-32", "utf-16"]},
}
ZED = {
    "workspace": {
        **_WORKSPACE,
        "didChangeConfiguration": {"dynamicRegistration": True},
        "didChangeWatchedFiles": {"dynamicRegistration": True, "relativePatternSupport": True},
        "diagnostics": {},
        "inlayHint": {"refreshSupport": True},
    },
    "textDocument": {
        "codeAction": {
            "codeActionLiteralSupport": {
                "codeActionKind": {"valueSet": ["refactor", "quickfix", "source"]}
            },
            "dataSupport": True,
            "resolveSupport": {
                "properties": ["kind", "diagnostics", "isPreferred", "disabled", "edit", "command"]
            },
        },
        "hover": {"contentFormat": ["markdown"]},
        "inlayHint": {"dynamicRegistration": False},
        "publishDiagnostics": {"relatedInformation": True},
        "synchronization": {"didSave": True},
    },
    "general": {"positionEncodings": ["utf-16"]},
}


def of_helix() -> Sequence[str]:
    tomllib = pytest.importorskip("tomllib")
    (configuration,) = map(tomllib.loads, blocks("toml"))
    (python,) = configuration["language"]
    server = configuration["language-server"][python["language-servers"][0]]
    return server["command"], *server["args"]


def of_zed() -> Sequence[str]:
    (configuration,) = [json.loads(b) for b in blocks("json") if '"language_servers"' in b]
    name = configuration["languages"]["Python"]["language_servers"][0]
    binary = configuration["lsp"][name]["binary"]
    return binary["path"], *binary["arguments"]


@pytest.mark.parametrize(
    ("capabilities", "configured", "encoding"),
    [(HELIX, of_helix, "utf-8"), (ZED, of_zed, "utf-16")],
    ids=["helix", "zed"],
)
async def test_saved_as_the_command_line_writes_it(
    capabilities, configured, encoding: str, start, folder: Path
) -> None:
    program, *arguments = configured()
    found = shutil.which(program, path=Path(sys.executable).parent)
    assert found is not None
    said = converters.get_converter().structure(capabilities, types.ClientCapabilities)
    editor: Editor = await start(said, folder, command=(found, *arguments))
    assert editor.encoding == encoding
    for name in ("activation.py", "layernorm.py"):
        file = folder / name
        shutil.copy(LAYERS / name, file)
        (report,) = check_paths([str(file)])
        (fixed,) = fix_paths([str(file)])
        assert fixed.change is not None
        uri = editor.open(file)
        shown = sorted(
            (d.range.start.line + 1, d.range.start.character + 1, d.code)
            for d in await editor.diagnostics(uri)
        )
        assert shown == [(f.line, f.column, f.rule) for f in report.findings]
        where = types.Range(types.Position(0, 0), types.Position(0, 0))
        (action,) = await editor.actions(uri, where, "source.fixAll.trainify")
        await editor.apply(action)
        assert editor.texts[uri].encode() == fixed.change.after
