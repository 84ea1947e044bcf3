"""``trainify.audit``: several stops on one line, or by one function, each for itself."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainify

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


def stopped(x: Tensor) -> Tensor:
    return x.detach()


def clipped(log: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    ratio = (log - old).exp()
    return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.value = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        log, value = self.a(x).log_softmax(-1)[:, 0], self.value(x).mean(-1)
        return self.loss(log, value, x.sum(-1)) + F.mse_loss(value, x.sum(-1))


class OnALine(Policy):
    def loss(self, log, value, reward):
        advantage, old = (reward - value).detach(), log.detach()
        return clipped(log, old, advantage)


class InACall(Policy):
    def loss(self, log, value, reward):
        return clipped(log, log.detach(), (reward - value).detach())


class InAList(Policy):
    def loss(self, log, value, reward):
        old, advantage = [each.detach() for each in (log, reward - value)]
        return clipped(log, old, advantage)


class InAScope(Policy):
    def loss(self, log, value, reward):
        with torch.no_grad():
            old, advantage = log.clone(), reward - value
        return clipped(log, old, advantage)


class ByAFunction(Policy):
    def loss(self, log, value, reward):
        return clipped(log, stopped(log), stopped(reward - value))


class Codes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.codes, self.c = nn.Linear(8, 8), nn.Embedding(5, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        q = self.codes(torch.cdist(h, self.codes.weight).argmin(-1))
        z, loss = self.passed(h, q)
        return self.c(z).square().mean() + loss


class CodesOnALine(Codes):
    def passed(self, h, q):
        return h + (q - h).detach(), F.mse_loss(q, h.detach()) + F.mse_loss(q.detach(), h)


class CodesByAFunction(Codes):
    def passed(self, h, q):
        loss = F.mse_loss(q, stopped(h)) + F.mse_loss(stopped(q), h)
        return h + stopped(q - h), loss


@pytest.mark.parametrize(
    "cls",
    [OnALine, InACall, InAList, InAScope, ByAFunction, CodesOnALine, CodesByAFunction],
)
def test_each_is_judged_for_itself(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert report.ok, str(report)


class WithAMistake(Codes):
    """What goes on has lost the gradient of the encoder: it is not taken away again."""

    def passed(self, h, q):
        z, loss = stopped(q + h), F.mse_loss(q, stopped(h)) + F.mse_loss(stopped(q), h)
        return z, loss


class TwiceTheValue(Codes):
    def passed(self, h, q):
        return h + stopped(h - q), F.mse_loss(q, stopped(h)) + F.mse_loss(stopped(q), h)


class AfterIt(Codes):
    """That the sum also holds what is taken away excuses nothing else that is added to it."""

    def passed(self, h, q):
        z = h + stopped(q - h)
        return z + stopped(h.tanh()), F.mse_loss(q, stopped(h)) + F.mse_loss(stopped(q), h)


class BesideIt(Codes):
    def passed(self, h, q):
        z = (h - stopped(h)) + stopped(h.tanh())
        return z, F.mse_loss(q, stopped(h)) + F.mse_loss(stopped(q), h)


class InARatio(Codes):
    def passed(self, h, q):
        z = (h + stopped(h.exp())) / stopped(h + h.exp())
        return z, F.mse_loss(q, stopped(h)) + F.mse_loss(stopped(q), h)


class OnOneLine(Codes):
    def passed(self, h, q):
        return (h - h.detach()) + h.tanh().detach(), F.mse_loss(q, h * 0)


class OverOneLine(Codes):
    def passed(self, h, q):
        return (h + h.exp().detach()) / (h + h.exp()).detach(), F.mse_loss(q, h * 0)


@pytest.mark.parametrize("cls", [OnOneLine, OverOneLine])
def test_what_is_taken_away_beside_it_excuses_no_stop(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert {"a.weight", "a.bias"} <= {*report.wrong}, str(report)


@pytest.mark.parametrize("cls", [WithAMistake, TwiceTheValue, AfterIt, BesideIt, InARatio])
def test_a_mistake_by_the_same_function_is_told(cls: type[nn.Module]) -> None:
    report = trainify.audit(cls(), X)
    assert not report.ok
    assert {"a.weight", "a.bias"} <= {*report.wrong}
    assert all(cut.function == "stopped" for cut in report.cuts)


class TwoHeads(nn.Module):
    """A call without a bias and one with one, under one scope and on one line."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.head, self.value = nn.Linear(8, 5, bias=False), nn.Linear(8, 1)

    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        return self.head(x).square().mean() + self.value(x).mean()


class NamedOtherwise(TwoHeads):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        return (
            F.linear(x, self.head.weight).mean()
            + F.linear(x, weight=self.value.weight, bias=self.value.bias).square().mean()
        )


@pytest.mark.parametrize("model", [TwoHeads, NamedOtherwise])
def test_each_of_several_calls_has_its_own_parameters(model: type[TwoHeads]) -> None:
    report = trainify.audit(model(), X)
    assert not report.error and len(report.missing) == 5
    assert {name for cut in report.cuts for name in cut.parameters} == {*report.missing}
