"""The other places that belong to a finding."""

from __future__ import annotations

import pytest

from trainify import check_text
from trainify.passes import all_rules


@pytest.mark.parametrize(
    ("code", "text", "said"),
    [
        ("TRN101", "out = torch.empty_like(x)", "is made here"),
        ("TRN202", "torch.no_grad()", "switched off here"),
        ("TRN206", "def forward", "to learn from"),
        ("TRN207", "", "graph ends here"),
        ("TRN403", "", "saved for backward"),
        ("TRN404", "", "saves it here"),
    ],
)
def test_related_places(code: str, text: str, said: str) -> None:
    source = all_rules()[code].before
    (finding, *_) = [f for f in check_text(source, "a.py") if f.rule == code]
    (related,) = finding.related
    shown = source[related.start : related.end]
    assert said in related.message and related.path == "a.py"
    assert shown == text if text else shown
    line = source[: related.start].count("\n") + 1
    assert related.line == line != finding.line
