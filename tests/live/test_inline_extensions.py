"""Kernels of extensions that are built and loaded in place, and are in no table of modules."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from live_package import package

import trainify
from trainify.catalog.own import _registered
from trainify.live.symbol import symbol

KERNELS = """
import torch

def square(x):
    return torch.from_numpy(x.detach().numpy() ** 2)
"""

MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(built.square(self.first(x)))
"""

X = torch.randn(6, 4)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ModuleType]:
    """A module with the extension as its global ``built``, as ``load_inline`` gives it."""
    path = tmp_path / "built.py"
    path.write_text(KERNELS)
    name = f"built_{tmp_path.name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    built = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(built)
    before = list(_registered)
    trainify.register(f"{name}.square", "square(Tensor x) -> Tensor", "x * x")
    found = package(tmp_path, model=MODEL)["model"]
    found.built = built  # type: ignore[attr-defined]
    yield found
    _registered[:] = before


def test_they_get_a_backward(model: ModuleType) -> None:
    net = model.Model()
    kernel = id(model.built.square)
    trainify.trainify(net, X)
    net(X).sum().backward()
    found = [parameter.grad for parameter in net.parameters()]
    right = torch.autograd.grad(net.last(net.first(X).square()).sum(), [*net.parameters()])
    torch.testing.assert_close(found, list(right))
    assert id(model.built.square) != kernel
    trainify.restore(net)
    assert id(model.built.square) == kernel


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(ModuleNotFoundError, match="built_never"):
        symbol("built_never:square")


class Held(torch.nn.Module):
    """The kernel is held by the instance alone."""

    def __init__(self, kernel: Callable[..., None]) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
        self.weight = torch.nn.Parameter(torch.rand(4))
        self.kernel = kernel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        out = torch.empty_like(h)
        self.kernel(out, h, self.weight, 1e-6, False)
        return self.last(out)


def test_one_that_nothing_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # of imports_stay_frozen
    name = "trainify_fixture_kernels"
    kernel = sys.modules[name].rmsnorm
    before = list(_registered)
    schema = "rmsnorm(Tensor(a!) out, Tensor x, Tensor weight, float eps, bool centred) -> ()"
    trainify.register(f"{name}.rmsnorm", schema, "out = rms_norm(x, weight, eps)")
    monkeypatch.delitem(sys.modules, name)
    try:
        net = Held(kernel)
        trainify.trainify(net, X)
        net(X).sum().backward()
        found = [parameter.grad for parameter in net.parameters()]
        normed = F.rms_norm(net.first(X), (4,), net.weight, 1e-6)
        right = torch.autograd.grad(net.last(normed).sum(), [*net.parameters()])
        torch.testing.assert_close(found, list(right))
        trainify.restore(net)
        assert net.kernel is kernel
    finally:
        _registered[:] = before
