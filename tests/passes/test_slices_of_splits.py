"""Pieces of a split that are written, of a tensor that is read as a whole: slices may be written."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from verbs import findings, fix

from trainify.findings import Safety

HEAD = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)
        self.n = 8

    def forward(self, x):
        h = self.a(x)
"""

SPLITS = {
    "chunk": ("q, k = h.chunk(2, -1)\nq *= 0.5\nreturn self.b(h) + k.sum()", ""),
    "chunk by its dimension": ("q, k = h.chunk(2, dim=-1)\nq *= 0.5\nreturn self.b(h) + k", ""),
    "torch.chunk": ("q, k = torch.chunk(h, 2, -1)\nk.mul_(0.5)\nreturn self.b(h) + q", ""),
    "split": ("q, k = h.split(8, -1)\nq.clamp_(-0.1, 0.1)\nreturn self.b(h) + k", ""),
    "split by sizes": ("q, k = h.split([self.n, 8], -1)\nq *= 0.5\nreturn self.b(h) + k", ""),
    "three sizes": (
        "q, k, v = h.split((4, self.n, 4), -1)\nk *= 0.5\nreturn self.b(h) + q.sum() + v.sum()",
        "",
    ),
    "four pieces": ("q, k, v, w = h.split(4, -1)\nk *= 0.5\nreturn self.b(h) + v.sum()", ""),
    "by their places": ("parts = h.split(4, -1)\nparts[1].mul_(0.5)\nreturn self.b(h)", ""),
    "four chunks": ("q, k, v, w = h.chunk(4, -1)\nk *= 0.5\nreturn self.b(h)", "divides"),
}


def step(text: str, serve: bool = False) -> list[torch.Tensor]:
    space: dict[str, Any] = {"__name__": "m"}
    exec(compile(text, "m.py", "exec"), space)
    torch.manual_seed(0)
    model = space["Model"]()
    x = torch.linspace(-1, 1, 16).view(2, 8)
    if serve:
        with torch.no_grad():
            return [model(x)]
    (model(x) * torch.arange(8)).sum().backward()
    return [torch.as_tensor(p.grad) for p in model.parameters()]


def by_hand(lines: str) -> str:
    """The same without a write in place: the pieces are joined again."""
    names = lines.partition(" =")[0]
    first, write, rest = lines.split("\n")
    if names == "parts":
        first, names = f"p0, p1, p2, p3 = {first.partition('= ')[2]}", "p0, p1, p2, p3"
        write = write.replace("parts[1]", "p1")
    name = write.partition(".")[0].partition(" ")[0]
    value = write.replace("*=", "*").replace("_(", "(")
    return f"{first}\n{name} = {value}\nh = torch.cat(({names}), -1)\n{rest}"


def program(lines: str) -> str:
    return HEAD + textwrap.indent(lines, " " * 8) + "\n"


@pytest.mark.parametrize("name", SPLITS)
def test_the_whole_sees_what_is_written_into_a_piece(name: str) -> None:
    lines, look_at = SPLITS[name]
    text = program(lines)
    with pytest.raises(RuntimeError, match="view"):
        step(text)
    (found,) = findings(text)
    each = found.fix("flag")
    assert found.rule == "TRN405" and each is not None
    assert each.safety is (Safety.UNSAFE if look_at else Safety.SAFE) and look_at in each.look_at
    fixed = fix(text, unsafe=bool(look_at))
    for gradient, right in zip(step(fixed), step(program(by_hand(lines))), strict=True):
        torch.testing.assert_close(gradient, right)
    assert torch.equal(*step(fixed, serve=True), *step(text, serve=True))
    assert fix(fixed) == fixed


@pytest.mark.parametrize(
    "lines",
    [
        "q, k = h.chunk(2, -1)\ns = k.square()\nq *= 0.5\nreturn self.b(h) + s",
        "q, k = h.chunk(2, -1)\ns = h.square()\nq *= 0.5\nreturn self.b(h) + s.sum()",
        "h = h.exp()\nq, k = h.chunk(2, -1)\nq *= 0.5\nreturn self.b(h)",
    ],
)
def test_what_backward_needs_is_not_overwritten(lines: str) -> None:
    """A slice that is written would only make backward raise instead of forward."""
    assert fix(program(lines), unsafe=True) == program(lines)


@pytest.mark.parametrize(
    "lines",
    [
        "q, k = h.split(self.n, -1)\nq *= 0.5\nreturn self.b(h)",  # which may be a list
        "parts = h.split(4, -1)\nparts[1].mul_(0.5)\nreturn self.b(h) + len(parts)",
        "q, *rest = h.split(4, -1)\nq *= 0.5\nreturn self.b(h)",
    ],
)
def test_pieces_that_may_be_others(lines: str) -> None:
    assert fix(program(lines), unsafe=True) == program(lines)
