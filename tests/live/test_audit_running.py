"""Statistics that a step moves, reads and keeps for the next one; and what only looks like them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from trainify import audit

HEAD = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("centre", torch.zeros(4))
        self.register_buffer("rows", torch.zeros(3, 4))
        self.register_buffer("spread", torch.ones(4))

    def forward(self, x):
        h = self.layer(x)
"""


def model(path: Path, body: str) -> nn.Module:
    file = path / "model.py"
    file.write_text(HEAD + "".join(f"        {line}\n" for line in body.splitlines()))
    module = ModuleType("statistics_of_a_test")
    scope: dict[str, Any] = module.__dict__
    exec(compile(file.read_text(), str(file), "exec"), scope)
    torch.manual_seed(0)
    made: nn.Module = scope["Model"]()
    return made


X = torch.randn(3, 4)

KEPT = [
    "self.centre.mul_(0.9).add_(0.1 * h.detach().mean(0))\nreturn h - self.centre",
    "self.centre.lerp_(h.detach().mean(0), 0.1)\nreturn (h - self.centre).tanh()",
    "mean = h.detach().mean(0)\nself.centre.lerp_(mean, 0.1)\nreturn h - self.centre",
    "with torch.no_grad():\n    self.centre = 0.9 * self.centre + 0.1 * h.mean(0)\n"
    "return h - self.centre",
    "with torch.no_grad():\n    mean = h.mean(0)\n"
    "    self.centre.copy_(0.9 * self.centre + 0.1 * mean)\nreturn h - self.centre",
    "self.centre *= 0.9\nself.centre += 0.1 * h.data.mean(0)\nreturn h - self.centre",
    "with torch.no_grad():\n    self.centre.lerp_(h.mean(0), 0.1)\n    self.spread.lerp_(h.var(0), 0.1)\n"
    "return (h - self.centre) / self.spread.sqrt()",
    "with torch.no_grad():\n    self.centre.mul_(0.9).add_(h.mean(0), alpha=0.1)\n"
    "    self.spread.mul_(0.9).add_(h.var(0), alpha=0.1)\n"
    "return (h - self.centre) / self.spread.sqrt()",
    "m, v = h.detach().mean(0), h.detach().var(0)\n"
    "self.centre, self.spread = 0.9 * self.centre + 0.1 * m, 0.9 * self.spread + 0.1 * v\n"
    "return (h - self.centre) / self.spread.sqrt()",
    "m = h.detach().mean(0)\nv = h.detach().var(0)\n"
    "self.centre, self.spread = 0.9 * self.centre + 0.1 * m, 0.9 * self.spread + 0.1 * v\n"
    "return (h - self.centre) / self.spread.sqrt()",
    "self.spread = torch.maximum(self.spread, (99 * h.detach()).abs().max())\nreturn h / self.spread",
    "with torch.no_grad():\n    self.spread.lerp_(h.abs().quantile(0.9, dim=0), 0.1)\n"
    "return h / self.spread",
    # several by one line
    "with torch.no_grad():\n    m, v = h.mean(0), h.var(0)\n    self.centre.mul_(0.9).add_(0.1 * m)\n"
    "    self.spread.mul_(0.9).add_(0.1 * v)\nreturn (h - self.centre) / self.spread.sqrt()",
    "with torch.no_grad():\n    v, m = torch.var_mean(h, 0)\n    self.centre.lerp_(m, 0.1)\n"
    "    self.spread.lerp_(v, 0.1)\nreturn (h - self.centre) / self.spread.sqrt()",
    "with torch.no_grad():\n    for b, v in ((self.centre, h.mean(0)), (self.spread, h.var(0))):\n"
    "        b.lerp_(v, 0.1)\nreturn (h - self.centre) / self.spread.sqrt()",
    # Welford's: the one by what it is away from the other
    "with torch.no_grad():\n    m, v = h.mean(0), h.var(0)\n    d = m - self.centre\n"
    "    self.centre.add_(d * 0.1)\n"
    "    self.spread.copy_(self.spread * 0.9 + v * 0.1 + d * d * 0.09)\n"
    "return (h - self.centre) / self.spread.sqrt()",
]


@pytest.mark.parametrize("body", KEPT)
def test_a_mean_that_is_kept_for_the_next_step_is_detached_on_purpose(
    body: str, tmp_path: Path
) -> None:
    report = audit(model(tmp_path, body), X)
    assert report.ok, str(report)
    assert any("on purpose" in note for note in report.notes)


LOST = [
    # of this step alone
    "return h - h.detach().mean(0)",
    "self.centre = h.detach().mean(0)\nreturn h - self.centre",
    "self.centre.copy_(h.detach().mean(0))\nreturn h - self.centre",
    # the mean is used otherwise, too
    "mean = h.detach().mean(0)\nself.centre.lerp_(mean, 0.1)\nreturn h - self.centre - mean",
    "m, v = h.detach().mean(0), h.detach().var(0)\nself.centre.lerp_(m, 0.1)\n"
    "self.spread.lerp_(v, 0.1)\nreturn h - self.centre - v",
    "m, v = h.detach().mean(0), h.detach().var(0)\nself.centre.copy_(m)\nself.spread.lerp_(v, 0.1)\n"
    "return (h - self.centre) / self.spread.sqrt()",
    # each row is kept, and no mean of them
    "self.rows.mul_(0.5).add_(h.detach())\nreturn h + self.rows",
]


@pytest.mark.parametrize("body", LOST)
def test_what_is_no_statistic_is_a_cut(body: str, tmp_path: Path) -> None:
    assert audit(model(tmp_path, body), X).wrong == ("layer.weight", "layer.bias")


def test_what_learns_by_a_statistic_alone_does_not_learn(tmp_path: Path) -> None:
    body = "self.centre.lerp_(h.detach().mean(0), 0.1)\nreturn x.clone().requires_grad_() - self.centre"
    assert audit(model(tmp_path, body), X).missing == ("layer.weight", "layer.bias")


def test_complex_outputs_need_a_real_loss(tmp_path: Path) -> None:
    spectrum = model(tmp_path, "return torch.fft.fft(h)")
    with pytest.raises(ValueError, match="complex numbers only: give audit a real loss"):
        audit(spectrum, X)
    assert audit(spectrum, X, loss=lambda out: out.abs().square().sum()).ok
