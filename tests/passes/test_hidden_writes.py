"""Writes by ``.data`` into what backward needs: the fixed program's gradient knows of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verbs import findings, fix

HEAD = "import torch\nfrom torch import nn\n\n\nclass Head(nn.Module):\n"
MASKED = """\
    def forward(self, x, mask):
        y = torch.softmax(x, -1)
        y.data.masked_fill_(mask, 0.25)
        return y
"""
INDEXED = MASKED.replace(".masked_fill_(mask, 0.25)", "[mask] = 0.25")
SCALED = """\
    def forward(self, x, mask):
        y = torch.sigmoid(x)
        y.data *= 2.0
        y.data[..., 0].mul_(3.0)
        return y
"""
DETACHED = """\
    def forward(self, x, mask):
        square = x.pow(2)
        x.detach().mul_(mask + 1)
        return x + square
"""


def masked(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1).masked_fill(mask, 0.25)


def scaled(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    y = torch.sigmoid(x) * 2.0
    return torch.cat((y[..., :1] * 3.0, y[..., 1:]), -1)


def squared(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x * (mask + 1) + x.pow(2)


@pytest.mark.parametrize(
    ("text", "right"),
    [(MASKED, masked), (INDEXED, masked), (SCALED, scaled), (DETACHED, squared)],
)
def test_what_is_written_is_on_the_way_back(text: str, right: Any) -> None:
    assert fix(HEAD + text) == HEAD + text  # who wrote it may have meant the gradient to pass by
    scope: dict[str, Any] = {}
    exec(compile(fix(HEAD + text, unsafe=True), "m.py", "exec"), scope)
    torch.manual_seed(0)
    leaf, mask = torch.randn(2, 4, requires_grad=True), torch.rand(2, 4) > 0.5
    weight = torch.randn(2, 4)
    found, expected = (f(leaf * 1.0, mask) for f in (scope["Head"](), right))
    torch.testing.assert_close(found, expected)
    for each in torch.autograd.grad((found * weight).sum(), leaf):
        torch.testing.assert_close(each, torch.autograd.grad((expected * weight).sum(), leaf)[0])
    with torch.no_grad():
        served = leaf * 1.0
        torch.testing.assert_close(scope["Head"]()(served, mask), expected.detach())


def test_a_write_without_a_gradient_lets_it_pass() -> None:
    text = HEAD + (
        "    def forward(self, x):\n"
        "        y = torch.sigmoid(x)\n"
        "        y.data.round_()\n"
        "        return y\n"
    )
    scope: dict[str, Any] = {}
    exec(compile(fix(text), "m.py", "exec"), scope)
    x = torch.tensor([-1.0, 0.5], requires_grad=True)
    y = scope["Head"]()(x)
    y.sum().backward()
    slope = torch.sigmoid(x.detach()) * (1 - torch.sigmoid(x.detach()))
    torch.testing.assert_close(y.detach(), torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(x.grad, slope)


@pytest.mark.parametrize(
    ("write", "says"), [("x.data.mul_(2.0)", "not notice"), ("x.detach().mul_(2.0)", "raises")]
)
def test_what_backward_does_is_said(write: str, says: str) -> None:
    (found,) = findings(
        HEAD + f"    def forward(self, x):\n        y = x.pow(2)\n        {write}\n"
        "        return x + y\n"
    )
    assert found.rule == "TRN404" and says in found.message


MIDDLE = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = self.a(x)
        WRITE
        return self.b(h)
"""


@pytest.mark.parametrize(
    ("write", "seen"),
    [
        ("h.data.clamp_(-0.1, 0.1)", "h = h.clamp(-0.1, 0.1)"),
        ("h.detach().mul_(2.0)", "h = h * 2.0"),
        ("h.data[:, 0] = 0", "h = torch.cat((0 * h[:, :1], h[:, 1:]), -1)"),
        ("h.data *= 3.0", "h = h * 3.0"),
    ],
)
def test_a_write_into_what_nobody_saved(write: str, seen: str) -> None:
    text = MIDDLE.replace("WRITE", write)
    (found,) = findings(text)
    assert found.rule == "TRN301" and fix(text) == text
    gradients = []
    for program in (fix(text, unsafe=True), MIDDLE.replace("WRITE", seen)):
        scope: dict[str, Any] = {"__name__": "m"}
        exec(compile(program, "m.py", "exec"), scope)
        torch.manual_seed(0)
        model = scope["Model"]()
        (model(torch.linspace(-1, 1, 16).view(2, 8)) * torch.arange(8)).sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "write",
    [
        "h.data.round_()",  # a straight-through estimate
        "x.data.clamp_(-1, 1)",  # what comes in
        "self.a.weight.data.clamp_(-1, 1)",
        "h.data.clamp_(-1, 1)  # no gradient through this",
        "seen = h.clone()\n        seen.data.clamp_(-1, 1)",  # which nobody reads
    ],
)
def test_writes_that_are_left_alone(write: str) -> None:
    assert not findings(MIDDLE.replace("WRITE", write))
