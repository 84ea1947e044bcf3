"""TRN001: comments that silence a rule which does not exist."""

from __future__ import annotations

import pytest
from verbs import findings, stays


@pytest.mark.parametrize(
    ("comment", "unknown"),
    [
        ("# trainify: ignore[TRN9999]", ["TRN9999"]),
        ("# trainify: ignore[TRN101, TRN1O2, NOPE]", ["TRN1O2", "NOPE"]),
        ("# trainify: ignore-file[trn101]", ["trn101"]),
        ("# noqa # trainify: ignore[TRN10 1]", ["TRN10 1"]),
    ],
)
def test_codes_that_no_rule_has(comment: str, unknown: list[str]) -> None:
    text = f'x = "é", "# trainify: ignore[STRING]"  {comment}\n'
    found = findings(text)
    assert [text[f.start : f.end] for f in found] == unknown
    assert all(f.rule == "TRN001" and f.line == 1 for f in found)


@pytest.mark.parametrize(
    "comment",
    ["", "[TRN101]", "[TRN1]", "[TRN101, TRN2]", "[TRN001]", "[]"],
)
def test_codes_that_one_has(comment: str) -> None:
    stays(f"x = 1  # trainify: ignore{comment}\n")


def test_a_directive_of_no_kind_is_not_judged() -> None:
    stays("x = 1  # trainify: ignored[NOPE]\n")
