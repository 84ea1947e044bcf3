"""What the fix of a finding changes is shown without comparing whole files, one for each finding."""

from __future__ import annotations

import click
import pytest
from verbs import findings

from trainify.findings import apply_edits
from trainify.output import diff
from trainify.output.text import finding_block
from trainify.source import split_lines

HEAD = "import torch\nfrom sgl_kernel import silu_and_mul\n"
CALL = "\n\ndef f{}(x: torch.Tensor):\n    return silu_and_mul(x)\n"


def test_the_time_grows_with_the_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the fixes also imports something, at the top of the file."""
    compared: list[int] = []

    class Counted(diff.SequenceMatcher[str]):
        def __init__(self, junk: None, a: list[str], b: list[str], autojunk: bool) -> None:
            compared.append(len(a))
            super().__init__(junk, a, b, autojunk)

    monkeypatch.setattr(diff, "SequenceMatcher", Counted)
    text = HEAD + "".join(map(CALL.format, range(100)))
    lines, found = split_lines(text), findings(text)
    assert len(found) == 100
    blocks = [click.unstyle(finding_block(f, text, lines, "flag")) for f in found]
    assert all("+ import torch.nn.functional as F" in block for block in blocks)
    assert sum(compared) < 20 * len(found)


def test_the_lines_are_those_of_the_fixed_file() -> None:
    text = HEAD + "".join(map(CALL.format, range(3)))
    lines = split_lines(text)
    for finding in findings(text):
        fix = finding.fix("flag")
        assert fix is not None
        fixed = split_lines(apply_edits(text, fix.edits))
        block = click.unstyle(finding_block(finding, text, lines, "flag"))
        shown = [line.split(maxsplit=2) for line in block.splitlines()]
        signed = [(int(s[0]), *s[1:]) for s in shown if len(s) > 1 and s[1] in ("+", "-")]
        added = {number for number, sign, *_ in signed if sign == "+"}
        taken = {number for number, sign, *_ in signed if sign == "-"}
        assert added
        for number, sign, *content in signed:
            assert "".join(content) == (fixed if sign == "+" else lines)[number - 1].strip()
        kept = [line for number, line in enumerate(lines, 1) if number not in taken]
        assert kept == [line for number, line in enumerate(fixed, 1) if number not in added]
