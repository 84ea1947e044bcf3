"""Weights that a forward edits: after they were used, backward computes with others."""

from __future__ import annotations

import copy
import inspect
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import trainify
from trainify.live.audit import Cause


class Model(nn.Module):
    def __init__(self, d: int = 6) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        y = self.use(torch.tanh(self.a(x)))
        self.edit()
        return y

    def use(self, h: Tensor) -> Tensor:
        return self.b(h)

    def edit(self) -> None:
        """Nothing."""


class ByData(Model):
    def edit(self) -> None:
        self.b.weight.data.clamp_(-0.1, 0.1)  # <- edit


class ByAnotherTensor(Model):
    """The weight itself is saved, and gets other memory."""

    def use(self, h: Tensor) -> Tensor:
        return h @ self.b.weight

    def edit(self) -> None:
        self.b.weight.data = self.b.weight.data / self.b.weight.data.norm()  # <- edit


class ByNumPy(Model):
    def edit(self) -> None:
        array = self.b.weight.detach().numpy()
        array *= 0.5  # <- edit


class OfAGate(Model):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.tensor(1.5))

    def use(self, h: Tensor) -> Tensor:
        return self.b(h * self.gate)

    def edit(self) -> None:
        self.gate.data.clamp_(0, 1)  # <- edit


class OfAView(Model):
    def use(self, h: Tensor) -> Tensor:
        return F.linear(h, self.b.weight[:4])

    def edit(self) -> None:
        self.b.weight.data.mul_(0.9)  # <- edit


class BetweenTwoUses(Model):
    def use(self, h: Tensor) -> Tensor:
        h = torch.tanh(self.b(h))
        self.b.weight.data.mul_(0.9)  # <- edit
        return self.b(h)


class AverageOfItself(Model):
    """As an average that flows back into the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(6, 6))

    def edit(self) -> None:
        self.average.lerp_(self.b.weight.detach(), 0.5)
        self.b.weight.data.copy_(self.average)  # <- edit


WRONG = [ByData, ByAnotherTensor, ByNumPy, OfAGate, OfAView, BetweenTwoUses, AverageOfItself]


def line_of(cls: type) -> int:
    source, first = inspect.getsourcelines(cls)
    (line,) = [i for i, text in enumerate(source) if "# <- edit" in text]
    return first + line


def gradients(model: nn.Module, x: Tensor, saves_copies: bool) -> dict[str, Tensor]:
    """Of a copy of the model; right where autograd saves copies."""
    model = copy.deepcopy(model)
    copies = torch.autograd.graph.saved_tensors_hooks(
        lambda saved: saved.clone(), lambda saved: saved
    )
    with copies if saves_copies else nullcontext():
        loss = model(x).square().mean()
    loss.backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("cls", WRONG)
def test_edits_after_use_are_told(cls: Any) -> None:
    model, x = cls(), torch.randn(5, 6)
    got, right = gradients(model, x, False), gradients(model, x, True)
    report = trainify.audit(model, x, loss=lambda y: y.square().mean())
    assert {*report.wrong} == {n for n in got if not torch.allclose(got[n], right[n], rtol=1e-4)}
    assert report.wrong
    assert [(cut.cause, cut.kind, cut.line) for cut in report.cuts] == [
        (Cause.SAVED, "wrong", line_of(cls))
    ], str(report)
    with pytest.raises(trainify.NotTrainable, match=rf":{line_of(cls)}: .*before it is used"):
        trainify.trainify(model, x)


class WithoutGradients(Model):
    """Autograd counts this one, and raises."""

    def edit(self) -> None:
        with torch.no_grad():
            self.b.weight.mul_(0.5)  # <- edit


class OfADetached(Model):
    def edit(self) -> None:
        self.b.weight.detach().mul_(0.5)  # <- edit


@pytest.mark.parametrize("cls", [WithoutGradients, OfADetached])
def test_where_backward_raises_the_edit_is_named(cls: Any) -> None:
    model, x = cls(), torch.randn(5, 6)
    with pytest.raises(RuntimeError, match="inplace"):
        model(x).sum().backward()
    model.zero_grad()
    report = trainify.audit(model, x)
    assert [(cut.cause, cut.line) for cut in report.cuts] == [(Cause.SAVED, line_of(cls))]


class BeforeUse(Model):
    def use(self, h: Tensor) -> Tensor:
        self.b.weight.data.clamp_(-0.1, 0.1)
        return super().use(h)


class OfWhatNothingIsBehind(Model):
    """The first layer's weight is not needed for the gradient of the second."""

    def edit(self) -> None:
        self.a.weight.data.clamp_(-0.1, 0.1)


class NothingChanges(Model):
    def edit(self) -> None:
        self.b.weight.data.clamp_(-10, 10)


class OfABias(Model):
    def edit(self) -> None:
        self.b.bias.data.clamp_(-0.1, 0.1)


class NewMemory(Model):
    """Saved is a view of the weight, which keeps the memory that it had."""

    def edit(self) -> None:
        self.b.weight.data = self.b.weight.data * 0.5


class AverageOfAnother(Model):
    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(6, 6).requires_grad_(False)

    def edit(self) -> None:
        with torch.no_grad():
            for mine, theirs in zip(self.teacher.parameters(), self.b.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)


class Statistics(Model):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.b = nn.utils.spectral_norm(nn.Linear(6, 6))

    def use(self, h: Tensor) -> Tensor:
        return self.norm(self.b(h))


class Renormalized(Model):
    """max_norm edits the table before it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 6, max_norm=0.5)

    def use(self, h: Tensor) -> Tensor:
        return self.b(h * self.table(torch.arange(5)))


RIGHT = [Model, BeforeUse, OfWhatNothingIsBehind, NothingChanges, OfABias, NewMemory,
         AverageOfAnother, Statistics, Renormalized]  # fmt: skip


@pytest.mark.parametrize("cls", RIGHT)
def test_edits_that_bend_nothing_are_let_be(cls: Any) -> None:
    model, x = cls(), torch.randn(5, 6)
    torch.testing.assert_close(gradients(model, x, False), gradients(model, x, True))
    assert trainify.audit(model, x).ok


class Checkpointed(ByData):
    """Computed again, with the weight that was edited."""

    def use(self, h: Tensor) -> Tensor:
        return checkpoint(lambda t: torch.tanh(self.b(t)), h, use_reentrant=False)


def test_edits_behind_a_checkpoint_are_told() -> None:
    report = trainify.audit(Checkpointed(), torch.randn(5, 6))
    assert {"a.weight", "b.weight"} <= {*report.wrong}
