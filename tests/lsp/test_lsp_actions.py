"""Code actions, as titles first and as edits when they are asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from lsp_editor import Editor
from lsprotocol import types
from pygls.exceptions import JsonRpcException

from trainify import Options, apply_edits, check_text, fix_text
from trainify.catalog import lookup
from trainify.passes import all_rules

CALL = "ops.rms_norm(out, x, weight, eps)"
CODE = f"""\
import torch
from vllm import _custom_ops as ops


def norm(x, weight, eps):
    out = torch.empty_like(x)
    {CALL}
    return out


def activation(x):
    out = torch.empty_like(x[..., ::2])
    ops.silu_and_mul(out, x)
    return out
"""
UNSAFE = all_rules()["TRN503"].before
FIX_ALL = "source.fixAll.trainify"


def by_title(actions: list[types.CodeAction], start: str) -> types.CodeAction:
    (action,) = [action for action in actions if action.title.startswith(start)]
    return action


async def test_a_fix_for_each_strategy(editor: Editor, folder: Path) -> None:
    finding, _ = check_text(CODE, "norm.py")
    uri = editor.open(folder / "norm.py", CODE)
    for title, strategy in (
        ("Use the differentiable rms_norm when a gradient is wanted", "flag"),
        ("Always use the differentiable rms_norm", "replace"),
        ("Keep rms_norm and give it a backward", "attach"),
    ):
        known = await editor.diagnostics(uri)
        action = by_title(await editor.actions(uri, known[0].range, known=known), title)
        assert action.kind == types.CodeActionKind.QuickFix
        assert action.is_preferred == (strategy == "flag")
        assert [d.range for d in action.diagnostics] == [known[0].range]
        await editor.apply(action)
        assert editor.texts[uri] == apply_edits(CODE, finding.fixes[strategy].edits)
        editor.replace(uri, CODE)


async def test_fix_all_is_what_the_command_line_writes(editor: Editor, folder: Path) -> None:
    uri = editor.open(folder / "norm.py", CODE)
    start = types.Position(0, 0)
    (action,) = await editor.actions(uri, types.Range(start, start), "source.fixAll")
    assert action.kind == FIX_ALL
    await editor.apply(action)
    assert editor.texts[uri] == fix_text(CODE, "norm.py").text
    assert await editor.actions(uri, types.Range(start, start), "source") == []


async def test_fix_all_of_one_rule(start, folder: Path) -> None:
    editor = await start("visual_studio_code", folder)
    code = (
        CODE + "\n\ndef add(x, r, w):\n    ops.fused_add_rms_norm(x, r, w, 1e-6)\n    return x, r\n"
    )
    uri = editor.open(folder / "norm.py", code)
    actions = await editor.actions(uri, editor.range_of(uri, CALL))
    await editor.apply(by_title(actions, "Fix all TRN101 in this file"))
    assert [d.code for d in await editor.diagnostics(uri)] == ["TRN102"]
    assert editor.texts[uri] == fix_text(code, "norm.py", Options(select=("TRN101",))).text
    actions = await editor.actions(uri, editor.range_of(uri, "fused_add_rms_norm"))
    assert not any(action.title.startswith("Fix all TRN102") for action in actions)  # only one


async def test_silence(editor: Editor, folder: Path) -> None:
    uri = editor.open(folder / "norm.py", CODE)
    for call in (CALL, "ops.silu_and_mul(out, x)"):
        actions = await editor.actions(uri, editor.range_of(uri, call))
        await editor.apply(by_title(actions, "Silence TRN101 on this line"))
        assert f"{call}  # trainify: ignore[TRN101]\n" in editor.texts[uri]
    assert await editor.diagnostics(uri) == []


async def test_kinds_that_are_asked_for(start, folder: Path) -> None:
    editor = await start("visual_studio_code", folder)
    uri = editor.open(folder / "norm.py", CODE)
    where = editor.range_of(uri, CALL)
    kinds = {a.kind for a in await editor.actions(uri, where)}
    assert kinds == {"quickfix", FIX_ALL}
    for only, expected in (
        ("quickfix", {"quickfix"}),
        ("source", {FIX_ALL}),
        (FIX_ALL, {FIX_ALL}),
        ("source.fixAll.other", set()),
        ("source.fix", set()),
        ("refactor", set()),
    ):
        assert {a.kind for a in await editor.actions(uri, where, only)} == expected, only
    elsewhere = editor.range_of(uri, "import torch")
    assert {a.kind for a in await editor.actions(uri, elsewhere)} == {FIX_ALL}


async def test_unsafe_fixes_are_marked_and_never_part_of_fix_all(start, folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.trainify]\nunsafe = true\n")
    editor = await start("visual_studio_code", folder)
    uri = editor.open(folder / "net.py", UNSAFE)
    (found,) = await editor.diagnostics(uri)
    (fix, silence) = await editor.actions(uri, found.range)
    assert "(unsafe: look at" in fix.title and not fix.is_preferred
    assert silence.title.startswith("Silence")
    edit = (await editor.resolved(fix)).edit
    (annotation,) = edit.change_annotations.values()
    assert annotation.needs_confirmation and annotation.description
    (change,) = edit.document_changes
    assert all(e.annotation_id in edit.change_annotations for e in change.edits)
    await editor.apply(fix)
    assert editor.texts[uri] == fix_text(UNSAFE, "net.py", Options(unsafe=True)).text


async def test_edits_are_minimal(start, folder: Path) -> None:
    editor = await start("visual_studio_code", folder)
    uri = editor.open(folder / "norm.py", CODE)
    for only in ("quickfix", FIX_ALL):
        actions = await editor.actions(uri, editor.range_of(uri, CALL), only)
        (change,) = (await editor.resolved(actions[0])).edit.document_changes
        for each in change.edits:
            old = editor.shown(uri, each.range)
            assert old != each.new_text
            assert not (old and each.new_text) or (
                old[0] != each.new_text[0] and old[-1] != each.new_text[-1]
            )
            assert "import torch\n" not in old and "return out" not in old


async def test_an_action_on_an_older_text(start, folder: Path) -> None:
    """It is made of the text as it is now, or not at all."""
    editor = await start("visual_studio_code", folder)
    uri = editor.open(folder / "norm.py", CODE)
    actions = await editor.actions(uri, editor.range_of(uri, CALL))
    end = len(CODE)
    editor.edit(uri, (end, end, "\n\nx = 1\n"))
    await editor.apply(by_title(actions, "Use the differentiable rms_norm"))
    assert editor.texts[uri].endswith("\n\nx = 1\n") and "is_grad_enabled" in editor.texts[uri]
    with pytest.raises(JsonRpcException) as raised:
        await editor.resolved(by_title(actions, "Always"))
    assert raised.value.code == types.LSPErrorCodes.ContentModified.value


async def test_what_is_refused_is_a_line_of_the_log(start, folder: Path) -> None:
    log = folder / "server.log"
    command = (sys.executable, "-m", "trainify", "lsp", "--log-file", str(log))
    editor = await start("visual_studio_code", folder, command=command)
    uri = editor.open(folder / "norm.py", CODE)
    actions = await editor.actions(uri, editor.range_of(uri, CALL))
    editor.edit(uri, (0, len(CODE), "x = 1\n"))
    with pytest.raises(JsonRpcException, match="the text has changed"):
        await editor.resolved(by_title(actions, "Always"))
    (line,) = log.read_text().splitlines()
    assert "WARNING" in line and line.endswith("the text has changed, and this no longer applies")


async def test_suggestions_are_shown_and_not_applied(start, folder: Path) -> None:
    code = "def train(model, opt, batch):\n    loss = model(batch)\n    if loss.requires_grad:\n"
    code += "        loss.backward()\n    opt.step()\n"
    (finding,) = check_text(code, "train.py")
    assert all(fix.safety.value == "display" for fix in finding.fixes.values())
    editor = await start("visual_studio_code", folder)
    uri = editor.open(folder / "train.py", code)
    (found,) = await editor.diagnostics(uri)
    (fix, _) = await editor.actions(uri, found.range)
    assert fix.disabled.reason
    assert (await editor.client.code_action_resolve_async(fix)).edit is None


# -- hover and hints ------------------------------------------------------------------------------


async def test_hover(start, folder: Path) -> None:
    editor = await start("neovim@v0.7.0", folder)
    code = CODE.replace("import torch", '"""🔥"""; import torch')
    uri = editor.open(folder / "norm.py", code)

    async def hover(text: str) -> types.Hover | None:
        where = editor.range_of(uri, text).start
        identifier = types.TextDocumentIdentifier(uri)
        return await editor.client.text_document_hover_async(types.HoverParams(identifier, where))

    op = lookup("vllm._custom_ops.rms_norm", (), ())
    found = await hover("rms_norm(out")
    assert editor.shown(uri, found.range) == "ops.rms_norm"
    for part in (
        op.schema,
        op.equivalent,
        op.source,
        "def rms_norm(",
        "vllm",
    ):
        assert part in found.contents.value
    assert await hover("empty_like(x)\n") is None
    assert await hover("x, weight, eps)\n    return") is None
    editor.replace(uri, code + "def (")
    assert await hover("rms_norm(out") is None
    # What was fixed is still a fused call.
    editor.replace(uri, fix_text(code, "norm.py").text)
    assert "rms_norm" in (await hover("rms_norm(out")).contents.value


async def test_hints_when_they_are_wanted(start, folder: Path) -> None:
    everything = types.Range(types.Position(0, 0), types.Position(99, 0))
    for options, count in (({}, 0), ({"settings": {"inlayHints": True}}, 2)):
        editor = await start("visual_studio_code", folder, **options)
        uri = editor.open(folder / "norm.py", CODE)
        ask = types.InlayHintParams(types.TextDocumentIdentifier(uri), everything)
        hints = await editor.client.text_document_inlay_hint_async(ask)
        assert [hint.label for hint in hints] == ["gradient stops here"] * count
        if hints:
            assert hints[0].position == editor.range_of(uri, CALL).end
