"""``trainify.audit``: terms of a loss that are computed twice, each time with another side stopped.

So world models balance two normal distributions, and two networks that play against each other get
each its half.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, distributions, nn

import trainify

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
NOISE = torch.randn(6, 8, generator=torch.Generator().manual_seed(2))


def network(wide: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, wide))


def widths(raw: Tensor) -> tuple[Tensor, Tensor]:
    mean, width = raw.chunk(2, -1)
    return mean, F.softplus(width) + 0.1


def of_distributions(p: tuple[Tensor, Tensor], q: tuple[Tensor, Tensor]) -> Tensor:
    normal, independent = distributions.Normal, distributions.Independent
    one, other = (independent(normal(*each), 1) for each in (p, q))
    return distributions.kl_divergence(one, other).mean()


class World(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encode, self.prior, self.decode = network(16), network(16), network(8)

    def forward(self, x: Tensor) -> Tensor:
        post, prior = self.encode(x), self.prior(x.roll(1, 0))
        mean, width = widths(post)
        return F.mse_loss(self.decode(mean + width * NOISE), x) + self.balance(post, prior)

    def balance(self, post: Tensor, prior: Tensor) -> Tensor:
        p, q = widths(post), widths(prior)
        dynamics = self.divergence(tuple(each.detach() for each in p), q)
        return 0.8 * dynamics + 0.2 * self.divergence(p, tuple(each.detach() for each in q))

    def divergence(self, p: tuple[Tensor, Tensor], q: tuple[Tensor, Tensor]) -> Tensor:
        return of_distributions(p, q)


class OfWidths(World):
    def divergence(self, p, q):
        square = p[1] ** 2 + (p[0] - q[0]) ** 2
        return ((q[1] / p[1]).log() + square / (2 * q[1] ** 2) - 0.5).sum(-1).mean()


class OfLogarithms(World):
    def divergence(self, p, q):
        one, other = 2 * p[1].log(), 2 * q[1].log()
        square = (p[0] - q[0]).square() * torch.exp(-other)
        return 0.5 * (other - one + torch.exp(one - other) + square - 1).sum(-1).mean()


class FreeNats(OfWidths):
    def balance(self, post, prior):
        p, q = widths(post), widths(prior)
        one, other = widths(post.detach()), widths(prior.detach())
        return self.divergence(one, q).clamp(min=0.1) + self.divergence(p, other).clamp(min=0.1)


class BeforeTheWidths(World):
    def balance(self, post, prior):
        dynamics = self.divergence(widths(post.detach()), widths(prior))
        return 0.8 * dynamics + 0.2 * self.divergence(widths(post), widths(prior.detach()))


class DynamicsAlone(World):
    """The posterior learns from what is decoded."""

    def balance(self, post, prior):
        return self.divergence(widths(post.detach()), widths(prior))


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.generator, self.critic = network(8), network(1)

    def forward(self, x: Tensor) -> Tensor:
        made = self.generator(x.roll(1, 0))
        return self.loss(x, made, self.critic(x), self.critic(made.detach()))


class WithStoppedWeights(Adversaries):
    def loss(self, x, made, real, fake):
        weights = {name: each.detach() for name, each in self.critic.named_parameters()}
        judged = torch.func.functional_call(self.critic, weights, (made,))
        return F.softplus(-real).mean() + F.softplus(fake).mean() + F.softplus(-judged).mean()


class Relativistic(Adversaries):
    """What is real is more so than what is made, or less; one of both learns each time."""

    def loss(self, x, made, real, fake):
        judged = self.critic(made)
        return F.softplus(fake - real).mean() + F.softplus(real.detach() - judged).mean()


@pytest.mark.parametrize(
    "cls",
    [World, OfWidths, OfLogarithms, FreeNats, BeforeTheWidths, DynamicsAlone, WithStoppedWeights,
     Relativistic],
)  # fmt: skip
def test_halves_that_are_stopped_are_meant(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert report.ok, str(report)
    assert any("on purpose" in note for note in report.notes)


class OneHalf(OfWidths):
    """Nothing else of the kind is there; the width that is stopped is that of what learns."""

    def balance(self, post, prior):
        (mean, width), q = widths(post), widths(prior)
        return self.divergence((mean, width.detach()), q)


class OfOnePart(World):
    """The other is made of the stopped one as well."""

    def balance(self, post, prior):
        p, q = widths(post), widths(0.5 * post + prior)
        return self.divergence(tuple(each.detach() for each in p), q)


class OfAnother(OfWidths):
    """The second time it is computed of other values."""

    def balance(self, post, prior):
        one = self.divergence(widths(post), widths(post.detach().tanh()))
        return one + self.divergence(widths(post.tanh()), widths(prior))


class BeforeLayers(World):
    """Both sides learn by a little; what is made of them for layers has lost one."""

    def balance(self, post, prior):
        little = (post * prior).square().mean()
        return F.mse_loss(self.decode((post.detach() * prior)[:, :8]), X) + 0.01 * little


class Unused(World):
    """The other half goes into no loss."""

    def balance(self, post, prior):
        self.seen = (post * prior).square().mean()
        return (post.detach() * prior).square().mean() + 0.01 * post.mean()


@pytest.mark.parametrize("cls", [OneHalf, OfOnePart, OfAnother, BeforeLayers, Unused])
def test_other_halves_are_told(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert "encode.0.weight" in report.wrong, str(report)


class InTheMiddle(Adversaries):
    """The critic takes the same with a history, which does not go back to the generator."""

    def loss(self, x, made, real, fake):
        hidden = self.critic[1](self.critic[0](made)).detach()
        judged = self.critic[2](hidden)
        learns = F.softplus(-real).mean() + F.softplus(fake).mean()
        return learns + F.softplus(-judged).mean() + 0.1 * made.square().mean()


class Ranked(Adversaries):
    """No half in which what is real learns by the difference."""

    def loss(self, x, made, real, fake):
        return F.softplus(real.detach() - self.critic(made)).mean() + 0.01 * real.mean()


@pytest.mark.parametrize(
    ("cls", "name"), [(InTheMiddle, "generator.0.weight"), (Ranked, "critic.0.weight")]
)
def test_a_loss_that_only_one_side_goes_into_is_told(cls: type[nn.Module], name: str) -> None:
    report = trainify.audit(cls(), X)
    assert name in report.wrong, str(report)
