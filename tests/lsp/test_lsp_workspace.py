"""What one file says of another: on the disk, open, changed, gone."""

from __future__ import annotations

from pathlib import Path

from lsp_editor import Editor
from lsprotocol import types

MINE = "from vllm import _custom_ops as ops\n"
OTHER = MINE.replace("vllm import _custom_ops", "torch import nn")
CODE = """\
import torch
from mine import ops


def norm(x, weight, eps):
    out = torch.empty_like(x)
    ops.rms_norm(out, x, weight, eps)
    return out
"""


async def test_an_open_text_counts_for_others(editor: Editor, folder: Path) -> None:
    (folder / "mine.py").write_text(OTHER)
    uri = editor.open(folder / "norm.py", CODE)
    assert await editor.diagnostics(uri) == []
    mine = editor.open(folder / "mine.py", OTHER)
    await editor.diagnostics(mine)
    editor.replace(mine, MINE)  # not saved
    await editor.diagnostics(mine)
    assert [d.code for d in await editor.again(uri)] == ["TRN101"]
    editor.replace(mine, OTHER)
    await editor.diagnostics(mine)
    assert await editor.again(uri) == []


async def test_a_name_that_an_open_text_gives_a_kernel(editor: Editor, folder: Path) -> None:
    none = "import sgl_kernel\nfrom own import act\n"
    (folder / "mine.py").write_text(none)
    uri = editor.open(
        folder / "user.py", "import torch\nfrom mine import act\n\n\ndef f(x):\n    return act(x)\n"
    )
    assert await editor.diagnostics(uri) == []
    mine = editor.open(folder / "mine.py", none)
    await editor.diagnostics(mine)
    editor.replace(mine, "import sgl_kernel\nact = sgl_kernel.silu_and_mul\n")
    await editor.diagnostics(mine)
    assert [d.code for d in await editor.again(uri)] == ["TRN101"]
    editor.replace(mine, none)
    await editor.diagnostics(mine)
    assert await editor.again(uri) == []


async def test_a_closed_text_no_longer_counts(start, folder: Path) -> None:
    editor = await start("visual_studio_code", folder)
    (folder / "mine.py").write_text(OTHER)
    mine = editor.open(folder / "mine.py", MINE)
    await editor.diagnostics(mine)
    uri = editor.open(folder / "norm.py", CODE)
    assert len(await editor.diagnostics(uri)) == 1
    editor.close(mine)
    assert await editor.again(uri) == []


async def test_files_come_and_go(start, folder: Path) -> None:
    editor = await start("visual_studio_code", folder)
    uri = editor.open(folder / "norm.py", CODE)
    assert await editor.diagnostics(uri) == []
    mine = folder / "mine.py"

    def told(kind: types.FileChangeType) -> None:
        changed = types.DidChangeWatchedFilesParams([types.FileEvent(mine.as_uri(), kind)])
        editor.client.workspace_did_change_watched_files(changed)

    mine.write_text(MINE)
    told(types.FileChangeType.Created)
    assert len(await editor.again(uri)) == 1
    mine.write_text(OTHER)
    told(types.FileChangeType.Changed)
    assert await editor.again(uri) == []
    mine.write_text(MINE)
    told(types.FileChangeType.Changed)
    assert len(await editor.again(uri)) == 1
    mine.unlink()
    told(types.FileChangeType.Deleted)
    assert await editor.again(uri) == []


async def test_a_file_that_is_deleted_while_open(editor: Editor, folder: Path) -> None:
    path = folder / "norm.py"
    path.write_text(CODE.replace("mine import", "vllm import _custom_ops as"))
    uri = editor.open(path)
    assert len(await editor.diagnostics(uri)) == 1
    path.unlink()
    editor.edit(uri, (0, 0, "# still open\n"))
    (found,) = await editor.diagnostics(uri)
    (action, *_) = await editor.actions(uri, found.range, "quickfix")
    await editor.apply(action)
    assert await editor.diagnostics(uri) == []


async def test_a_folder_that_is_deleted(start, folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    editor = await start("visual_studio_code", inner)
    inner.rmdir()
    uri = editor.open(inner / "norm.py", CODE.replace("mine import", "vllm import _custom_ops as"))
    assert len(await editor.diagnostics(uri)) == 1


async def test_a_related_place_in_another_open_text(start, folder: Path) -> None:
    """It is where the text has it that is open, not where the file has it."""
    helper = "import torch\n\n\ndef loss_of(model, x):\n"
    helper += "    with torch.no_grad():\n        return model(x).sum()\n"
    step = "from helper import loss_of\n\n\ndef train(model, x, optimizer):\n"
    step += "    loss = loss_of(model, x)\n    loss.backward()\n    optimizer.step()\n"
    (folder / "helper.py").write_text(helper)
    editor = await start("visual_studio_code", folder)
    other = editor.open(folder / "helper.py", "# not saved\n" + helper)
    await editor.diagnostics(other)
    uri = editor.open(folder / "train.py", step)
    (found,) = await editor.diagnostics(uri)
    (related,) = found.related_information
    assert related.location.uri == other
    assert editor.shown(other, related.location.range) == "torch.no_grad()"
