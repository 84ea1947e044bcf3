"""A scope that takes gradients, and lines in it that take none."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainify.live.audit.run import audit

X = torch.randn(3, 4)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.rand(4))


class Clamping(Model):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.scale.data.clamp_(-2, 2)
            h = torch.tanh(self.first(x))
        out: Tensor = self.last(h * self.scale)
        return out


class Scaling(Model):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = self.scale.data.clamp(-2, 2)
            h = torch.tanh(self.first(x)) * scale
        out: Tensor = self.last(h * self.scale)
        return out


def test_weights_that_are_clipped_beside_are_not_accused() -> None:
    report = audit(Clamping(), X)
    assert report.missing == ("first.weight", "first.bias") and report.wrong == ()
    (cut,) = report.cuts
    assert set(cut.parameters) == {"first.weight", "first.bias"}


def test_weights_whose_other_way_is_cut_are() -> None:
    report = audit(Scaling(), X)
    assert report.missing == ("first.weight", "first.bias") and report.wrong == ("scale",)
