"""Models whose forward goes backward by itself, and returns a loss without its history."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import trainify


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 1)

    def loss(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu()).square().mean()


class Step(Model):
    def forward(self, x):
        loss = self.loss(x)
        loss.backward()
        return loss.detach()


class Accumulated(Model):
    def forward(self, x):
        total = torch.zeros(())
        for part in x.chunk(3):
            loss = self.loss(part) / 3
            torch.autograd.backward(loss)
            with torch.no_grad():
                total = total + loss
        return total


class Output(Model):
    def forward(self, x):
        loss = self.loss(x)
        loss.backward()
        return {"loss": loss.data, "logits": x}


class TwoParts(Model):
    """The features have been gone back through before what is behind them learns."""

    def forward(self, x):
        h = self.first(x)
        h.square().mean().backward()
        return self.last(h.detach()).mean()


class Learning(Model):
    """With a step of descent."""

    def forward(self, x):
        loss = self.loss(x)
        loss.backward()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = parameter.grad.clone()
        return loss.detach()


@pytest.mark.parametrize("model", [Step, Accumulated, Output, TwoParts, Learning])
def test_what_arrives_in_the_forward_has_arrived(model: type[Model]) -> None:
    torch.manual_seed(0)
    step, x = model(), torch.randn(6, 4)
    step.first.weight.grad = before = torch.ones(4, 4)
    values = [parameter.clone() for parameter in step.parameters()]
    report = trainify.audit(step, x)
    assert report.ok, report
    assert report.proof == "" and "goes backward by itself" in report.notes[0]
    assert step.first.weight.grad is before and step.last.weight.grad is None
    assert all(map(torch.equal, values, step.parameters()))
    step(x)
    assert type(trainify.trainify(step, x)) is model


class Stopped(Model):
    def forward(self, x):
        loss = self.last(self.first(x).detach().relu()).square().mean()
        loss.backward()
        return loss.detach()


class Another(Model):
    """What is returned has not been gone back through."""

    def forward(self, x):
        self.loss(x).backward()
        return self.loss(x).detach() + Model.loss(self, x)


def test_what_does_not_arrive_is_missing() -> None:
    torch.manual_seed(0)
    report = trainify.audit(Stopped(), torch.randn(6, 4))
    assert report.missing == ("first.weight", "first.bias") and len(report.cuts) == 1
    assert report.cuts[0].function == "Stopped.forward"


def test_other_stops_are_accused() -> None:
    torch.manual_seed(0)
    report = trainify.audit(Another(), torch.randn(6, 4))
    assert not report.ok and len(report.wrong) == 4


class Adversarial(Model):
    """The gradients of the inner backward are thrown away."""

    def forward(self, x):
        delta = torch.zeros_like(x, requires_grad=True)
        self.loss(x + delta).backward()
        step = delta.grad.sign()
        self.zero_grad()
        return self.loss(x + 0.1 * step)


def test_a_backward_that_leaves_nothing_changes_nothing() -> None:
    torch.manual_seed(0)
    report = trainify.audit(Adversarial(), torch.randn(6, 4))
    assert report.ok and report.proof.startswith("float64")
