"""What is shown of a text, as it stands in the editor."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from lsp_editor import Editor
from lsprotocol import types

from tests.each import some
from trainify.passes import all_rules

CALL = "ops.rms_norm(out, x, weight, eps)"
CODE = f"""\
import torch
from vllm import _custom_ops as ops


def norm(x, weight, eps):
    out = torch.empty_like(x)
    {CALL}
    return out
"""
LOSS = """\
import torch

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
with torch.no_grad():
    loss = (x * x).sum()
loss.backward()
"""


async def test_open_change_close(each_editor: Editor, folder: Path) -> None:
    editor = each_editor
    uri = editor.open(folder / "norm.py", "x = 1\n")
    assert await editor.diagnostics(uri) == []
    editor.replace(uri, CODE)  # never saved: it is judged as it stands in the editor
    (found,) = await editor.diagnostics(uri)
    assert editor.shown(uri, found.range) == CALL
    assert (found.code, found.source) == ("TRN101", "trainify")
    assert "records no backward" in found.message
    assert found.severity == types.DiagnosticSeverity.Warning
    start = CODE.index("    ops.")
    editor.edit(uri, (start, start, "    # one more line\n"), (0, 0, "import os\n"))
    (found,) = await editor.diagnostics(uri)
    assert editor.shown(uri, found.range) == CALL
    editor.close(uri)
    if not editor.pulls:
        await editor.until(lambda: not editor.published[uri][-1].diagnostics)


async def test_a_saved_file_is_judged_again(start, folder: Path) -> None:
    """For a client that watches no files: what another file says now counts."""
    editor = await start("neovim@v0.7.0", folder)
    (folder / "mine.py").write_text("")
    uri = editor.open(folder / "norm.py", CODE.replace("from vllm", "from mine"))
    assert await editor.diagnostics(uri) == []
    (folder / "mine.py").write_text("from vllm import _custom_ops\n")
    editor.save(uri)
    assert [d.code for d in await editor.again(uri)] == ["TRN101"]


async def test_what_belongs_to_a_finding(start, folder: Path) -> None:
    editor = await start("visual_studio_code", folder)
    uri = editor.open(folder / "norm.py", CODE)
    (found,) = await editor.diagnostics(uri)
    (related,) = found.related_information
    assert related.location.uri == uri
    assert editor.shown(uri, related.location.range) == "out = torch.empty_like(x)"
    page, _, line = found.code_description.href.removeprefix("file://").partition("#L")
    heading = Path(page).read_text().splitlines()[int(line) - 1]
    assert heading == f"## TRN101 {all_rules()['TRN101'].name}"

    uri = editor.open(folder / "loss.py", LOSS)
    (found,) = await editor.diagnostics(uri)
    assert (found.code, found.severity) == ("TRN202", types.DiagnosticSeverity.Error)
    (related,) = found.related_information
    assert editor.shown(uri, related.location.range) == "torch.no_grad()"


async def test_only_what_a_client_understands(start, folder: Path) -> None:
    plain = types.ClientCapabilities(
        text_document=types.TextDocumentClientCapabilities(
            publish_diagnostics=types.PublishDiagnosticsClientCapabilities()
        )
    )
    editor = await start(plain, folder)
    uri = editor.open(folder / "norm.py", CODE + "# trainify: ignore[TRN9999]\n")
    found = await editor.diagnostics(uri)
    assert [d.code for d in found] == ["TRN101", "TRN001"]
    assert not any(d.related_information or d.tags or d.code_description for d in found)


async def test_tags(start, folder: Path) -> None:
    editor = await start("visual_studio_code", folder)
    uri = editor.open(folder / "norm.py", "import torch  # trainify: ignore[TRN9999]\n")
    (found,) = await editor.diagnostics(uri)
    assert found.tags == (types.DiagnosticTag.Unnecessary,)


async def test_broken_text_keeps_what_was_found(editor: Editor, folder: Path) -> None:
    uri = editor.open(folder / "norm.py", CODE)
    (before,) = await editor.diagnostics(uri)
    editor.exchange(uri, "def norm", "# 1\n\n# 2\ndef )norm")
    (found,) = await editor.diagnostics(uri)
    assert found.range.start.line == before.range.start.line + 3
    assert editor.shown(uri, found.range) == CALL
    assert found.message == before.message
    # Without a hint of a fused op either, as long as the text is broken.
    editor.exchange(uri, "from vllm import _custom_ops as ops", "from vl import (")
    (found,) = await editor.diagnostics(uri)
    assert editor.shown(uri, found.range) == CALL
    # The code that it was about goes, and it with it.
    editor.exchange(uri, CALL, "")
    assert await editor.diagnostics(uri) == []
    editor.replace(uri, CODE)
    assert len(await editor.diagnostics(uri)) == 1


async def test_no_fix_for_a_broken_text(editor: Editor, folder: Path) -> None:
    uri = editor.open(folder / "norm.py", CODE)
    await editor.diagnostics(uri)
    editor.exchange(uri, "def norm", "def )norm")
    assert await editor.actions(uri, editor.range_of(uri, CALL)) == []


@pytest.mark.parametrize("every", some([4], [4, 1]), ids=lambda every: f"every {every}")
async def test_columns_and_lines(each_editor: Editor, folder: Path, every: int) -> None:
    """Characters of every width in front, every line ending, a form feed that ends no line."""
    editor = each_editor
    call = "rmsnorm(x, weight, eps)"
    lines = ["import torch", "from sgl_kernel import rmsnorm", "", "def norm(x, weight, eps):"]
    befores = ("", "é", "訓練", "🔥", "a\x0cb")
    texts = list(product(("", "\ufeff"), befores, ("\n", "\r\n", "\r")))
    for number, (mark, before, end) in list(enumerate(texts))[::every]:
        code = mark + end.join((*lines, f'    return "{before}", {call}', ""))
        uri = editor.open(folder / f"norm{number}.py", code)
        (found,) = await editor.diagnostics(uri)
        assert editor.shown(uri, found.range) == call
        start = code.index(call) - 3
        first = len(mark)
        editor.edit(uri, (start, start, before), (first, first, f"# {before}{end}"))
        (found,) = await editor.diagnostics(uri)
        assert editor.shown(uri, found.range) == call
        actions = await editor.actions(uri, found.range, "quickfix")
        (action,) = [action for action in actions if action.is_preferred]
        await editor.apply(action)
        assert await editor.diagnostics(uri) == []
        text = editor.texts[uri]
        assert text.startswith(f"{mark}# {before}{end}import torch{end}")
        assert "is_grad_enabled()" in text and f'"{before}{before}"' in text
        assert not set("\r\n") & set(text.replace(end, ""))
        editor.close(uri)


async def test_unchanged_results_are_not_sent_twice(start, folder: Path) -> None:
    editor = await start("pulling", folder)
    uri = editor.open(folder / "norm.py", CODE)
    ask = types.DocumentDiagnosticParams(types.TextDocumentIdentifier(uri))
    first = await editor.client.text_document_diagnostic_async(ask)
    ask.previous_result_id = first.result_id
    second = await editor.client.text_document_diagnostic_async(ask)
    assert isinstance(second, types.RelatedUnchangedDocumentDiagnosticReport)
    editor.exchange(uri, "\n\n\n", "\n\n\n\n")
    third = await editor.client.text_document_diagnostic_async(ask)
    assert len(third.items) == 1


async def test_nothing_for_other_languages(start, folder: Path) -> None:
    editor = await start("visual_studio_code", folder)
    uri = (folder / "notes.md").as_uri()
    item = types.TextDocumentItem(uri, "markdown", 1, CODE)
    editor.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
    other = editor.open(folder / "norm.py", CODE)
    await editor.diagnostics(other)
    assert uri not in editor.published


async def test_untitled(start, folder: Path) -> None:
    editor = await start("visual_studio_code", folder)
    uri = editor.open("untitled:Untitled-1", CODE)
    assert len(await editor.diagnostics(uri)) == 1
