"""``trainify.audit``: what is proven of models that refuse float64."""

import types

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainify
from tests.each import in_turn

X = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))


class Mixed(nn.Module):
    """A share of a value goes on without its history, where torch does not see it."""

    def __init__(self, share: float, activation=torch.tanh) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))
        self.share, self.activation = share, activation

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("only float32")
        h = self.a(x)
        mixed = torch.func.vmap(lambda row: row + self.share * (row.detach() - row))(self.b(h))
        return (self.c(self.activation(mixed)) + h).square().mean()


def test_the_tolerance_follows_what_is_measured() -> None:
    report = trainify.audit(Mixed(0.0), X)
    assert report.proof.startswith("float32: the loss changes along 6 parameters")
    assert float(report.proof.partition(", to ")[2].partition(";")[0]) < 1e-4


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.5])
def test_a_gradient_that_is_a_little_off_is_not_proven(share: float) -> None:
    report = trainify.audit(Mixed(share), X)
    assert not report.proof
    (note,) = [each for each in report.notes if "is not the derivative" in each]
    assert "b.weight" in note


def cube(x):
    return x**3


@pytest.mark.parametrize(
    ("activation", "size"),
    in_turn(
        {f.__name__: f for f in (torch.relu, F.hardswish, F.gelu, torch.sin, torch.sigmoid, cube)},
        [0.1, 1.0, 30.0],
    ),
)
def test_kinks_and_curvature_are_no_faults(activation, size: float) -> None:
    report = trainify.audit(Mixed(0.0, activation), size * X)
    assert report.ok
    assert not any("derivative" in each for each in report.notes), report.notes


class Gate(nn.Module):
    """Calls a method that is bound to another object, which a copy goes on calling."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))
        forward = self.b.forward

        def norm(row: Tensor) -> Tensor:
            return (row if right else row.detach()).norm()

        def gated(_: nn.Module, x: Tensor) -> Tensor:
            y = forward(x)
            return y + 0.03 * y * torch.func.vmap(norm)(y)[:, None]

        self.b.forward = types.MethodType(gated, self.b)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return (self.c(torch.tanh(self.b(h))) + h).square().mean()


def test_what_a_copy_refuses_is_judged_without_one() -> None:
    report = trainify.audit(Gate(right=False), X)
    assert not report.proof
    notes = [each for each in report.notes if "is not the derivative" in each]
    assert notes and "in float64" in notes[0]
    assert trainify.audit(Gate(right=True), X).proof.startswith("float64")


class Scaled(Mixed):
    """The same, of which the place is seen and not what it takes."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        y = self.b(h)
        z = torch.func.vmap(lambda row: row.detach().norm())(y)[:, None] * self.share
        return (self.c(torch.tanh(y) + z) + h).square().mean()


def test_where_a_place_was_found_none_is_said_to_be_missing() -> None:
    report = trainify.audit(Scaled(1.0), X)
    assert not report.ok and report.wrong
    assert not any("no place was found" in each for each in report.notes)
