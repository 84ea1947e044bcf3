"""What goes wrong with editors, files and judgements, and must not end the server."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lsp_editor import Editor
from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

from trainify import check_text
from trainify.lsp.pipe import send
from trainify.lsp.worker import _Requests

ROOT = Path(__file__).parents[2]
CALL = "ops.rms_norm(out, x, weight, eps)"
CODE = f"""\
import torch
from vllm import _custom_ops as ops


def norm(x, weight, eps):
    out = torch.empty_like(x)
    {CALL}
    return out
"""


def processes(editor: Editor) -> list[int]:
    """The server, and its judging process."""
    server = editor.client._server.pid
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return [server, *map(int, children)]


def kilobytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


@pytest.mark.parametrize("profile", ["neovim@v0.7.0", "pulling"])
async def test_rapid_typing(profile: str, start, folder: Path) -> None:
    """Every key is an edit, most states are broken, and none is waited for."""
    editor = await start(profile, folder)
    uri = editor.open(folder / "norm.py", "")
    pulled = []
    for i, character in enumerate(CODE):
        editor.edit(uri, (i, i, character))
        if editor.pulls and i % 7 == 0:
            pulled.append(asyncio.ensure_future(editor.diagnostics(uri)))
        if i % 20 == 0:
            await asyncio.sleep(0.005)
    (found,) = await editor.diagnostics(uri)
    assert editor.shown(uri, found.range) == CALL
    for each in asyncio.as_completed(pulled):
        await each
    versions = [params.version for params in editor.published.get(uri, ())]
    assert versions == sorted(versions)


async def test_random_edits(start, folder: Path) -> None:
    """After any edits the server has the text that the editor has."""
    editor = await start("visual_studio_code", folder)
    text = (ROOT / "fixtures/llama_serving/layers/layernorm.py").read_text()
    uri = editor.open(folder / "norm.py", text + "# 🔥é訓\r\n\x0c\r# end")
    chance = random.Random(0)
    pieces = ("\n", "\r\n", "\r", "🔥", "é", "(", ")", '"""', "x", "    ", "\x0c", "\u2028", "")

    def place(at: int) -> int:
        """No editor has a place between these two."""
        return at + (editor.texts[uri][at - 1 : at + 1] == "\r\n")

    for _ in range(150):
        at = place(chance.randrange(len(editor.texts[uri]) - 40))
        end = place(at + chance.choice((0, 0, 1, 9)))
        editor.edit(uri, (at, end, chance.choice(pieces)))
    editor.exchange(uri, "# end", "# the end")
    for tail in ("", "\n\n" + CODE.replace("norm(x", "again(x")):
        end = len(editor.texts[uri])
        editor.edit(uri, (0, end, text + tail))
        found = await editor.diagnostics(uri)
        expected = [f.message for f in check_text(text + tail, str(folder / "norm.py"))]
        assert [d.message for d in found] == expected


async def test_ranges_that_are_not_there(start, folder: Path) -> None:
    editor = await start("visual_studio_code", folder)
    uri = editor.open(folder / "norm.py", CODE)
    far = types.Range(types.Position(999, 999), types.Position(9999, 0))
    assert [a.title for a in await editor.actions(uri, far)] == [
        "Fix all gradient cuts in this file"
    ]
    backwards = types.Range(types.Position(5, 0), types.Position(2, 0))
    await editor.actions(uri, backwards)
    change = types.TextDocumentContentChangePartial(range=far, text="# more\n")
    editor.texts[uri] += "# more\n"
    editor._send(uri, [change])
    assert len(await editor.diagnostics(uri)) == 1
    unknown = types.TextDocumentIdentifier((folder / "unknown.py").as_uri())
    ask = types.HoverParams(unknown, types.Position(0, 0))
    assert await editor.client.text_document_hover_async(ask) is None
    assert await editor.actions(unknown.uri, far) == []


async def test_requests_with_wrong_parameters(start, folder: Path) -> None:
    editor = await start("visual_studio_code", folder)
    uri = editor.open(folder / "norm.py", CODE)
    document = {"uri": uri}
    for method, params, wrong in (
        ("hover", {"textDocument": document}, "params.position"),
        ("hover", {"textDocument": document, "position": {"line": "x"}}, "params.position.line"),
        ("hover", None, "params"),
        ("codeAction", {"textDocument": uri, "range": [], "context": {}}, "params.text_document"),
        ("inlayHint", [document], "params"),
    ):
        with pytest.raises(JsonRpcInvalidParams, match=f"@ {wrong}"):
            await editor.request(f"textDocument/{method}", params)
    assert len(await editor.diagnostics(uri)) == 1  # and the next one is answered


async def test_texts_that_are_no_python(start, folder: Path) -> None:
    editor = await start("visual_studio_code", folder)
    hint = "from vllm import _custom_ops as ops\n"
    for number, text in enumerate(
        (
            hint + "\0",
            hint + "\ud800 = 1\n",
            hint + "(" * 5000,
            hint + "x = " + "-" * 200_000 + "1\n",
            hint + "x = " + "[" * 300 + "]" * 300 + "\n",
            hint + "if 1:\n" * 200,
            hint + '"""',
            hint + "\tx\n  y\n",
        )
    ):
        uri = editor.open(folder / f"bad{number}.py", text)
        assert await editor.diagnostics(uri) == []
    uri = editor.open(folder / "norm.py", CODE)
    assert len(await editor.diagnostics(uri)) == 1


