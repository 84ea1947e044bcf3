"""Checkpoints that compute something else when they compute again."""

from __future__ import annotations

import inspect
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainify.live.audit import Cause
from trainify.live.audit.run import audit


class Block(nn.Module):
    """A checkpoint around what a subclass computes."""

    preserve = True

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fc, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(4)
        self.weight = nn.Parameter(torch.rand(4) + 0.5)
        self.generator = torch.Generator()
        self.reentrant = True
        self.plain = False

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.plain:
            h = self.inner(h)
        else:
            h = checkpoint(
                self.inner, h, use_reentrant=self.reentrant, preserve_rng_state=self.preserve
            )
        out: Tensor = self.last(h)
        return out

    def inner(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def step(self, plain: bool) -> dict[str, Tensor]:
        """The gradients of a step, with or without the checkpoint, from the same generators."""
        self.plain = plain
        torch.manual_seed(1)
        random.seed(1)
        self.__dict__.pop("count", None)
        self.generator.manual_seed(1)
        names, parameters = zip(*self.named_parameters(), strict=True)
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
        for parameter in parameters:
            parameter.grad = None
        self(x).square().sum().backward()
        found = {n: p.grad for n, p in zip(names, parameters, strict=True) if p.grad is not None}
        for parameter in parameters:
            parameter.grad = None
        self.plain = False
        return found


class ByRandom(Block):
    def inner(self, x: Tensor) -> Tensor:
        h = self.fc(x) * random.random()  # <- other
        return torch.tanh(h) * self.weight


class LastByRandom(Block):
    def inner(self, x: Tensor) -> Tensor:
        return self.fc(x) * self.weight * random.random()  # <- other


class ByACounter(Block):
    count = 0

    def inner(self, x: Tensor) -> Tensor:
        self.count += 1
        h = self.fc(x) * self.count  # <- other
        return torch.tanh(h) * self.weight


class ByAnotherGenerator(Block):
    def inner(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        h = h * torch.rand(h.shape, generator=self.generator)  # <- other
        return torch.tanh(h) * self.weight


class WithoutTheGenerators(Block):
    preserve = False

    def inner(self, x: Tensor) -> Tensor:
        h = F.dropout(self.fc(x), 0.5)  # <- other
        return torch.tanh(h) * self.weight


class AnotherBranch(Block):
    def inner(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        return h * self.weight if random.random() < 0.5 else h * 2  # <- other


def line_of(cls: type) -> int:
    source, first = inspect.getsourcelines(cls)
    (line,) = [i for i, text in enumerate(source) if "# <- other" in text]
    return first + line


OTHERS = [ByRandom, ByACounter, ByAnotherGenerator, WithoutTheGenerators]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("cls", OTHERS)
def test_what_is_computed_again_otherwise_is_found(cls: Any, reentrant: bool) -> None:
    model = cls()
    model.reentrant = reentrant
    right, own = model.step(plain=True), model.step(plain=False)
    wrong = [n for n in right if not torch.allclose(own[n], right[n], rtol=1e-3)]
    assert {"first.weight", "fc.weight", "weight"} <= {*wrong}
    random.seed(1)
    report = audit(model, torch.randn(3, 4))
    assert [(cut.cause, cut.kind, cut.line) for cut in report.cuts] == [
        (Cause.BACKWARD, "wrong", line_of(cls))
    ], str(report)
    assert {*report.wrong} == {*wrong}
    assert not report.missing
    assert "computes this again" in report.cuts[0].message
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_reentrant_one_is_held_against_what_it_does_itself() -> None:
    """The other kind would keep the number that the forward has drawn last."""
    model = LastByRandom()
    random.seed(1)
    report = audit(model, torch.randn(3, 4))
    assert [cut.line for cut in report.cuts] == [line_of(LastByRandom)]
    assert {"first.weight", "fc.weight", "weight"} <= {*report.wrong}
    model.reentrant = False
    random.seed(1)
    report = audit(model, torch.randn(3, 4))
    right, own = model.step(plain=True), model.step(plain=False)
    wrong = {n for n in right if not torch.allclose(own[n], right[n], rtol=1e-3)}
    assert not wrong
    assert report.ok


def test_another_branch_of_a_reentrant_one_raises_nothing_and_is_found() -> None:
    model = AnotherBranch()
    random.seed(1)
    report = audit(model, torch.randn(3, 4))
    assert [cut.line for cut in report.cuts] == [line_of(AnotherBranch)]
    assert report.missing == ("weight",)
    assert "fc.weight" in report.wrong
    assert not report.error


def test_another_branch_that_raises_is_named() -> None:
    class Deeper(AnotherBranch):
        def inner(self, x: Tensor) -> Tensor:
            h = self.fc(x)
            if random.random() < 0.5:
                h = h * self.weight  # <- other
            return torch.tanh(h)

    model = Deeper()
    model.reentrant = False
    random.seed(1)
    report = audit(model, torch.randn(3, 4))
    assert "CheckpointError" in report.error
    assert [cut.line for cut in report.cuts] == [line_of(Deeper)]


def test_what_is_meant_can_be_allowed() -> None:
    model = ByRandom()
    random.seed(1)
    assert audit(model, torch.randn(3, 4), allow="ByRandom.inner").ok


class Dropped(Block):
    def inner(self, x: Tensor) -> Tensor:
        return F.dropout(self.norm(self.fc(x)), 0.5) * self.weight


class Measured(Block):
    """Keeps a statistic that nobody reads: it is another the second time, no gradient is."""

    def inner(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        self.mean = 0.9 * getattr(self, "mean", 1.0) + 0.1 * h.mean()
        self.shown = self.mean * 2
        return torch.tanh(h) * self.weight


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("cls", [Dropped, Measured])
def test_what_changes_no_gradient_is_let_be(cls: Any, reentrant: bool) -> None:
    model = cls()
    model.reentrant = reentrant
    model(torch.randn(3, 4))
    if cls is Measured:
        model.mean = model.mean.detach()
    report = audit(model, torch.randn(3, 4))
    assert report.ok, str(report)
    assert "float64" in report.proof


def test_hooks_after_a_gradient_are_not_run() -> None:
    """They may step an optimizer."""
    model, ran = ByRandom(), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(ran.append)
    random.seed(1)
    assert not audit(model, torch.randn(3, 4)).ok
    assert not ran
    model(torch.randn(3, 4)).sum().backward()
    assert ran
