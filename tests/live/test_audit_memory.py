"""What an audit holds at once, against a step of the same model."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from benchmarks.models import peak_bytes
from tests.each import some
from trainify import audit


def _squares(out: Tensor) -> Tensor:
    return out.square().mean()


def _linears(width: int) -> nn.Sequential:
    return nn.Sequential(*[each for _ in range(8) for each in (nn.Linear(width, width), nn.Tanh())])


FEW = (1, 1.1, 1.8)  # gradients are what a step takes; the rest, a layer in float64
MANY = (1024, 1.05, 1.65)  # what autograd saves is
CHECKPOINT = torch.utils.checkpoint.checkpoint


@pytest.mark.parametrize(
    "rows, structural, proven, work",
    some(
        [(*MANY, None), (*FEW, CHECKPOINT)],
        [(*rows, work) for work in (None, CHECKPOINT) for rows in (FEW, MANY)],
    ),
)
def test_memory_is_that_of_one_step(
    rows: int, structural: float, proven: float, work: Callable[..., Tensor] | None
) -> None:
    """That is of a forward and a backward; an optimizer's moments would come on top."""
    model, x = _linears(256), torch.randn(rows, 256)
    if work is not None:
        for layer in model[::2]:
            forward = partial(work, layer.forward, use_reentrant=False)
            layer.forward = forward
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def step() -> None:
        _squares(model(x)).backward()
        model.zero_grad()

    for _ in range(2):  # what is made once is there after the first
        one = peak_bytes(step)
    for proof, most in ((False, structural), (True, proven)):
        look = partial(audit, model, x, loss=_squares, proof=proof)
        assert look().ok
        assert peak_bytes(look) < most * one
    assert all(map(torch.equal, before, model.parameters()))


class _Doubled(nn.Module):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx, gradient: Tensor) -> Tensor:
            return gradient * 2

    def forward(self, x: Tensor) -> Tensor:
        return self.Function.apply(x)


def test_a_backward_of_the_models_own_costs_a_copy() -> None:
    """What it may write is to be put back."""
    layers = [each for _ in range(8) for each in (nn.Linear(256, 256), _Doubled())]
    model, x = nn.Sequential(*layers), torch.randn(1, 256)

    def step() -> None:
        _squares(model(x)).backward()
        model.zero_grad()

    for _ in range(2):
        one = peak_bytes(step)
    look = partial(audit, model, x, loss=_squares)
    assert look().proof.startswith("float64")
    assert peak_bytes(look) < 3 * one


def test_gradients_are_let_go_where_they_are_wrong() -> None:
    """One graph at a time, also while a cut is looked for."""

    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = _linears(256), _linears(256)

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(self.inner(x).detach() + x)

    model, x = Cut(), torch.randn(1024, 256)
    look = partial(audit, model, x, loss=_squares)
    assert not look().ok
    intact = nn.Sequential(*model.inner, *model.outer)
    step = partial(lambda: torch.autograd.grad(_squares(intact(x)), list(intact.parameters())))
    step()
    assert peak_bytes(look) < 1.2 * peak_bytes(step)


class _Writing(nn.Module):
    """A forward, a backward or a hook that writes into a parameter, out of torch's sight."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.where = where

    def write(self) -> None:
        self.inner.weight.detach().numpy()[...] += 1.0

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x)
        if self.where == "forward":
            self.write()
        if self.where == "hook":
            out.register_hook(lambda gradient: self.write())
        if self.where == "node":
            out.grad_fn.register_hook(lambda *gradients: self.write())
        if self.where == "function":
            out = _Write.apply(out, self)
        if self.where == "raises":
            self.write()
            raise RuntimeError("in the middle")
        return out


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, module: _Writing) -> Tensor:
        ctx.module = module
        return x * 2

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.module.write()
        return gradient * 2, None


@pytest.mark.parametrize("where", ["", "forward", "hook", "node", "function", "raises", "tensor"])
def test_parameters_are_left_to_the_bit(where: str) -> None:
    model = _Writing(where)
    with torch.no_grad():
        model.inner.weight[0, :2] = torch.tensor([0.0, -0.0])
    if where == "tensor":
        model.inner.weight.register_hook(lambda gradient: model.write())
    before = model.inner.weight.detach().clone()
    try:
        audit(model, torch.randn(2, 8))
    except RuntimeError:
        assert where == "raises"
    after = model.inner.weight.detach()
    assert torch.equal(before.view(torch.int32), after.view(torch.int32))


def test_what_others_keep_from_the_collector_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # of imports_stay_frozen
    model, x = nn.Linear(4, 4), torch.randn(1, 4)
    gc.freeze()
    assert audit(model, x).ok
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
    try:
        assert audit(model, x).ok
        assert gc.get_freeze_count() == 0
    finally:
        gc.freeze()  # as tests/conftest.py has it
