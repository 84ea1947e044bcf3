"""``trainify.audit``: losses whose weights are made of what they are the loss of."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainify

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
Y = torch.arange(6) % 8


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.loss(self.b(torch.tanh(self.a(x))))


class Given(Net):
    """To the loss, as its weight."""

    def loss(self, logits):
        score = torch.sigmoid(logits.detach())
        target = F.one_hot(Y, 8).float()
        weight = 0.75 * score.pow(2) * (1 - target) + target
        return F.binary_cross_entropy_with_logits(logits, target, weight=weight)


class Times(Net):
    """The loss of each row."""

    def loss(self, logits):
        sure = logits.softmax(-1).gather(1, Y[:, None])[:, 0].detach()
        return ((1 - sure) ** 2 * F.cross_entropy(logits, Y, reduction="none")).mean()


@pytest.mark.parametrize("cls", [Given, Times])
def test_weights_of_a_loss_are_right(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert report.ok, str(report)


class Tempered(Net):
    """What is given to the loss is divided by what has lost its gradient."""

    def loss(self, logits):
        return F.cross_entropy(logits / logits.detach().norm(), Y)


class Scaled(Net):
    """The loss of everything is multiplied by a stopped value that it is held against as well."""

    def loss(self, logits):
        target = logits.detach()
        return F.mse_loss(self.b(logits), target) * target.sum()


@pytest.mark.parametrize("cls", [Tempered, Scaled])
def test_other_stops_beside_a_loss_are_told(cls: type[nn.Module]) -> None:
    assert not trainify.audit(cls(), X).ok
