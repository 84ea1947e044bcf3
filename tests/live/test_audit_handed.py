"""``trainify.audit``: backwards that write into the gradient that they are given."""

import pytest
import torch
from torch import Tensor, nn

import trainify


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.mul_(2 * x)


class Unseen(Square):
    """As a kernel writes: no version is another one then."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        array = grad.numpy()
        array *= 2 * x.numpy()
        return grad


@torch.library.custom_op("trainify_tests::handed_square", mutates_args=())
def square(x: Tensor) -> Tensor:
    return x * x


square.register_autograd(
    lambda ctx, grad: grad.mul_(2 * ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class Block(nn.Module):
    def __init__(self, function, residual: bool):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.function, self.residual = function, residual

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        y = self.function(self.second(h))
        return (h + y if self.residual else y).sin().sum()


@pytest.mark.parametrize("function", [Square.apply, Unseen.apply, square])
@pytest.mark.parametrize("proof", [True, False])
def test_a_gradient_that_others_are_given_as_well(function, proof: bool) -> None:
    torch.manual_seed(0)
    report = trainify.audit(Block(function, residual=True), torch.randn(5, 6), proof=proof)
    (cut,) = report.cuts
    assert cut.cause.value == "backward" and "y = self.function(self.second(h))" in _line(cut)
    assert "writes into the gradient that it is given" in cut.message
    assert {*report.wrong} == {*cut.parameters} == {"first.weight", "first.bias"}


@pytest.mark.parametrize("function", [Square.apply, Unseen.apply, square])
def test_a_gradient_that_nobody_else_is_given(function) -> None:
    torch.manual_seed(0)
    assert trainify.audit(Block(function, residual=False), torch.randn(5, 6)).ok


def test_it_may_be_allowed() -> None:
    torch.manual_seed(0)
    model = Block(Square.apply, residual=True)
    assert trainify.audit(model, torch.randn(5, 6), allow=["Block.forward"], proof=False).ok


def _line(cut) -> str:
    with open(__file__) as file:
        return file.readlines()[cut.line - 1]
