"""Gradients that are infinite or not a number, where the loss is finite."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import trainify
from trainify.live.audit import Cause
from trainify.live.audit.run import audit

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self.first(x)))

    def between(self, h: Tensor) -> Tensor:
        raise NotImplementedError


class LeftOut(TwoLayers):
    def between(self, h: Tensor) -> Tensor:
        root = h.sqrt()  # <- endless
        return torch.where(h > 0, root, torch.zeros(()))


class LengthOfNothing(TwoLayers):
    def between(self, h: Tensor) -> Tensor:
        rest = h - h
        length = rest.square().sum(-1, keepdim=True).sqrt()  # <- endless
        return h + length


class InACheckpoint(LeftOut):
    def between(self, h: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.rooted, h, use_reentrant=True)
        return out

    def rooted(self, h: Tensor) -> Tensor:
        return torch.where(h > 0, h.sqrt(), torch.zeros(()))  # <- endless


class Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, zero: Tensor) -> Tensor:
        ctx.save_for_backward(zero)
        return x / 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (zero,) = ctx.saved_tensors
        return gradient / 2 + zero / zero, None


class OfAFunction(TwoLayers):
    def between(self, h: Tensor) -> Tensor:
        return Halves.apply(h, torch.zeros(()))  # <- endless


def line_of(cls: type) -> int:
    source, first = inspect.getsourcelines(cls)
    (line,) = [i for i, text in enumerate(source) if "# <- endless" in text]
    return first + line


@pytest.mark.parametrize("cls", [LeftOut, LengthOfNothing, InACheckpoint, OfAFunction])
def test_the_call_is_named(cls: Any) -> None:
    model = cls()
    model(X).sum().backward()
    assert not model.first.weight.grad.isfinite().all()
    model.zero_grad()
    report = audit(model, X)
    assert [(cut.cause, cut.kind, cut.line) for cut in report.cuts] == [
        (Cause.BACKWARD, "wrong", line_of(cls))
    ], str(report)
    assert report.wrong == ("first.weight", "first.bias")
    assert not report.missing


def test_it_is_not_trainable() -> None:
    with pytest.raises(trainify.NotTrainable, match=r"derivative of torch\.Tensor\.sqrt"):
        trainify.trainify(LeftOut(), X)


class Replaced(TwoLayers):
    def between(self, h: Tensor) -> Tensor:
        positive = h > 0
        return torch.where(positive, torch.where(positive, h, 1.0).sqrt(), torch.zeros(()))


class Cleaned(TwoLayers):
    """What arrives is made a number by a hook."""

    def between(self, h: Tensor) -> Tensor:
        h = h * 1
        h.register_hook(torch.nan_to_num)
        return torch.where(h > 0, h.sqrt(), torch.zeros(()))


@pytest.mark.parametrize("cls", [Replaced, Cleaned])
def test_gradients_that_are_numbers_are_right(cls: Any) -> None:
    report = audit(cls(), X)
    assert report.ok, str(report)
    assert not report.wrong


def test_sparse_gradients() -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(8, 4, sparse=True)

        def forward(self, ids: Tensor) -> Tensor:
            h: Tensor = self.rows(ids)
            return torch.where(h > 0, h.sqrt(), torch.zeros(()))

    ids = torch.tensor([1, 2, 1])
    assert audit(Embedded(), ids).wrong == ("rows.weight",)


def test_a_range_that_is_too_short_is_a_note() -> None:
    """Training scales the loss, then."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).half()
    report = audit(model, X.half(), loss=lambda out: out.float().sum() * 1e6)
    assert report.ok, str(report)
    assert any("GradScaler" in note for note in report.notes)
    report = audit(LeftOut().half(), X.half())
    assert not report.ok
