"""Writes in place and ``out=`` where somebody else sees the tensor, or wants its dtype or axes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verbs import fix, rules

PROGRAM = """\
import torch
from torch import nn


def heads(x):
    return x.view(-1, 2, 2)


def kept(scale, x=None):
    y = x[1:]
    return scale, y


def doubled(x):
    return x * 2


def both(x):
    h = x.exp()
    yield h
    h *= 2
    yield h


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def own(self, x):
        return x

    def forward(self, x):
"""


def program(body: str) -> str:
    return PROGRAM + "".join(f"        {line}\n" for line in body.splitlines())


def run(text: str, grad: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    space: dict[str, Any] = {}
    exec(text, space)
    torch.manual_seed(0)
    net = space["Net"]().double()
    with torch.set_grad_enabled(grad):
        y = net(torch.randn(3, 4).double())
        if grad:
            y.square().sum().backward()
    return y.detach(), net.a.weight.grad


def slope(text: str) -> torch.Tensor:
    """The derivative by the weight, by differences of what serving computes."""
    space: dict[str, Any] = {}
    exec(text, space)
    torch.manual_seed(0)
    net = space["Net"]().double()
    x, found = torch.randn(3, 4).double(), torch.zeros(16).double()
    for i in range(16):
        values = []
        for step in (1e-6, -2e-6):
            with torch.no_grad():
                net.a.weight.view(-1)[i] += step
                values.append(net(x.clone()).square().sum())
        with torch.no_grad():
            net.a.weight.view(-1)[i] += 1e-6
        found[i] = (values[0] - values[1]) / 2e-6
    return found.view(4, 4)


@pytest.mark.parametrize(
    "body",
    [
        "h = self.a(x).exp()\nv = heads(h)\nh *= 2\nreturn v.flatten(1)",
        "h = self.a(x).exp()\nv = heads(h)[0]\nh.mul_(2)\nreturn v",
        "h = self.a(x).exp()\nn, v = kept(3, x=h)\nh *= 2\nreturn v * n",
        "h = self.a(x).exp()\nv = self.own(h)\nh *= 2\nreturn v",
        "o = x.clone()\nv = self.own(o)\ntorch.add(self.a(x), 1, out=v)\nreturn o",
        "hs = list(both(self.a(x)))\nreturn hs[0] + hs[1]",
    ],
)
def test_what_a_function_gives_back_is_written_as_well(body: str) -> None:
    text = program(body)
    assert rules(text) in (["TRN402"], ["TRN403"])
    fixed = fix(text)
    torch.testing.assert_close(run(fixed, False)[0], run(text, False)[0], rtol=0, atol=0)
    if fixed != text:
        value, gradient = run(fixed, True)
        torch.testing.assert_close(value, run(text, False)[0], rtol=0, atol=0)
        torch.testing.assert_close(gradient, slope(text), rtol=1e-5, atol=1e-7)


def test_what_a_function_computes_anew_is_not() -> None:
    text = program("h = self.a(x).exp()\nv = doubled(h)\nh *= 2\nreturn v + h")
    fixed = fix(text)
    assert "h = h * 2" in fixed
    torch.testing.assert_close(run(fixed, True)[1], slope(text), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("made", "after"),
    [
        ("torch.zeros(3, 4, dtype=torch.float32)", "torch.add(h, 1).to(torch.float32)"),
        ("torch.zeros_like(n)", "torch.add(h, 1).to(n.dtype)"),
        ("n.new_empty(3, 4)", "torch.add(h, 1).to(n.dtype)"),
        ("torch.empty(3, 4, dtype=n.dtype)", "torch.add(h, 1).to(n.dtype)"),
        ("torch.empty_like(h)", "torch.add(h, 1)\n"),
        ("torch.empty(3, 4, dtype=h.dtype)", "torch.add(h, 1)\n"),
    ],
)
def test_a_result_has_the_dtype_of_its_buffer(made: str, after: str) -> None:
    before = f"n = x.float()\nh = self.a(x)\no = {made}\ntorch.add(h, 1, out=o)\nreturn o * 2"
    text = program(before)
    fixed = fix(text)
    assert after in fixed
    served, (trained, gradient) = run(text, False)[0], run(fixed, True)
    assert trained.dtype == served.dtype
    torch.testing.assert_close(trained, served, rtol=0, atol=0)
    assert gradient is not None


@pytest.mark.parametrize(
    "place", ["o.T", "o.t()", "o.mT", "o.transpose(0, 1)", "o.view(3, 4)", "o.permute(1, 0)"]
)
def test_a_result_is_not_given_other_axes(place: str) -> None:
    text = program(
        f"o = torch.zeros(4, 3).double()\ntorch.add(self.a(x), 1, out={place})\nreturn o"
    )
    assert rules(text) == ["TRN402"]
    fixed = fix(text)
    torch.testing.assert_close(run(fixed, False)[0], run(text, False)[0], rtol=0, atol=0)
    if fixed != text:
        value, gradient = run(fixed, True)
        torch.testing.assert_close(value, run(text, False)[0], rtol=0, atol=0)
        torch.testing.assert_close(gradient, slope(text), rtol=1e-5, atol=1e-7)
