"""The command line, the server and the Python API find the same, and make the same edits."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from lsp_editor import Editor
from lsprotocol import types

from trainify.config import load_config
from trainify.engine import check_paths, check_text, fix_paths
from trainify.facts import Project
from trainify.findings import STRATEGIES, Finding, Safety, apply_edits

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "name",
    [
        "fixtures/chat_serving",
        pytest.param("fixtures/llama_serving", marks=pytest.mark.slow),
        pytest.param("tests/cases", marks=pytest.mark.slow),
    ],
)
async def test_same_findings_and_edits(name: str, start) -> None:
    root = ROOT / name
    config = load_config([str(root)])
    checked = {r.path: r for r in check_paths([str(root)], config=config)}
    fixed = {r.path: r.change for r in fix_paths([str(root)], config=config)}
    assert len(checked) > 5 and any(fixed.values())
    project = Project([str(root)])
    editor = await start("visual_studio_code", root)
    seen = 0
    for path, report in checked.items():
        if load_config([path]).options != config.options:
            continue  # an editor takes the settings next to a file, a run those of all its files
        text = Path(path).read_bytes().decode()
        assert check_text(text, path, config.options, project) == report.findings
        uri = editor.open(Path(path), text)
        first = await editor.diagnostics(uri)
        assert [d.code for d in first] == [f.rule for f in report.findings], path
        shown = await said(editor, uri, report.findings)
        for finding, diagnostic in zip(report.findings, shown, strict=True):
            assert editor.shown(uri, diagnostic.range) == text[finding.start : finding.end]
            offered = await quick_fixes(editor, uri, finding, diagnostic)
            assert offered == made_by_fixes(text, finding), (path, finding)
            seen += len(offered)
        nowhere = types.Range(types.Position(0, 0), types.Position(0, 0))
        for action in await editor.actions(uri, nowhere, "source.fixAll"):
            text = await changed(editor, uri, action)
        change = fixed[path]
        assert text.encode() == (change.after if change else Path(path).read_bytes()), path
        editor.close(uri)
    assert seen > 10


async def said(editor: Editor, uri: str, findings: list[Finding]) -> list[types.Diagnostic]:
    """What is shown once it says, for each finding, why there is no fix: that may come later."""
    expected = [(finding.rule, finding.message) for finding in findings]

    def latest() -> list[types.Diagnostic]:
        return list(editor.published[uri][-1].diagnostics)

    with contextlib.suppress(asyncio.TimeoutError):
        await editor.until(lambda: [(d.code, d.message) for d in latest()] == expected)
    assert [(d.code, d.message) for d in latest()] == expected, uri
    return latest()


def made_by_fixes(text: str, finding: Finding) -> set[str]:
    """The texts that the fixes of a finding make."""
    fixes = [fix for s in STRATEGIES if (fix := finding.fix(s)) is not None]
    return {apply_edits(text, f.edits) for f in fixes if f.safety is not Safety.DISPLAY}


async def quick_fixes(
    editor: Editor, uri: str, finding: Finding, diagnostic: types.Diagnostic
) -> set[str]:
    """The texts that the quick fixes of one finding make, leaving out those for several."""
    known = [diagnostic]
    actions = await editor.actions(uri, diagnostic.range, "quickfix", known=known)
    return {
        await changed(editor, uri, action)
        for action in actions
        if action.diagnostics and not action.disabled and not action.title.startswith("Silence ")
    }


async def changed(editor: Editor, uri: str, action: types.CodeAction) -> str:
    """The text that an action makes, which is not sent back."""
    edit = (await editor.resolved(action)).edit
    assert edit is not None
    (change,) = edit.document_changes
    text = editor.texts[uri]
    places = [(editor.offset(uri, e.range.start), editor.offset(uri, e.range.end), e.new_text)
              for e in change.edits]  # fmt: skip
    for start, end, new in sorted(places, reverse=True):
        text = text[:start] + new + text[end:]
    return text
