"""``trainify.audit``: what is made of rewards and of values of one's own is held against."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainify

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
REWARDS = torch.randn(6, generator=torch.Generator().manual_seed(2))
CLASSES = torch.arange(6) % 3


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.policy, self.critic = (
            nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, n)) for n in (3, 1)
        )

    def taken(self, x: Tensor) -> Tensor:
        return self.policy(x).log_softmax(-1).gather(1, CLASSES[:, None]).squeeze(1)

    def values(self, x: Tensor) -> Tensor:
        return self.critic(x).squeeze(-1)


class Bootstrapped(Agent):
    """The values of the next states are of the same batch."""

    def forward(self, x, rewards):
        values = self.values(x)
        targets = (rewards[:-1] + 0.9 * values[1:]).detach()
        return F.smooth_l1_loss(values[:-1], targets)


class Estimated(Agent):
    """Generalized advantages, written one after the other."""

    def forward(self, x, rewards):
        values, taken = self.values(x), self.taken(x)
        with torch.no_grad():
            advantages, last = torch.zeros_like(values), 0.0
            for i in reversed(range(6)):
                following = values[i + 1] if i < 5 else 0.0
                last = rewards[i] + 0.9 * following - values[i] + 0.8 * last
                advantages[i] = last
            returns = advantages + values
            advantages = (advantages - advantages.mean()) / advantages.std()
        ratio = (taken - taken.detach()).exp()
        gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        return (values - returns).square().mean() - gain


class Penalized(Agent):
    """A distance from another policy is a part of the reward."""

    def forward(self, x, rewards):
        taken = self.taken(x)
        with torch.no_grad():
            rewards = rewards - 0.1 * (taken + 1.1)
        return -(taken * rewards).mean()


class Tempered(Agent):
    """A multiplier is moved by how far a constraint is from being met."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.1))

    def forward(self, x, rewards):
        taken = self.taken(x)
        gain = (self.temperature.exp().detach() * taken - taken.exp() * rewards).mean()
        return gain - (self.temperature * (taken + 2).detach()).mean()


@pytest.mark.parametrize("cls", [Bootstrapped, Estimated, Penalized, Tempered])
def test_returns_are_meant(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X, REWARDS)
    assert report.ok, str(report)
    assert "stopped or shaped on purpose" in report.notes[0]


class WithoutRewards(Agent):
    def forward(self, x, rewards):
        values = self.values(x)
        smooth = (values[:-1] - 0.9 * values[1:].detach()).square().mean()
        return smooth + 0.1 * (values - rewards).square().mean()


class AddedLater(Agent):
    """Two parts of a result, of which one is stopped."""

    def forward(self, x, rewards):
        h = self.policy(x)
        both = h[:, 0] + h[:, 1].detach()
        return (both - rewards).square().mean() + 0.1 * h[:, 1].square().mean()


class Term(Agent):
    def forward(self, x, rewards):
        h = self.policy(x)
        with torch.no_grad():
            error = (h[:, 1] - rewards).abs().mean()
        return F.cross_entropy(h, CLASSES) + error


class TakenAway(Term):
    def forward(self, x, rewards):
        h = self.policy(x)
        with torch.no_grad():
            error = (rewards - h[:, 1]).square().mean()
        return F.cross_entropy(h, CLASSES) - error


class Gate(Agent):
    def forward(self, x, rewards):
        h = self.policy(x)
        return (h[:, 0] * (rewards - h[:, 1]).detach() - x[:, 0]).square().mean()


class Scaled(Agent):
    """A scale that learns is a part of a result."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.1))

    def forward(self, x, rewards):
        values = self.values(x)
        error = (self.scale * values.detach() - rewards).square().mean()
        return error + 0.1 * values.exp().mean()


class Residual(Agent):
    """What is added is no reward."""

    def forward(self, x, rewards):
        h = x[:, :3] + self.policy(x)
        h = x + F.pad(h, (0, 5))
        return (h[1:] - h[:-1].detach()).square().mean() + 0.1 * h.square().mean()


class Halves(Agent):
    """Half of the rows have no gradient."""

    def forward(self, x, rewards):
        with torch.no_grad():
            first = self.policy(x[:3])
        return F.cross_entropy(torch.cat([first, self.policy(x[3:])]), CLASSES)


class HalfOfARow(Agent):
    def forward(self, x, rewards):
        h = torch.stack([self.taken(x).detach(), self.taken(x.flip(0))])
        return -(h * rewards).mean()


class Regularized(Agent):
    """What the policy is to learn by has no history, and its entropy trains."""

    def forward(self, x, rewards):
        ratio = (self.taken(x) + 1.1).exp().detach()
        log = self.policy(x).log_softmax(-1)
        return 0.01 * (log.exp() * log).sum(-1).mean() - (ratio * rewards).mean()


@pytest.mark.parametrize(
    "cls",
    [
        WithoutRewards, AddedLater, Term, TakenAway, Gate, Scaled, Residual, Halves, HalfOfARow, Regularized,
    ],
)  # fmt: skip
def test_what_is_no_return_is_told(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X, REWARDS)
    assert report.wrong and not report.ok, str(report)
