"""One model, cut in a way that each route can mend, and what its gradients should be."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from live_package import package
from torch import nn

import trainify
from trainify.live.apply import apply
from trainify.live.swap import Plan

H = 8
ROUTES = ("dispatcher", "symbol", "source")

KERNELS = """
from trainify_fixture_kernels import rmsnorm

def norm(x, weight, eps):
    out = torch.empty_like(x)
    rmsnorm(out, x, weight, eps, False)
    return out
"""
MODEL = """
from torch.utils.checkpoint import checkpoint
from . import kernels

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.down = nn.Linear(8, 8)

    def forward(self, x):
        return self.down(self.norm(self.up(x)))

class Dispatcher(Block):
    def norm(self, x):
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, self.weight, 1e-6)
        return out

class Symbol(Block):
    def norm(self, x):
        return kernels.norm(x, self.weight, 1e-6)

class Source(Block):
    def forward(self, x):
        h = self.up(x)
        out = torch.empty_like(h)
        torch.ops._C.rms_norm(out, h, self.weight.data, 1e-6)
        return self.down(out)

class Plain(Block):
    def norm(self, x):
        return nn.functional.rms_norm(x, (8,), self.weight, 1e-6)

class Model(nn.Module):
    def __init__(self, block, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(block() for _ in range(layers))
        self.recomputes = False

    def forward(self, x):
        for layer in self.layers:
            if self.recomputes:
                x = x + checkpoint(layer, x, use_reentrant=False)
            else:
                x = x + layer(x)
        return x
"""


def modules(root: Path) -> dict[str, ModuleType]:
    found = package(root, kernels=KERNELS, model=MODEL)
    register(found)
    return found


def register(found: dict[str, ModuleType]) -> None:
    trainify.register(
        f"{found['kernels'].__name__}.norm",
        "norm(Tensor x, Tensor weight, float eps) -> Tensor",
        "rms_norm(x, weight, eps)",
    )


def build(found: dict[str, ModuleType], route: str) -> nn.Module:
    """The model as it serves: no gradient reaches what lies before a norm."""
    torch.manual_seed(0)
    model: nn.Module = found["model"].Model(getattr(found["model"], route.capitalize()))
    return model


def mend(found: dict[str, ModuleType], model: nn.Module, route: str) -> None:
    """Make it trainable by one route alone."""
    name = found["model"].__name__
    apply(
        model,
        {
            "dispatcher": Plan(ops=("_C::rms_norm",)),
            "symbol": Plan(symbols=(f"{found['kernels'].__name__}:norm",)),
            "source": Plan(methods=(f"{name}:Source.forward",)),
        }[route],
    )


def batch() -> torch.Tensor:
    return torch.randn(4, H, generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(x), x.roll(1, 0))


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    model.zero_grad()
    loss = loss_of(model, batch())
    if loss.requires_grad:
        loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_right(found: dict[str, ModuleType], model: nn.Module) -> None:
    """Every gradient is that of the same model in plain torch, with the same weights.

    To 1e-5 of the largest of its elements: in those near zero inductor's rounding shows.
    """
    plain = build(found, "plain")
    state = {
        k.removeprefix("_orig_mod.").removeprefix("module."): v
        for k, v in model.state_dict().items()
    }
    plain.load_state_dict(state)
    expected = gradients(plain)
    for (name, ours), theirs in zip(gradients(model).items(), expected.values(), strict=True):
        assert ours is not None and theirs is not None, name
        largest = theirs.abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=max(1e-7, 1e-5 * largest))


def is_cut(model: nn.Module) -> bool:
    return any(gradient is None for gradient in gradients(model).values())
