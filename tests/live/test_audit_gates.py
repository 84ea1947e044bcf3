"""``trainify.audit``: a stopped gate is none of what a loss holds others against."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainify

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
CLASSES = torch.arange(6) % 3


class Mixture(nn.Module):
    """Experts whose router learns by a loss of its own alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(8, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        p = self.router(x).softmax(-1)
        balance = (p.mean(0) * (p > 0.3).float().mean(0)).sum()
        return self.task(x, p) + 0.03 * balance

    def mixed(self, x: Tensor, gates: Tensor) -> Tensor:
        return sum(gates[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class Size(Mixture):
    def task(self, x, p):
        return self.mixed(x, p.detach()).square().mean()


class Logits(Mixture):
    def task(self, x, p):
        return F.cross_entropy(self.mixed(x, p.detach()), CLASSES)


class Summed(Mixture):
    """A sum of products, as a similarity is one."""

    def task(self, x, p):
        made = torch.stack([expert(x) for expert in self.experts], 1)
        return F.cross_entropy((p.detach().unsqueeze(-1) * made).sum(1), CLASSES)


class Scope(Mixture):
    def task(self, x, p):
        with torch.no_grad():
            gates = p / p.sum(-1, keepdim=True)
        return F.mse_loss(self.mixed(x, gates), x[:, :3])


class AsATargetToo(Mixture):
    def task(self, x, p):
        stopped = p.detach()
        taught = self.experts[0](x).log_softmax(-1)
        return self.mixed(x, stopped).square().mean() + F.kl_div(taught, stopped)


class OneForEach(Mixture):
    def task(self, x, p):
        return (self.experts[0](x) * p.detach() - x[:, :3]).square().mean()


class Term(Mixture):
    """A term of the loss that is taken away, and has no gradient."""

    def task(self, x, p):
        with torch.no_grad():
            entropy = -(p * p.log()).sum(-1).mean()
        return F.cross_entropy(self.experts[0](x), CLASSES) - 0.1 * entropy


@pytest.mark.parametrize("cls", [Size, Logits, Summed, Scope, AsATargetToo, OneForEach, Term])
def test_a_gate_that_learns_by_the_way_is_told(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert set(report.wrong) == {"router.weight", "router.bias"}, str(report)


class Similarity(nn.Module):
    """Two networks, of which one is held against the other, stopped, and learns by itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = (
            nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        one, other = (F.normalize(net(x), dim=-1) for net in (self.a, self.b))
        return self.alike(one, other.detach()) + F.mse_loss(other, x)

    def alike(self, one: Tensor, other: Tensor) -> Tensor:
        return 2 - 2 * (one * other).sum(-1).mean()


class Contrast(Similarity):
    def alike(self, one, other):
        right = (one * other).sum(-1, keepdim=True)
        wrong = one @ other.roll(1, 0).t()
        return F.cross_entropy(torch.cat([right, wrong], 1) / 0.2, torch.zeros(6).long())


class Clipped(Similarity):
    """An advantage, by which a ratio is weighed."""

    def alike(self, one, other):
        taken = one.log_softmax(-1)[:, 0]
        ratio, advantage = (taken - taken.detach()).exp(), 1 - other[:, 0]
        return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


@pytest.mark.parametrize("cls", [Similarity, Contrast, Clipped])
def test_what_is_held_against_is_meant(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert report.ok, str(report)
    assert "stopped or shaped on purpose" in report.notes[0]
