"""``trainify.audit``: what is stopped where the loss has no slope takes nothing from a gradient."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainify

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
CLASSES = torch.arange(6) % 3


class Root(nn.Module):
    """A square root by a solver, and a step of Newton's method from there."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        square = F.softplus(self.a(x)) + 0.5
        return F.cross_entropy(self.b(self.root(square).tanh()), CLASSES)

    def solved(self, square: Tensor, rounds: int) -> Tensor:
        with torch.no_grad():
            z = torch.ones_like(square)
            for _ in range(rounds):
                z = 0.5 * (z + square / z)
        return z

    def root(self, square: Tensor) -> Tensor:
        z = self.solved(square, 20)
        return z - (z * z - square) / (2 * z)


def test_a_step_from_a_fixed_point_has_its_gradient() -> None:
    report = trainify.audit(Root(), X)
    assert report.ok and "float64" in report.proof, str(report)


class Centered(Root):
    """A variance, of which the derivative by the mean is zero."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.b(self.a(x).tanh())
        return (h - h.mean(-1, keepdim=True).detach()).square().mean()


def test_a_mean_is_no_part_of_the_gradient_of_a_variance() -> None:
    report = trainify.audit(Centered(), X)
    assert report.ok and "float64" in report.proof, str(report)


class NoStep(Root):
    def root(self, square):
        return self.solved(square, 20) + 0.1 * square


class Early(Root):
    """The solver has not arrived."""

    def root(self, square):
        z = self.solved(square, 1)
        return z - (z * z - square) / (2 * z)


class Little(Root):
    """A small share of the loss depends on what is stopped, with a slope."""

    def root(self, square):
        return square + 1e-3 * square.detach()


@pytest.mark.parametrize("cls", [NoStep, Early, Little])
def test_what_has_a_slope_is_told(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert set(report.wrong) == {"a.weight", "a.bias"}, str(report)


class FromTheStart(nn.Module):
    """A distance from another policy, which is the same one before the first step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.policy = nn.Linear(8, 3)
        self.start = nn.Linear(8, 3).requires_grad_(False)
        self.start.load_state_dict(self.policy.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        log = self.policy(x).log_softmax(-1)
        ratio = self.start(x).log_softmax(-1) - log.detach()
        return F.cross_entropy(log, CLASSES) + (ratio.exp() - ratio - 1).sum(-1).mean()


class Squared(FromTheStart):
    def forward(self, x):
        result = self.policy(x)
        with torch.no_grad():
            moved = (result - self.start(x)).square().mean()
        return F.cross_entropy(result, CLASSES) + 10 * moved


@pytest.mark.parametrize("cls", [FromTheStart, Squared])
def test_what_has_a_slope_after_the_first_step_is_told(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert set(report.wrong) == {"policy.weight", "policy.bias"}, str(report)
