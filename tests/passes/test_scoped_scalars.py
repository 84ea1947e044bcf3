"""TRN206: a temperature or a scale that is learned, and only ever read where nothing is recorded."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import findings, fix, rules, stays

from trainify.engine import check_paths

HEAD = """\
import math

import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self, start=0.5):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.log_scale = nn.Parameter({held})

"""
FORWARD = """\
def forward(self, x):
    with torch.no_grad():
        scale = self.log_scale.exp()
    return self.body(x) * scale
"""


def model(body: str = FORWARD, held: str = "torch.tensor(0.5)") -> str:
    return HEAD.format(held=held) + textwrap.indent(textwrap.dedent(body), "    ")


def gradient(text: str) -> torch.Tensor | None:
    scope: dict[str, Any] = {}
    exec(text, scope)
    torch.manual_seed(0)
    made = scope["Scaled"]()
    made(torch.arange(8.0).view(2, 4)).square().sum().backward()
    grad: torch.Tensor | None = made.log_scale.grad
    return grad


RIGHT = "def forward(self, x):\n    return self.body(x) * self.log_scale.exp()\n"


@pytest.mark.parametrize(
    "body",
    [
        FORWARD,
        """\
        def forward(self, x):
            h = self.body(x)
            with torch.no_grad():
                shown = h.norm()
                scale = torch.exp(self.log_scale)
            self.shown = shown
            return h * scale
        """,
        """\
        def forward(self, x):
            return self.body(x) * self.scale()

        @torch.no_grad()
        def scale(self):
            return self.log_scale.exp()
        """,
    ],
)
@pytest.mark.parametrize("held", ["torch.tensor(0.5)", "torch.ones(1) * math.log(1 / 0.07)"])
def test_a_number_that_is_read_under_a_mode_alone(body: str, held: str) -> None:
    text = model(body, held)
    (finding,) = findings(text)
    assert finding.rule == "TRN206" and "`self.log_scale` reaches" in finding.message
    assert gradient(text) is None and fix(text) == text
    fixed = fix(text, unsafe=True)
    assert rules(fixed) == []
    found, right = gradient(fixed), gradient(model(RIGHT, held))
    assert found is not None and right is not None
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize(
    "held", ["torch.ones([])", "torch.zeros(())", "torch.full((1,), 2.0)", "torch.tensor([start])"]
)
def test_what_has_one_element(held: str) -> None:
    assert rules(model(held=held)) == ["TRN206"]


@pytest.mark.parametrize(
    "held",
    [
        "torch.ones(4)",
        "torch.ones(1, 4)",
        "torch.zeros(1, 1, 8)",
        "torch.tensor([0.5, 0.1])",
        "torch.tensor(0.5), requires_grad=False",
        "torch.tensor(table)",
        "table",
    ],
)
def test_what_may_have_several_or_is_a_constant_stays(held: str) -> None:
    stays(model(held=held).replace("start=0.5", "start=0.5, table=None"))


@pytest.mark.parametrize(
    "body",
    [
        # it learns elsewhere
        FORWARD.replace("* scale", "* scale + self.log_scale"),
        FORWARD + "\ndef penalty(self):\n    return self.log_scale ** 2\n",
        # it is set by hand, or kept in bounds
        FORWARD + "\ndef anneal(self):\n    self.log_scale.data.mul_(0.9)\n",
        RIGHT.replace(
            "    return",
            "    with torch.no_grad():\n        self.log_scale.clamp_(max=4)\n    return",
        ),
        # nothing of the result is a function of it that has a gradient
        FORWARD.replace("* scale", "* (x > scale)"),
        FORWARD.replace("* scale", "").replace("scale =", "self.shown ="),
        # somebody says so
        FORWARD.replace("scale = ", "# no gradient: a controller moves it\n        scale = "),
        FORWARD.replace("with torch.no_grad()", "with torch.set_grad_enabled(self.training)"),
        # by its name
        FORWARD + "\ndef state(self):\n    return getattr(self, 'log_scale')\n",
    ],
)
def test_numbers_that_learn_or_are_not_to(body: str) -> None:
    stays(model(body))


def test_another_file_that_trains_it(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(model())
    assert [f.rule for r in check_paths([str(tmp_path)]) for f in r.findings] == ["TRN206"]
    loss = "def loss(model, error):\n    return model.log_scale * (error - 1)\n"
    (tmp_path / "train.py").write_text(loss)
    assert not [f for r in check_paths([str(tmp_path)]) for f in r.findings]
