"""``trainify.audit``: divergences, written out, of one distribution from another that is stopped.

World models balance one so: the prior is taught by the posterior, and that a little by the prior.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, distributions, nn

import trainify

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


def divergence(p: Tensor, q: Tensor) -> Tensor:
    return (p.softmax(-1) * (p.log_softmax(-1) - q.log_softmax(-1))).sum(-1).mean()


def of_distributions(p: Tensor, q: Tensor) -> Tensor:
    one, other = (distributions.OneHotCategorical(logits=each) for each in (p, q))
    return distributions.kl_divergence(one, other).mean()


class Balanced(nn.Module):
    divergence = staticmethod(divergence)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encode, self.prior, self.decode = (
            nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        post, prior = self.encode(x), self.prior(x.roll(1, 0))
        return F.mse_loss(self.decode(self.sample(post)), x) + self.balance(post, prior)

    def sample(self, post: Tensor) -> Tensor:
        return post.softmax(-1)

    def balance(self, post: Tensor, prior: Tensor) -> Tensor:
        dynamics = self.divergence(post.detach(), prior)
        representation = self.divergence(post, prior.detach())
        return 0.8 * dynamics + 0.2 * representation


class OfDistributions(Balanced):
    divergence = staticmethod(of_distributions)


class FreeNats(Balanced):
    def balance(self, post, prior):
        dynamics = self.divergence(post.detach(), prior).clamp(min=0.01)
        return dynamics + 0.1 * self.divergence(post, prior.detach()).clamp(min=0.01)


class StraightThrough(Balanced):
    def sample(self, post):
        soft = post.softmax(-1)
        return F.one_hot(soft.argmax(-1), 8) + soft - soft.detach()


class DynamicsAlone(Balanced):
    """The posterior learns from what is decoded."""

    def balance(self, post, prior):
        return self.divergence(post.detach(), prior)


@pytest.mark.parametrize(
    "cls", [Balanced, OfDistributions, FreeNats, StraightThrough, DynamicsAlone]
)
def test_divergences_from_what_is_stopped_are_right(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert report.ok, str(report)
    assert any("on purpose" in note for note in report.notes)


class OfWhatIsStopped(Balanced):
    """What is decoded has lost its gradient."""

    def sample(self, post):
        return post.softmax(-1).detach()


class OfAnother(Balanced):
    """The weight is not of what the other is taken from."""

    def balance(self, post, prior):
        weight = self.decode(prior)
        return (weight.softmax(-1).detach() * (post.detach() - prior)).mean()


class OnceMore(Balanced):
    """The difference is a term of its own as well, of which both are to learn."""

    def balance(self, post, prior):
        post = post.log_softmax(-1).detach()
        difference = post - prior.log_softmax(-1)
        return (post.exp() * difference).mean() + difference.mean()


class OfOnePart(Balanced):
    """The other is made of the stopped one as well."""

    def balance(self, post, prior):
        return self.divergence(post.detach(), post + 0.1 * prior)


class BeforeLayers(Balanced):
    """Layers come behind."""

    def balance(self, post, prior):
        p = post.softmax(-1).detach()
        return self.decode(p * (p.log() - prior.log_softmax(-1))).square().mean()


@pytest.mark.parametrize("cls", [OfWhatIsStopped, OfAnother, OnceMore, OfOnePart, BeforeLayers])
def test_other_stops_beside_them_are_told(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert {"encode.0.weight", "encode.2.weight"} <= set(report.wrong), str(report)


class Untaught(Balanced):
    """Nothing teaches the posterior."""

    def sample(self, post):
        return torch.zeros_like(post)

    def balance(self, post, prior):
        return self.divergence(post.detach(), prior)


def test_what_nothing_else_teaches_is_told() -> None:
    report = trainify.audit(Untaught(), X)
    assert {"encode.0.weight", "encode.2.weight"} <= set(report.missing), str(report)