async def test_the_judging_process_is_killed(start, folder: Path) -> None:
    editor = await start("visual_studio_code", folder)
    uri = editor.open(folder / "norm.py", CODE)
    assert len(await editor.diagnostics(uri)) == 1
    _, judging = processes(editor)
    os.kill(judging, signal.SIGKILL)
    editor.edit(uri, (0, 0, "# 1\n"))
    await editor.diagnostics(uri)  # whatever it is, there is an answer
    editor.edit(uri, (0, 0, "# 2\n"))
    (found,) = await editor.diagnostics(uri)
    assert editor.shown(uri, found.range) == CALL


async def test_requests_that_are_cancelled(start, folder: Path) -> None:
    editor = await start("pulling", folder)
    big = "\n\n".join(CODE.replace("def norm", f"def norm{i}") for i in range(300))
    uri = editor.open(folder / "norm.py", big)
    waiting = asyncio.ensure_future(editor.diagnostics(uri))
    await asyncio.sleep(0.2)
    editor.replace(uri, CODE)
    assert len(await editor.diagnostics(uri)) == 1
    await waiting
    editor.replace(uri, big)
    waiting = asyncio.ensure_future(editor.diagnostics(uri))
    await asyncio.sleep(0.1)
    editor.close(uri)
    assert await waiting == []


async def test_torch_is_never_imported_and_no_code_is_run(start, folder: Path) -> None:
    trap = f"open({str(folder / 'ran')!r}, 'w')\n"
    for name in ("ast", "torch", "pygls", "libcst", "conftest", "sitecustomize"):
        (folder / f"{name}.py").write_text(trap)
    (folder / "mine.py").write_text(trap + "from vllm import _custom_ops\n")
    here = Path.cwd()
    os.chdir(folder)
    try:
        # Not python -m, which looks for modules here before any of ours is asked.
        command = (str(Path(sys.executable).with_name("trainify")), "lsp")
        editor = await start("visual_studio_code", folder, command=command)
    finally:
        os.chdir(here)
    uri = editor.open(folder / "norm.py", CODE.replace("vllm", "mine"))
    assert len(await editor.diagnostics(uri)) == 1
    for action in await editor.actions(uri, editor.range_of(uri, CALL)):
        await editor.resolved(action)
    for pid in processes(editor):
        mapped = Path(f"/proc/{pid}/maps").read_text()
        assert "libtorch" not in mapped and "site-packages/torch/" not in mapped
    assert not (folder / "ran").exists()


@pytest.mark.slow
async def test_a_huge_file(start, folder: Path) -> None:
    editor = await start("visual_studio_code", folder)
    big = CODE + "\n".join(f"def f{i}(x):\n    return x + {i}" for i in range(100_000))
    uri = editor.open(folder / "norm.py", big)
    waiting = asyncio.ensure_future(editor.diagnostics(uri))
    other = editor.open(folder / "small.py", CODE)
    hover = types.HoverParams(types.TextDocumentIdentifier(other), types.Position(0, 0))
    await asyncio.wait_for(editor.client.text_document_hover_async(hover), 60)
    assert len(await asyncio.wait_for(waiting, 60)) == 1
    for i in range(20):
        editor.edit(uri, (i, i, "#"))
    assert len(await asyncio.wait_for(editor.diagnostics(uri), 60)) == 1


def test_what_is_cancelled_too_late_is_forgotten() -> None:
    """An answer and its cancellation cross on the way, some thousand times a day."""
    ours, theirs = os.pipe()
    with open(ours, "rb") as end, open(theirs, "wb") as file, ThreadPoolExecutor() as pool:
        requests = _Requests(end)
        send(file, (1, "judge", ()))
        assert requests.next(None) == (1, "judge", ())
        second = pool.submit(requests.next, None)  # so the first is done
        time.sleep(0.05)
        send(file, (1, "", ()))
        send(file, (2, "judge", ()))
        assert second.result() == (2, "judge", ())
        assert not requests._cancelled


@pytest.mark.slow
async def test_memory_stays_flat(start, folder: Path) -> None:
    editor = await start("neovim@v0.7.0", folder)
    text = (ROOT / "fixtures/llama_serving/layers/layernorm.py").read_text()
    uri = editor.open(folder / "norm.py", text)
    everything = types.Range(types.Position(0, 0), types.Position(99, 0))
    await editor.actions(uri, everything)  # whatever is loaded when it is needed is loaded
    used = []
    for i in range(5000):
        at = text.index("\n")
        editor.edit(uri, (at, at, "#") if i % 2 == 0 else (at, at + 1, ""))
        if i % 25 == 24:
            await editor.diagnostics(uri)
            editor.published[uri].clear()
            editor.published[uri] = editor.published[uri][-1:]
        if i % 1000 == 999:
            await asyncio.sleep(1)  # with no request for a while, it looks for garbage
            used.append([kilobytes(pid) for pid in processes(editor)])
    for first, last in zip(used[0], used[-1], strict=True):
        assert last < first * 1.05 + 1000, used
