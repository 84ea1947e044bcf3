"""``trainify.audit``: a term of the loss that is weighed by a stopped function of its own."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainify

GENERATOR = torch.Generator().manual_seed(2)
X = torch.randn(6, 8, generator=GENERATOR)
OLD = torch.randn(6, generator=GENERATOR) - 1
ADVANTAGES = torch.randn(6, generator=GENERATOR)
ACTIONS = torch.tensor([0, 1, 2, 0, 1, 2])


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)

    def logs(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).tanh()).log_softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.loss(self.logs(x).gather(-1, ACTIONS[:, None])[:, 0])


class Clipped(Policy):
    """The ratio is clipped, and all log-probabilities learn."""

    def loss(self, log):
        ratio = (log - OLD).exp().clamp(max=2.0).detach()
        return -(ratio * ADVANTAGES * log).mean()


class Corrected(Policy):
    """The rollout came from another engine, which is corrected for."""

    def loss(self, log):
        old = log.detach()
        sampled = torch.clamp(torch.exp(old - OLD), max=2.0)
        ratio = torch.exp(log - old)
        each = -torch.min(ratio * ADVANTAGES, ratio.clamp(0.8, 1.2) * ADVANTAGES)
        return (each * sampled).sum() / 6


class CorrectedWithoutGradients(Policy):
    def loss(self, log):
        with torch.no_grad():
            old = log.clone()
            sampled = torch.clamp(torch.exp(old - OLD), max=2.0)
        return -((log - old).exp() * ADVANTAGES * sampled).mean()


class Focal(Policy):
    def loss(self, log):
        weights = (1 - log.exp()) ** 2
        return -(weights.detach() * log).mean()


class FocalOfACrossEntropy(Policy):
    def loss(self, log):
        missed = -log
        return ((1 - (-missed).exp().detach()) ** 2 * missed).sum() / 6


@pytest.mark.parametrize(
    "cls", [Clipped, Corrected, CorrectedWithoutGradients, Focal, FocalOfACrossEntropy]
)
def test_it_is_meant(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert report.ok, str(report)


class Entropy(Policy):
    """Of a whole distribution, the gradient of which is zero."""

    def forward(self, x):
        logs = self.logs(x)
        return F.nll_loss(logs, ACTIONS) + 0.1 * (logs.exp().detach() * logs).sum(-1).mean()


class Gate(Policy):
    def forward(self, x):
        h = self.a(x)
        return F.cross_entropy(self.b(h * h.sigmoid().detach()), ACTIONS)


class LastGate(Policy):
    """No term of a loss yet."""

    def forward(self, x):
        y = self.b(self.a(x).tanh())
        return F.mse_loss(y * y.sigmoid().detach(), x[:, :3])


class Output(Policy):
    def forward(self, x):
        y = self.b(self.a(x).tanh())
        return y * y.sigmoid().detach()


class Square(Policy):
    def forward(self, x):
        y = self.b(self.a(x).tanh())
        return (y * y.detach()).mean()


class Sine(Policy):
    """Nothing that anybody weighs by."""

    def loss(self, log):
        return (log.detach().sin() * log).mean()


@pytest.mark.parametrize("cls", [Entropy, Gate, LastGate, Output, Square, Sine])
def test_it_is_not(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert not report.ok, str(report)
    assert "a.weight" in {*report.wrong, *report.missing}
