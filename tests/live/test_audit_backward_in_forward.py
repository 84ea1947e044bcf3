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


class Virtual(Model):
    """The direction in which the output changes most, by one step of a power iteration."""

    def forward(self, x):
        with torch.no_grad():
            target = self.output(x)
        d = self.direction(self.unit(torch.randn_like(x)), x, target)
        return (self.output(x + d) - target).square().mean() + self.loss(x)

    def output(self, x):
        return self.last(self.first(x).tanh())

    def unit(self, d):
        return d / (d.norm(dim=1, keepdim=True) + 1e-8)

    def direction(self, d, x, target):
        d.requires_grad_()
        (self.output(x + 0.1 * d) - target).square().mean().backward()
        d = self.unit(d.grad)
        self.zero_grad()
        return d


class VirtualCopied(Virtual):
    def direction(self, d, x, target):
        d = (0.1 * d).requires_grad_()
        torch.autograd.backward((self.output(x + d) - target).square().mean())
        found = d.grad.data.clone()
        self.zero_grad()
        return self.unit(found).detach()


class VirtualAsked(Virtual):
    """By ``autograd.grad``, which says the same."""

    def direction(self, d, x, target):
        d.requires_grad_()
        return self.unit(*torch.autograd.grad((self.output(x + 0.1 * d) - target).norm(), d))


@pytest.mark.parametrize("model", [Virtual, VirtualCopied, VirtualAsked])
def test_inputs_that_move_by_what_a_backward_leaves_are_meant(model: type[Model]) -> None:
    report = trainify.audit(model(), torch.randn(6, 4))
    assert report.ok, report.cuts


class Penalty(Model):
    """A norm of the gradient, which has a history only with ``create_graph=True``."""

    create_graph = False

    def forward(self, x):
        x = x.clone().requires_grad_()
        loss = self.loss(x)
        gradient = self.gradient(loss, x)
        self.zero_grad()
        return self.loss(x.detach()) + gradient.square().mean()

    def gradient(self, loss, x):
        loss.backward(create_graph=self.create_graph)
        return x.grad


class PenaltyAsked(Penalty):
    def gradient(self, loss, x):
        return torch.autograd.grad(loss, x, create_graph=self.create_graph)[0]


@pytest.mark.parametrize("model", [Penalty, PenaltyAsked])
def test_a_gradient_in_the_loss_has_to_have_a_history(model: type[Penalty]) -> None:
    net, x = model(), torch.randn(6, 4)
    report = trainify.audit(net, x)
    (cut,) = report.cuts
    assert "create_graph" in cut.message and cut.line == model.gradient.__code__.co_firstlineno + (
        2 if model is Penalty else 1
    )
    assert {"first.weight", "last.weight"} <= {*cut.parameters}
    net.create_graph = True
    report = trainify.audit(net, x)
    assert report.ok and "float64" in report.proof
