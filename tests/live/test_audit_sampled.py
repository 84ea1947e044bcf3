"""``trainify.audit``: what is moved by gradients of its own, and what two networks judge."""

import pytest
import torch
from torch import Tensor, nn

import trainify

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


def network(wide: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, wide))


class Energy(nn.Module):
    """Samples are drawn by going down its slope, and lifted."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.energy, self.start = network(1), network(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        for _ in range(3):
            y = y.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.energy(y).sum(), y)
            y = y - 0.1 * slope
        return self.loss(x, y.detach())

    def first(self, x: Tensor) -> Tensor:
        return x.flip(0)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        own = self.energy(x)
        return own.mean() - self.energy(y).mean() + 0.01 * own.square().mean()


class BySigns(Energy):
    def forward(self, x):
        y = x.flip(0).requires_grad_()
        for _ in range(2):
            (slope,) = torch.autograd.grad(self.energy(y).sum(), y)
            y = (y.data + 0.1 * slope.sign()).clamp(-1, 1).requires_grad_()
        return self.loss(x, y.data)


class Networks(nn.Module):
    """A generator, and what judges it, which learns from the same results and mixtures of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.generator, self.critic = network(8), network(1)

    def forward(self, x: Tensor) -> Tensor:
        made = self.generator(x)
        stopped = made.detach()
        between = (0.5 * x + 0.5 * stopped).requires_grad_()
        (slope,) = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
        loss = self.critic(stopped).mean() - self.critic(x).mean()
        self.critic.requires_grad_(False)
        judged = self.critic(made).mean()
        self.critic.requires_grad_(True)
        return loss + 10 * (slope.norm(dim=-1) - 1).square().mean() - judged


@pytest.mark.parametrize("cls", [Energy, BySigns, Networks])
def test_it_is_meant(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert report.ok, str(report)


class Generated(Energy):
    """What is moved comes from a network, which loses its gradient."""

    def first(self, x):
        return self.start(x)

    def loss(self, x, y):
        return super().loss(x, y) + 0.001 * self.start(x).square().mean()


class HeldAgainst(Energy):
    def loss(self, x, y):
        return (y - x.flip(0)).square().mean() + 0.1 * self.energy(x).square().mean()


class Slope(Energy):
    """A gradient is the result, and has no history."""

    def forward(self, x):
        y = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.energy(y).sum(), y)
        return (slope - x).square().mean() + 0.1 * self.energy(x).square().mean()


@pytest.mark.parametrize(
    ("cls", "name"),
    [(Generated, "start.0.weight"), (HeldAgainst, "energy.0.weight"), (Slope, "energy.0.weight")],
)
def test_it_is_not(cls: type[nn.Module], name: str) -> None:
    report = trainify.audit(cls(), X)
    assert name in report.wrong, str(report)
