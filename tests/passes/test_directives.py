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


DETACHED = """\
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.cell = nn.GRUCell(width, width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, x, steps):
        h, logits = torch.zeros_like(x), []
        for _ in range(steps):
            h = self.cell(x, h)
            logits.append(self.out(h))
        return torch.stack(logits, 1).data
"""


def test_a_gradient_may_be_stopped_on_purpose() -> None:
    assert [f.rule for f in findings(DETACHED)] == ["TRN301"]
    stays(DETACHED.replace(".data", ".data  # trainify: stop-grad"))
    other = DETACHED.replace("[]\n", "[]  # trainify: stop-grad\n")
    assert [f.rule for f in findings(other)] == ["TRN301"]
