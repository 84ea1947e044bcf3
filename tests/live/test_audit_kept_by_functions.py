"""What an ``autograd.Function`` keeps as an attribute, and something writes into."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainify.live.audit import Cause
from trainify.live.audit.run import audit

X = torch.randn(3, 4)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return 2 * gradient * ctx.x


class SquareOfAList(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = [x]
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return 2 * gradient * ctx.kept[0]


class SquareOfACopy(torch.autograd.Function):
    """Keeps what it was given as well, and does not look at it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x, ctx.copy = x, x.clone()
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return 2 * gradient * ctx.copy


class Model(nn.Module):
    square: Any = Square

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        y = self.square.apply(h)
        self.overwrite(h)
        return self.last(y)

    def overwrite(self, h: Tensor) -> None:
        """Nothing."""


class WithoutGradients(Model):
    def overwrite(self, h: Tensor) -> None:
        with torch.no_grad():
            h.mul_(0.5)  # <- write


class OfAList(Model):
    square = SquareOfAList

    def overwrite(self, h: Tensor) -> None:
        with torch.no_grad():
            h.mul_(0.5)  # <- write


class WithGradients(Model):
    def overwrite(self, h: Tensor) -> None:
        h.mul_(0.5)  # <- write


class ByData(Model):
    def overwrite(self, h: Tensor) -> None:
        h.data.mul_(0.5)  # <- write


class ByNumPy(Model):
    def overwrite(self, h: Tensor) -> None:
        array = h.detach().numpy()
        array *= 0.5  # <- write


def line_of(cls: type) -> int:
    source, first = inspect.getsourcelines(cls)
    (line,) = [i for i, text in enumerate(source) if "# <- write" in text]
    return first + line


@pytest.mark.parametrize("cls", [WithoutGradients, OfAList, WithGradients, ByData, ByNumPy])
def test_the_write_is_named(cls: Any) -> None:
    report = audit(cls(), X)
    assert [(cut.cause, cut.kind, cut.line) for cut in report.cuts] == [
        (Cause.SAVED, "wrong", line_of(cls))
    ], str(report)
    assert {*report.wrong} == {"first.weight", "first.bias"}


class Unused(WithoutGradients):
    square = SquareOfACopy


@pytest.mark.parametrize("cls", [Model, Unused])
def test_what_backward_does_not_need_is_let_be(cls: Any) -> None:
    report = audit(cls(), X)
    assert report.ok, str(report)
    assert "float64" in report.proof
