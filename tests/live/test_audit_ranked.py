"""``trainify.audit``: of two results of one network that a loss ranks both are to learn."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainify

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


class Reward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.other = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).requires_grad_(
            False
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.loss(self.body(x[:3]).squeeze(-1), x[3:])


class Rejected(Reward):
    def loss(self, chosen, x):
        with torch.no_grad():
            rejected = self.body(x).squeeze(-1)
        return -F.logsigmoid(chosen - rejected).mean()


class Preference(Reward):
    """As in DPO, whose reference is another network."""

    def loss(self, chosen, x):
        with torch.no_grad():
            rejected = self.body(x).squeeze(-1)
            reference = self.other(x).squeeze(-1)
        return F.softplus(0.1 * (rejected - chosen + reference)).mean()


class Hinge(Reward):
    def loss(self, chosen, x):
        with torch.no_grad():
            rejected = self.body(x).squeeze(-1)
        return F.relu(1 - (chosen - rejected)).mean()


class Margin(Reward):
    def loss(self, chosen, x):
        rejected = self.body(x).squeeze(-1).detach()
        return F.margin_ranking_loss(chosen, rejected, torch.ones(3), margin=0.5)


@pytest.mark.parametrize("cls", [Rejected, Preference, Hinge, Margin])
def test_a_half_without_gradient_is_a_cut(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert "body.0.weight" in report.wrong, str(report)


class Reference(Reward):
    def loss(self, chosen, x):
        with torch.no_grad():
            reference = self.other(x).squeeze(-1)
        return -F.logsigmoid(chosen - self.body(x).squeeze(-1) - reference).mean()


class Target(Reward):
    """A difference that is squared holds one against the other."""

    def loss(self, chosen, x):
        with torch.no_grad():
            target = x[:, 0] + 0.9 * self.body(x).squeeze(-1)
        return (chosen - target).square().mean()


class Bound(Reward):
    """One network is bounded from below by another, which learns by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.other.requires_grad_(True)

    def loss(self, chosen, x):
        other = self.other(x).squeeze(-1)
        return F.relu(other.detach() - chosen).square().mean() + (other - 1).square().mean()


@pytest.mark.parametrize("cls", [Reference, Target, Bound])
def test_what_is_held_against_is_none(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert report.ok, str(report)
