"""Finding first and planning afterwards finds what doing both at once does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trainify import check_text
from trainify.engine import Check
from trainify.passes import all_rules

CASES = Path(__file__).parents[1] / "cases"
TEXTS = {rule.code: rule.before for rule in all_rules().values()}
TEXTS |= {path.parent.name: path.read_text() for path in sorted(CASES.glob("*/before.py"))}


@pytest.mark.parametrize("name", TEXTS)
def test_in_two_steps(name: str) -> None:
    at_once = check_text(TEXTS[name], "a.py")
    check = Check(TEXTS[name], "a.py")
    first = check.findings(plan=False)
    assert [(f.rule, f.start, f.end) for f in first] == [(f.rule, f.start, f.end) for f in at_once]
    for found, complete in zip(first, at_once, strict=True):
        assert complete.message.startswith(found.message)
        assert found.fixes in ({}, complete.fixes)
        assert replace(found, fixes={}, message="") == replace(complete, fixes={}, message="")
    assert check.findings() == at_once
    assert check.findings(plan=False) == at_once
