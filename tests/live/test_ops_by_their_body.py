"""Custom ops without a formula whose body is PyTorch: live, backward computes that again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainify

D = 6


@torch.library.custom_op("tests_bodies::experts", mutates_args=())
def experts(x: Tensor, gates: Tensor, up: Tensor, down: Tensor, which: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(up.shape[0]):
        rows = (which == e).nonzero().flatten()
        out = out.index_add(0, rows, F.silu(x[rows] @ up[e]) @ down[e] * gates[rows, None])
    return out


@torch.library.custom_op("tests_bodies::halves", mutates_args=())
def halves(x: Tensor, *, scale: float = 2.0, swap: bool = False) -> tuple[Tensor, Tensor]:
    a, b = (x * scale).chunk(2, -1)
    return (b.clone(), a.tanh()) if swap else (a.clone(), b.tanh())


@torch.library.custom_op("tests_bodies::by_numpy", mutates_args=())
def by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(numpy.tanh(x.numpy()))


@torch.library.custom_op("tests_bodies::stopped", mutates_args=())
def stopped(x: Tensor) -> Tensor:
    return torch.tanh(x.detach())


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(D, 3)
        self.up, self.down = (nn.Parameter(torch.randn(3, D, D) / 3) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        gates, which = self.gate(x).softmax(-1).max(-1)
        return experts(x, gates, self.up, self.down, which)


class ByHand(Experts):
    def forward(self, x: Tensor) -> Tensor:
        gates, which = self.gate(x).softmax(-1).max(-1)
        return experts._init_fn(x, gates, self.up, self.down, which)


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        a, b = halves(self.fc(x), swap=True)
        return a * b


class ByNumpy(Halves):
    def forward(self, x: Tensor) -> Tensor:
        return by_numpy(self.fc(x))


class Stopped(Halves):
    def forward(self, x: Tensor) -> Tensor:
        return stopped(self.fc(x))


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    model(x).square().sum().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("strategy", ["auto", "attach", "flag", "replace"])
def test_the_body_gives_the_gradient(strategy: str) -> None:
    x, model = torch.randn(7, D), Experts()
    served = model(x).detach()
    trainify.trainify(model, x, strategy=strategy)
    assert torch.equal(model(x), served)
    found = gradients(model, x)
    trainify.restore(model)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        gradients(model, x)
    by_hand = ByHand()
    by_hand.load_state_dict(model.state_dict())
    expected = gradients(by_hand, x)
    assert found.keys() == expected.keys() == {n for n, _ in model.named_parameters()}
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)


def test_several_results_and_keywords() -> None:
    x, model = torch.randn(4, D), Halves()
    trainify.trainify(model, x)
    found = gradients(model, x)
    a, b = (2.0 * model.fc(x)).chunk(2, -1)
    model.zero_grad()
    (b * a.tanh()).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)
    trainify.restore(model)


def test_without_inputs() -> None:
    x, model = torch.randn(7, D), Experts()
    trainify.trainify(model)
    assert set(gradients(model, x)) == {n for n, _ in model.named_parameters()}
    trainify.restore(model)


@pytest.mark.parametrize("cls", [ByNumpy, Stopped])
def test_a_body_that_autograd_cannot_follow(cls: type[nn.Module]) -> None:
    with pytest.raises(trainify.NotTrainable, match="tests_bodies::"):
        trainify.trainify(cls(), torch.randn(4, D))


@torch.library.custom_op("tests_bodies::several", mutates_args=())
def several(x: Tensor, w: Tensor) -> list[Tensor]:
    return [F.silu(x) * w, (x * w).clone(), (x > 0).clone()]


@torch.library.custom_op("tests_bodies::weighted", mutates_args=())
def weighted(xs: list[Tensor], scales: list[float]) -> Tensor:
    return torch.stack([x * s for x, s in zip(xs, scales, strict=True)]).sum(0)


def test_a_body_that_gives_a_list() -> None:
    x, w = (torch.randn(4, D, dtype=torch.double, requires_grad=True) for _ in range(2))
    a, b, _ = several._init_fn(x, w)
    right = torch.autograd.grad((a.square() + b).sum(), (x, w))
    with trainify.attach("tests_bodies::several"):
        found = several(x, w)
        assert type(found) is list and found[2].dtype == torch.bool
        grads = torch.autograd.grad((found[0].square() + found[1]).sum(), (x, w))
    torch.testing.assert_close(grads, right)


def test_a_list_that_is_trained_is_refused() -> None:
    """By itself torch raises; it must not become a constant."""
    x = torch.randn(4, D)
    with trainify.attach("tests_bodies::weighted"):
        assert not weighted([x, x], [1.0, 2.0]).requires_grad
        with pytest.raises(NotImplementedError, match="xs is a list of tensors that are trained"):
            weighted([x.requires_grad_(), x], [1.0, 2.0])
