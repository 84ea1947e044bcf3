"""In-place writes into pieces that a loop goes through, and behind layers that a base class made.

Each program raises as it is, and learns what the one without the write learns once it is fixed.
"""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from verbs import findings, fix, stays

HEAD = """\
import torch
from torch import nn


class Base(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        torch.manual_seed(0)
        self.l = nn.Linear(d, 3 * d)
        self.register_buffer("table", torch.ones(d, 3 * d))


class Net(Base):
    def forward(self, x):
"""


def net(body: str) -> str:
    return HEAD + textwrap.indent(textwrap.dedent(body), " " * 8)


def learned(text: str) -> list[torch.Tensor]:
    space: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), space)
    model = space["Net"]()
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    model(x).square().sum().backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize(
    ("rule", "body", "write", "right"),
    [
        (
            "TRN405",
            "q, k, v = self.l(x).chunk(3, -1)\n{}\nreturn q * k + v",
            "q.mul_(0.5)",
            "q = q * 0.5",
        ),
        (
            "TRN404",
            "h = self.l(x)\ns = h.pow(2).mean(-1, keepdim=True)\n{}\nreturn h",
            "h.mul_((s + 1e-6).rsqrt())",
            "h = h * (s + 1e-6).rsqrt()",
        ),
    ],
)
def test_layers_of_a_base(rule: str, body: str, write: str, right: str) -> None:
    text = net(body.format(write))
    (finding,) = findings(text)
    assert finding.rule == rule
    with pytest.raises(RuntimeError):
        learned(text)
    for found, wanted in zip(learned(fix(text)), learned(net(body.format(right))), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("write", ["t *= 2", "t[0] = 0", "t.clamp_(0)"])
@pytest.mark.parametrize(
    "head",
    [
        "for t in self.l(x).unbind(0):",
        "for t in torch.chunk(self.l(x), 2):",
        "for i, t in enumerate(self.l(x).split(2)):",
    ],
)
def test_pieces_that_a_loop_goes_through(head: str, write: str) -> None:
    text = net(f"out = []\n{head}\n    {write}\n    out.append(t.sum())\nreturn sum(out)")
    assert [f.rule for f in findings(text)] == ["TRN405"]
    with pytest.raises(RuntimeError):
        learned(text)
    fixed = fix(text)
    if fixed != text:
        copied = text.replace(f"    {write}", f"    t = t.clone()\n            {write}")
        for found, wanted in zip(learned(fixed), learned(copied), strict=True):
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "body",
    [
        # slices may be written
        "h = self.l(x)\nfor i in range(4):\n    t = h[i]\n    t *= 2\nreturn h",
        # pieces of what has no gradient
        "for t in self.table.unbind(0):\n    t *= 2\nreturn self.l(x)",
        "for t in x.unbind(0):\n    t = t * 2\nreturn self.l(x)",
        # copies
        "out = [p.clone() for p in self.l(x).unbind(0)]\nfor t in out:\n    t *= 2\nreturn sum(out)",
    ],
)
def test_right_as_it_is(body: str) -> None:
    stays(net(body))
    assert all(torch.isfinite(grad).all() for grad in learned(net(body)))


def test_both_what_made_a_tensor_and_what_read_it_saved_it() -> None:
    body = (
        'y = torch.tanh(self.l(x))\nout = {{"y": y, "n": y.norm()}}\n{}\nreturn out["y"] * out["n"]'
    )
    text = net(body.format("y.clamp_(-0.5, 0.5)"))
    assert sorted(f.rule for f in findings(text)) == ["TRN403", "TRN404"]
    with pytest.raises(RuntimeError):
        learned(text)
    right = body.format('out["y"] = y.clamp(-0.5, 0.5)')
    for found, wanted in zip(learned(fix(text)), learned(net(right)), strict=True):
        torch.testing.assert_close(found, wanted)
