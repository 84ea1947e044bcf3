"""What has a fix on a line of its own says why it has none where it shares one."""

from __future__ import annotations

import pytest
from verbs import findings

HEAD = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x, c):
        a = self.proj(x)
{body}
        return a
"""
WHY = "Not rewritten: it shares its line with other code."


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a.div_(c)", "torch.tanh(a, out=a)", "a.mul_(c)"], ["TRN402", "TRN403"]),
        (["v = a.pow(2).mean()", "a.mul_(torch.rsqrt(v))"], ["TRN404"]),
    ],
)
def test_a_line_that_is_shared(lines: list[str], expected: list[str]) -> None:
    apart = findings(HEAD.format(body="\n".join(f"        {line}" for line in lines)))
    assert [f.rule for f in apart] == expected and all(f.fixes for f in apart)
    assert not any("Not rewritten" in f.message for f in apart)
    shared = findings(HEAD.format(body=f"        {'; '.join(lines)}"))
    assert [f.rule for f in shared] == expected
    assert all(f.message.endswith(WHY) and not f.fixes for f in shared)


def test_a_leaf() -> None:
    apart = HEAD.format(body="        w = self.weight\n        w.mul_(c)\n        a = a * w")
    (found,) = findings(apart)
    assert found.rule == "TRN406" and found.fixes
    (found,) = findings(apart.replace("w.mul_(c)\n       ", "w.mul_(c);"))
    assert found.message.endswith(WHY) and not found.fixes
