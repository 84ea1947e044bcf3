"""Writing a comment that silences a finding, wherever the finding stands."""

from __future__ import annotations

import pytest

from trainify import Finding, check_text
from trainify.suppressions import silenced

HEAD = "from vllm import _custom_ops as ops\n\n\ndef norm(out, x, weight, eps):\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ops.rms_norm(out, x, weight, eps)", "{}  # trainify: ignore[TRN101]"),
        ("ops.rms_norm(out, x, weight, eps)  # why", "{}  # trainify: ignore[TRN101]"),
        ("ops.rms_norm(\n        out, x, weight, eps)", None),
        ("ops.rms_norm(out, x, weight, eps)  # trainify: ignore[TRN2]", None),
        ("ops.rms_norm(out, x, weight, eps)  # trainify: ignore[TRN2] as said", None),
        ("ops.rms_norm \\\n        (out, x, weight, eps)", None),
        ('ops.rms_norm(out, x, weight, f("""\n#""", eps))', None),
        ("ops.rms_norm(out, x, weight, eps)\t \f", None),
        ('a = "é\x0c"; ops.rms_norm(out, x, weight, eps)', None),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_silences_it_and_changes_nothing_else(before: str, after: str | None, end: str) -> None:
    text = f"{HEAD}    {before}\n    return out\n".replace("\n", end)
    findings = check_text(text, "norm.py")
    if not findings:
        pytest.skip("nothing to silence")
    quiet = silenced(text, findings[0])
    assert quiet is not None
    assert check_text(quiet, "norm.py") == []
    changed = [(a, b) for a, b in zip(text.split(end), quiet.split(end), strict=True) if a != b]
    assert len(changed) == 1
    if after:
        assert changed[0][1].strip() == after.format(before)


def test_no_line_can_have_a_comment() -> None:
    text = 'x = """\n# not a comment\n"""\n'
    start = text.index("# not")
    inside = Finding("a.py", "TRN101", "", start, start + 3, 2, 1, 2, 4)
    assert silenced(text, inside) is None
    text = "x = 1 + \\\n  2\n"
    on_first = Finding("a.py", "TRN101", "", 0, 5, 1, 1, 1, 6)
    assert silenced(text, on_first) is None
