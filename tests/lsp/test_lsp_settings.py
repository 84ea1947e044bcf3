"""Settings of the project and of the client, and what happens when they change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lsp_editor import SERVER, Editor
from lsprotocol import types

from trainify.lsp.settings import ClientSettings

CODE = """\
import torch
from vllm import _custom_ops as ops


def norm(x, weight, eps):
    out = torch.empty_like(x)
    ops.rms_norm(out, x, weight, eps)
    return out
"""
LAYER = """\
import torch
from torch import nn
from vllm import _custom_ops as ops


class Norm(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        ops.rms_norm(out, x, self.weight, self.eps)
        return out
"""
UNKNOWN = "scale = 1  # trainify: ignore[TRN9999]\n"


async def titles(editor: Editor, uri: str) -> list[str]:
    (found, *_) = await editor.diagnostics(uri)
    return [a.title for a in await editor.actions(uri, found.range, "quickfix") if a.is_preferred]


async def test_settings_of_the_client(start, folder: Path) -> None:
    settings = {"strategy": "replace", "ignore": ["TRN001"]}
    asked, told = {"settings": settings}, {"options": settings}
    for profile, given in (("visual_studio_code", asked), ("neovim@v0.7.0", told)):
        editor = await start(profile, folder, **given)
        uri = editor.open(folder / "norm.py", CODE + UNKNOWN)
        assert [d.code for d in await editor.diagnostics(uri)] == ["TRN101"]
        assert await titles(editor, uri) == ["Always use the differentiable rms_norm"]


async def test_mistakes_are_told_and_the_client_changes_its_mind(start, folder: Path) -> None:
    settings = {"strategy": "magic", "inlayHints": 3, "colour": "red", "select": ["TRN1"]}
    editor = await start("visual_studio_code", folder, settings={"flag": "training", **settings})
    uri = editor.open(folder / "norm.py", LAYER + UNKNOWN)
    assert [d.code for d in await editor.diagnostics(uri)] == ["TRN101"]  # the rest holds
    assert await titles(editor, uri) == ["Use the differentiable rms_norm when training"]
    told = " ".join(message.message for message in editor.client.messages)
    for part in ("trainify.strategy: must be one of", "trainify.inlayHints: must be", "colour"):
        assert part in told
    editor.client.set_configuration({"trainify": {"enable": False}})
    editor.client.workspace_did_change_configuration(types.DidChangeConfigurationParams(None))
    assert await editor.again(uri) == []
    editor.client.set_configuration({"trainify": {}})
    changed = types.DidChangeConfigurationParams({"trainify": {"strategy": "attach"}})
    editor.client.workspace_did_change_configuration(changed)
    assert len(await editor.again(uri)) == 2  # with the comment that silences nothing


async def test_settings_of_the_project_and_their_changes(editor: Editor, folder: Path) -> None:
    settings = folder / "pyproject.toml"
    settings.write_text('[tool.trainify]\nignore = ["TRN101"]\n')
    uri = editor.open(folder / "norm.py", CODE)
    assert await editor.diagnostics(uri) == []
    settings.write_text("[tool.trainify]\nignore = []\n")
    if any(r.method == types.WORKSPACE_DID_CHANGE_WATCHED_FILES for r in editor.registered):
        event = types.FileEvent(settings.as_uri(), types.FileChangeType.Changed)
        editor.client.workspace_did_change_watched_files(types.DidChangeWatchedFilesParams([event]))
    else:
        editor.save(uri)
    assert len(await editor.again(uri)) == 1


async def test_a_mistake_in_the_project_is_shown_there(start, folder: Path) -> None:
    editor = await start("visual_studio_code", folder)
    settings = folder / "pyproject.toml"
    settings.write_text('[tool.trainify]\nstrategy = "replace"\n')
    uri = editor.open(folder / "norm.py", CODE)
    assert await titles(editor, uri) == ["Always use the differentiable rms_norm"]
    settings.write_text('[tool.trainify]\n\nstrategy = "magic"\n')
    event = types.FileEvent(settings.as_uri(), types.FileChangeType.Changed)
    changed = types.DidChangeWatchedFilesParams([event])
    editor.client.workspace_did_change_watched_files(changed)
    await editor.until(lambda: editor.published.get(settings.as_uri()))
    (mistake,) = editor.published[settings.as_uri()][-1].diagnostics
    assert mistake.range.start.line == 2 and "strategy" in mistake.message
    # What was right before still holds.
    assert await titles(editor, uri) == ["Always use the differentiable rms_norm"]
    settings.write_text("[tool.trainify]\n")
    editor.client.workspace_did_change_watched_files(changed)
    await editor.until(lambda: not editor.published[settings.as_uri()][-1].diagnostics)


async def test_excluded_files(start, folder: Path) -> None:
    (folder / "pyproject.toml").write_text(
        '[tool.trainify]\nexclude = ["third_party"]\n'
        '[tool.trainify.per-file-ignores]\n"eval/*" = ["TRN1"]\n'
    )
    editor = await start("visual_studio_code", folder)
    for place, count in (
        ("third_party/a/norm.py", 0),
        (".venv/lib/norm.py", 0),
        ("eval/norm.py", 0),
        ("src/norm.py", 1),
    ):
        uri = editor.open(folder / place, CODE)
        assert len(await editor.diagnostics(uri)) == count, place


async def test_each_folder_has_its_own(start, folder: Path) -> None:
    one, two = folder / "one", folder / "two"
    for each, settings in ((one, ""), (two, 'ignore = ["TRN101"]\n')):
        each.mkdir()
        (each / "pyproject.toml").write_text(f"[tool.trainify]\n{settings}")
    editor = await start("visual_studio_code", one, two)
    assert len(await editor.diagnostics(editor.open(one / "norm.py", CODE))) == 1
    assert len(await editor.diagnostics(editor.open(two / "norm.py", CODE))) == 0
    three = folder / "three"
    three.mkdir()
    (three / "mine.py").write_text("from vllm import _custom_ops\n")
    added = types.WorkspaceFolder(three.as_uri(), "three")
    editor.client.workspace_did_change_workspace_folders(
        types.DidChangeWorkspaceFoldersParams(types.WorkspaceFoldersChangeEvent([added], []))
    )
    uri = editor.open(three / "sub" / "norm.py", CODE.replace("vllm", "mine"))
    assert len(await editor.diagnostics(uri)) == 1


def test_what_belongs_to_the_client_only() -> None:
    given = ClientSettings.read({"command": ["x"], "trace": {"server": "off"}, "strategy": None})
    assert given == ClientSettings()
    assert ClientSettings.read("nonsense") == ClientSettings()


def test_log_file(tmp_path: Path) -> None:
    log = tmp_path / "trainify.log"
    done = subprocess.run(
        [*SERVER, "--stdio", "-v", "--log-file", str(log)],
        input=b"",
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert log.exists()
    command = [sys.executable, "-m", "trainify", "lsp", "--log-file", str(tmp_path)]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=60)
    assert done.returncode == 2 and b"cannot write" in done.stderr
