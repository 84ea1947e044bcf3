"""``torch.normal``, through which autograd passes zeros."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

import trainify
from trainify.live.audit import Cause
from trainify.live.audit.run import audit

X = torch.randn(3, 4)


class Autoencoder(nn.Module):
    weight = 0.01

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.decode = nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.mean(x)
        return F.mse_loss(self.decode(self.draw(mean)), x) + self.weight * mean.square().sum()

    def draw(self, mean: Tensor) -> Tensor:
        return torch.normal(mean, torch.full_like(mean, 0.1))


class OnlyThrough(Autoencoder):
    weight = 0.0


@pytest.mark.parametrize("cls", [Autoencoder, OnlyThrough])
def test_a_draw_ends_the_gradient(cls: Any) -> None:
    report = audit(cls(), X)
    assert [(cut.cause, cut.op) for cut in report.cuts] == [(Cause.DETACH, "torch.normal")]
    assert {*report.wrong} == {"mean.weight", "mean.bias"}
    assert "randn_like" in report.cuts[0].message
    with pytest.raises(trainify.NotTrainable, match="randn_like"):
        trainify.trainify(cls(), X)


class Reparametrized(Autoencoder):
    def draw(self, mean: Tensor) -> Tensor:
        return mean + torch.full_like(mean, 0.1) * torch.randn_like(mean)


class OfNoise(Autoencoder):
    def draw(self, mean: Tensor) -> Tensor:
        return mean + torch.normal(torch.zeros_like(mean), 0.1)


@pytest.mark.parametrize("cls", [Reparametrized, OfNoise])
def test_noise_beside_the_gradient_is_right(cls: Any) -> None:
    report = audit(cls(), X)
    assert report.ok, str(report)
    assert "float64" in report.proof


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.log_std = nn.Linear(4, 2), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        mean, std = self.mean(x), self.log_std.exp()
        action = torch.normal(mean, std.expand_as(mean))
        reward = -(action - 1).square().sum(-1)
        return -(Normal(mean, std).log_prob(action).sum(-1) * reward).mean()


def test_an_action_is_not_learnt_through() -> None:
    report = audit(Policy(), X)
    assert report.ok, str(report)
