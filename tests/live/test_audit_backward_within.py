"""Functions whose backward computes again, and goes backward through that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainify.live.audit.run import audit

X = torch.randn(3, 8)


class Again(torch.autograd.Function):
    """``x + f(x)``, of which nothing but ``x`` is kept."""

    @classmethod
    def run(cls, x: Tensor, f: nn.Module) -> Any:
        return cls.apply(x, f)

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: nn.Module) -> Tensor:
        ctx.f = f
        ctx.save_for_backward(x)
        with torch.no_grad():
            out: Tensor = x + f(x)
            return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = x + ctx.f(x)
        torch.autograd.backward(y, gradient)
        return x.grad, None


class Forgetting(Again):
    """The parameters of ``f`` get nothing: only the gradient of ``x`` is asked for."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = x + ctx.f(x)
        return (*torch.autograd.grad(y, x, gradient), None)


class Doubling(Again):
    """The parameters of ``f`` get twice what they should."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = x + ctx.f(x)
        torch.autograd.backward(y, gradient, inputs=[x], retain_graph=True)
        torch.autograd.backward(y, 2 * gradient, inputs=list(ctx.f.parameters()))
        return x.grad, None


class Model(nn.Module):
    def __init__(self, function: type[Again]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.last(self.function.run(self.first(x), self.inner))


@pytest.mark.parametrize("held", [False, True])
def test_what_it_leaves_in_grad_is_a_gradient(held: bool) -> None:
    model = Model(Again)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if held else None
    report = audit(model, X)
    assert report.ok and not report.notes
    assert report.proof.startswith("float64: the loss changes along 6 parameters")
    for parameter in model.parameters():
        assert parameter.grad is None if not held else bool((parameter.grad == 1).all())


def test_what_it_does_not_leave_is_missing() -> None:
    report = audit(Model(Forgetting), X)
    assert report.missing == ("inner.0.weight", "inner.0.bias")


def test_what_it_leaves_is_held_against_the_loss() -> None:
    report = audit(Model(Doubling), X)
    assert not report.proof
    (note,) = report.notes
    assert note.startswith("the gradient of inner.0.weight, inner.0.bias is not the derivative")


def test_a_hook_after_it_is_not_run() -> None:
    ran = []
    model = Model(Again)
    model.inner[0].weight.register_post_accumulate_grad_hook(ran.append)
    audit(model, X)
    assert not ran
