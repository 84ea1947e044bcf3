"""Kernels of extensions that are built and loaded in place, and are in no table of modules."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
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
