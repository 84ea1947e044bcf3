"""Hooks on parameters: what they do to a gradient is said, and nothing else is proven of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainify.live.audit.run import audit

X = torch.randn(3, 4)


def _negated(gradient: Tensor) -> Tensor:
    return -gradient


class Masked:
    def __call__(self, gradient: Tensor) -> Tensor:
        mask = torch.ones_like(gradient)
        mask[0] = 0
        return gradient * mask


def _scaled(gradient: Tensor, by: float) -> None:
    gradient.mul_(by)


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


@pytest.mark.parametrize(
    "hook",
    [lambda gradient: gradient * 0, _negated, Masked(), functools.partial(_scaled, by=2.0)],
)
def test_what_makes_a_gradient_another_is_named_and_not_proven(
    hook: Callable[[Tensor], Any],
) -> None:
    model = _model()
    model[0].weight.register_hook(hook)
    own = _gradients(model)
    report = audit(model, X)
    assert report.ok
    assert report.proof.startswith("float64: the loss changes along 3 parameters")
    (note,) = report.notes
    assert note.startswith("the gradient of 0.weight is not the derivative of the loss, as it ")
    assert f"({__file__}:" in note
    assert all(map(torch.equal, _gradients(model), own))  # the hook is there as before


@pytest.mark.parametrize("hook", [lambda gradient: None, lambda gradient: gradient.clamp(-9, 9)])
def test_what_changes_nothing_is_not_mentioned(hook: Callable[[Tensor], Any]) -> None:
    model = _model()
    model[0].weight.register_hook(hook)
    report = audit(model, X)
    assert report.ok and not report.notes
    assert report.proof.startswith("float64: the loss changes along 4 parameters")


def test_a_wrong_gradient_beside_it_is_still_found() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return 3 * gradient * ctx.saved_tensors[0]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Any:
            return self.last(Square.apply(self.first(x)))

    model = Model()
    model.last.weight.register_hook(_negated)
    report = audit(model, X)
    assert set(report.wrong) == {"first.weight", "first.bias"}


def test_nothing_is_left_to_prove() -> None:
    model = nn.Linear(4, 2)
    for parameter in model.parameters():
        parameter.register_hook(_negated)
    report = audit(model, X)
    assert report.ok and not report.proof
    (note,) = report.notes
    assert note.startswith("the gradient of weight, bias is not the derivative")


def test_hooks_after_a_gradient_has_arrived_are_told_of() -> None:
    ran = []

    def zero(parameter: Tensor) -> None:
        ran.append(parameter)

    model = _model()
    model[0].weight.register_post_accumulate_grad_hook(zero)
    report = audit(model, X)
    assert report.ok and not ran
    (note,) = report.notes
    assert note.startswith("what hooks make of the gradient of 0.weight once it has arrived (")
    assert __file__ in note


def _gradients(model: nn.Module) -> tuple[Tensor, ...]:
    return torch.autograd.grad(model(X).sum(), list(model.parameters()))


def _of_nothing(module: nn.Module, given: Any, arriving: Any) -> Any:
    return (given[0] * 0,)


def _before(module: nn.Module, arriving: Any) -> Any:
    return (arriving[0] * 2,)


def _log(module: nn.Module, given: Any, arriving: Any) -> None:
    given[0].norm()


@pytest.mark.parametrize("pre", [False, True])
def test_hooks_on_modules_are_named(pre: bool) -> None:
    model, hook = _model(), _before if pre else _of_nothing
    if pre:
        model[2].register_full_backward_pre_hook(hook)
    else:
        model[2].register_full_backward_hook(hook)
    report = audit(model, X)
    assert report.ok and report.notes, str(report)
    code = hook.__code__
    assert all(f"{code.co_filename}:{code.co_firstlineno}" in each for each in report.notes)
    assert [*(model[2]._backward_pre_hooks if pre else model[2]._backward_hooks).values()] == [hook]


def test_hooks_on_modules_that_look_on_are_not_mentioned() -> None:
    model = _model()
    model[2].register_full_backward_hook(_log)
    report = audit(model, X)
    assert report.ok and report.proof.startswith("float64") and not report.notes
