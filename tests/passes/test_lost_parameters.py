"""TRN508, run: what a module registers of a parameter that something was done to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verbs import fix, rules, stays

NET = """\
import torch
from torch import nn
from torch.nn import Parameter


class Net(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.weight = {value}

    def forward(self, x):
        return x * self.weight
"""


def registered(text: str) -> dict[str, torch.Tensor]:
    scope: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), scope)
    torch.manual_seed(0)
    net = scope["Net"]()
    assert net(torch.ones(2, 4)).shape == (2, 4)
    return dict(net.named_parameters())


@pytest.mark.parametrize(
    ("value", "fixed"),
    [
        ("nn.Parameter(torch.randn(d)) * 0.02", "nn.Parameter(torch.randn(d) * 0.02)"),
        ("Parameter(torch.ones(d)) / d", "Parameter(torch.ones(d) / d)"),
        ("nn.Parameter(torch.randn(d)).to(torch.half)", "nn.Parameter(torch.randn(d).to(torch.half))"),
        ("nn.Parameter(torch.randn(d)).double()", "nn.Parameter(torch.randn(d).double())"),
        ("nn.Parameter(torch.randn(d)).clone()", "nn.Parameter(torch.randn(d).clone())"),
        ("nn.Parameter(torch.randn(d)).view(1, d)", "nn.Parameter(torch.randn(d).view(1, d))"),
        ("nn.Parameter(torch.randn(d)).double() * 0.5", "nn.Parameter(torch.randn(d).double() * 0.5)"),
        ("0.02 * nn.Parameter(torch.randn(d))", "nn.Parameter(0.02 * torch.randn(d))"),
        ("1 - Parameter(torch.ones(d))", "Parameter(1 - torch.ones(d))"),
        ("nn.Parameter(torch.randn(d)) * 0.1 + 1", "nn.Parameter(torch.randn(d) * 0.1 + 1)"),
    ],
)  # fmt: skip
def test_results_are_no_parameters(value: str, fixed: str) -> None:
    text = NET.format(value=value)
    assert not registered(text)
    assert rules(text) == ["TRN508"]
    after = fix(text, unsafe=True)
    assert after == NET.format(value=fixed)
    assert list(registered(after)) == ["weight"]
    stays(after)


@pytest.mark.parametrize(
    "value",
    [
        "nn.Parameter(torch.randn(d) * 0.02)",
        "nn.Parameter(torch.randn(d).to(torch.half))",
        "nn.Parameter(torch.randn(d)).requires_grad_()",
        "nn.Parameter(torch.randn(d)).float()",
        "nn.Parameter(torch.zeros(d), requires_grad=False).to(torch.half)",
    ],
)
def test_parameters_and_what_is_none_on_purpose(value: str) -> None:
    stays(NET.format(value=value), select=("TRN508",))


def test_what_a_module_does_not_use_or_gets_again() -> None:
    text = NET.format(value="nn.Parameter(torch.randn(d)) * 0.02")
    stays(text.replace("x * self.weight", "x"), select=("TRN508",))
    again = "\n        self.weight = nn.Parameter(self.weight)\n"
    stays(text.replace("* 0.02\n", f"* 0.02{again}"), select=("TRN508",))
    stays(text.replace("(nn.Module)", "(Plain)"), select=("TRN508",))
