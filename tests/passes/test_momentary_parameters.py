"""A parameter made anew of another one in forward: the old one gets the gradient instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verbs import findings, fix

MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))
        self.kept = None

    def forward(self, x):
        LINES
"""


@pytest.mark.parametrize(
    "lines",
    ["w = nn.Parameter(self.w)\n        return x * w", "return x * nn.Parameter(self.w).exp()"],
)
def test_the_parameter_itself_is_used(lines: str) -> None:
    fixed = fix(MODEL.replace("LINES", lines))
    scope: dict[str, Any] = {"__name__": "m"}
    exec(compile(fixed, "m.py", "exec"), scope)
    model, x = scope["Model"](), torch.arange(4.0)
    model(x).sum().backward()
    torch.testing.assert_close(model.w.grad, x * torch.e if "exp" in lines else x)


@pytest.mark.parametrize(
    "lines",
    [
        "w = nn.Parameter(self.w)\n        return x * w + self.w",  # it learns by another way
        "w = nn.Parameter(self.w)\n        y = (x * w).sum()\n        y.backward()\n"
        "        return y + w.grad.sum()",
        "self.kept = nn.Parameter(self.w)\n        return x * self.kept",
        "return nn.Parameter(self.w)",
        "w = nn.Parameter(self.w)  # a stop-gradient\n        return x * w",
        "w = nn.Parameter(x)\n        return self.w * w",
    ],
)
def test_what_is_left_alone(lines: str) -> None:
    assert not [f for f in findings(MODEL.replace("LINES", lines)) if f.rule == "TRN301"]
