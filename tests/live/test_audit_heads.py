"""Heads on stopped features and adversarial inputs, which are meant, and what looks like them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainify


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))
        self.policy, self.value = nn.Linear(8, 3), nn.Linear(8, 1)
        self.large = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

    def task(self, h: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.policy(h), y)


class Critic(Model):
    def forward(self, x, y, returns):
        h = self.trunk(x)
        value = self.value(h.detach()).squeeze(-1)
        return self.task(h, y) + 0.5 * F.mse_loss(value, returns)


class OwnLoss(Model):
    def forward(self, x, y, returns):
        h = self.trunk(x)
        loss = (self.value(h.detach()).squeeze(-1) - returns).square().mean()
        return {"loss": 0.5 * loss + self.task(h, y), "value": loss.item()}


class Advantage(Model):
    def forward(self, x, y, returns):
        h = self.trunk(x)
        value = self.value(h.detach()).squeeze(-1)
        advantage = returns - value.detach()
        chosen = self.policy(h).log_softmax(-1).gather(1, y[:, None]).squeeze(1)
        return F.mse_loss(value, returns) - (chosen * advantage).mean()


class RowByRow(Model):
    def forward(self, x, y, returns):
        h = self.trunk(x)
        task = F.cross_entropy(self.policy(h), y, reduction="none")
        return (task + (self.value(h.detach()).squeeze(-1) - returns) ** 2).mean()


class Stacked(Model):
    def forward(self, x, y, returns):
        h = self.trunk(x)
        probe = F.cross_entropy(self.policy(h.detach() / 2), y)
        return torch.stack([F.cross_entropy(self.large(h), y), probe]).sum()


class VirtualAdversarial(Model):
    def forward(self, x, y, returns):
        logits = self.policy(self.trunk(x))
        with torch.no_grad():
            now = logits.softmax(-1)
        step = F.normalize(torch.linspace(-1, 1, x.numel()).view_as(x)).requires_grad_()
        moved = self.policy(self.trunk(x + 10.0 * step)).log_softmax(-1)
        divergence = F.kl_div(moved, now, reduction="batchmean")
        step = F.normalize(torch.autograd.grad(divergence, step)[0])
        moved = self.policy(self.trunk(x + 0.5 * step)).log_softmax(-1)
        return F.cross_entropy(logits, y) + F.kl_div(moved, now, reduction="batchmean")


def batch() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]), torch.randn(6)


@pytest.mark.parametrize(
    "model", [Critic, OwnLoss, Advantage, RowByRow, Stacked, VirtualAdversarial]
)
def test_what_is_meant_is_let_be(model: type[Model]) -> None:
    inputs = batch()
    report = trainify.audit(model(), *inputs)
    assert report.ok, report
    assert "gradients are stopped or shaped on purpose at" in report.notes[0]
    made = model()
    assert type(trainify.trainify(made, *inputs)) is model


class Residual(Model):
    def forward(self, x, y, returns):
        h = self.trunk(x)
        return self.task(h + self.value(h.detach()), y)


class Beside(Model):
    """What both make comes together before the loss."""

    def forward(self, x, y, returns):
        h = self.trunk(x)
        both = torch.cat([self.policy(h), self.value(h.detach())], -1)
        return F.cross_entropy(both, y)


class MostBehind(Model):
    """A head early on has its gradient, and the larger part of the model is cut off from it."""

    def forward(self, x, y, returns):
        h = self.trunk(x)
        early = F.mse_loss(self.value(h).squeeze(-1), returns)
        return F.cross_entropy(self.large(h.detach()), y) + early


class OfTheInside(Model):
    """The features learn by a penalty alone."""

    def forward(self, x, y, returns):
        inner = self.trunk[0](x)
        h = self.trunk[2](self.trunk[1](inner)) + inner
        return self.task(h.detach(), y) + h.square().mean()


class Product(Model):
    def forward(self, x, y, returns):
        h = self.trunk(x)
        return self.task(h, y) * self.value(h.detach()).square().mean()


class Scope(Model):
    """Not said of a value, but of whatever runs there."""

    def forward(self, x, y, returns):
        h = self.trunk(x)
        with torch.no_grad():
            features = h * 2
        return self.task(h, y) + F.mse_loss(self.value(features).squeeze(-1), returns)


class Outputs(Model):
    """Of which no loss is known."""

    def forward(self, x, y, returns):
        h = self.trunk(x)
        return self.policy(h), self.value(h.detach())


class Force(Model):
    """The gradient of an energy is taken for its value."""

    def forward(self, x, y, returns):
        x = x.clone().requires_grad_()
        energy = self.value(self.trunk(x))
        (force,) = torch.autograd.grad(energy.sum(), x, retain_graph=True)
        return F.mse_loss(energy.squeeze(-1), returns) + self.task(self.trunk(force), y)


class Penalty(Model):
    def forward(self, x, y, returns):
        x = x.clone().requires_grad_()
        out = self.policy(self.trunk(x))
        (slope,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
        return F.cross_entropy(out, y) + (slope.norm(dim=-1) - 1).square().mean()


@pytest.mark.parametrize(
    "model",
    [Residual, Beside, MostBehind, OfTheInside, Product, Scope, Outputs, Force, Penalty],
)
def test_what_may_be_a_mistake_is_accused(model: type[Model]) -> None:
    report = trainify.audit(model(), *batch())
    assert report.wrong and len(report.cuts) == 1
    assert report.cuts[0].function == f"{model.__name__}.forward"


class Language(nn.Module):
    """A model with heads that are about as large as its own, and count for less."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(12, 8)
        self.trunk = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
        self.next = nn.Linear(8, 12, bias=False)
        self.second = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 12))
        self.third = nn.Linear(8, 12)

    def hidden(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        return x + self.trunk(x)

    def loss(self, logits: Tensor, ids: Tensor, ahead: int) -> Tensor:
        return F.cross_entropy(logits[:, :-ahead].flatten(0, 1), ids[:, ahead:].flatten())


class Heads(Language):
    """As Medusa has them."""

    def forward(self, ids):
        h = self.hidden(ids)
        loss = self.loss(self.next(h), ids, 1)
        stopped = h.detach()
        for ahead, head in enumerate((self.second, self.third), 2):
            loss = loss + 0.2 * 0.8**ahead * self.loss(head(stopped), ids, ahead)
        return loss


class Draft(Language):
    """Of a part of what goes on with its history."""

    def forward(self, ids):
        h = self.hidden(ids)
        draft = self.second(h[:, :-1].detach())
        return self.loss(self.next(h), ids, 1) + 0.1 * self.loss(draft, ids[:, :-1], 2)


@pytest.mark.parametrize("model", [Heads, Draft])
def test_a_larger_head_that_counts_for_less_is_meant(model: type[Language]) -> None:
    report = trainify.audit(model(), torch.arange(14).view(2, 7) * 5 % 12)
    assert report.ok, report
    assert "gradients are stopped or shaped on purpose at" in report.notes[0]


class CountsForMore(Language):
    """What remains of the gradient is the smaller share."""

    def forward(self, ids):
        h = self.hidden(ids)
        return 0.1 * self.loss(self.next(h), ids, 1) + self.loss(self.second(h.detach()), ids, 2)


class ByFarTheLargest(Language):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(8, 1)

    def forward(self, ids):
        h = self.hidden(ids)
        value = self.value(h).squeeze(-1) - ids / 12
        return 3 * value.square().mean() + 0.01 * self.loss(self.second(h.detach()), ids, 2)


class Mixed(Language):
    def forward(self, ids):
        h = self.hidden(ids)
        return self.loss(self.next(h) + 0.1 * self.third(h.detach()), ids, 1)


@pytest.mark.parametrize("model", [CountsForMore, ByFarTheLargest, Mixed])
def test_a_head_that_is_not_beside_a_larger_one_is_accused(model: type[Language]) -> None:
    report = trainify.audit(model(), torch.arange(14).view(2, 7) * 5 % 12)
    assert report.wrong and len(report.cuts) == 1
