"""A model that computes something else once it is rewritten is left as it was, and says where."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from live_package import package

import trainify
from trainify.live.computed import computed

KERNELS = """
import torch

def rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None):
    FIRST
    x = input.detach()
    return x * (x * x).mean(-1, keepdim=True).rsqrt() * (PLUS + weight.detach())
"""

MODEL = """
import flashinfer
from torch.nn import functional as F

class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((16,), 0.5))

    def forward(self, x):
        return flashinfer.rmsnorm(x, self.weight, 1e-6)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = Norm(), nn.Linear(16, 16)

    def forward(self, x, scale=1.0):
        return x + scale * self.mlp(self.norm(x))

class Model(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(F.dropout(x, self.dropout), scale=x.new_tensor(1.0))
        return x
"""

X = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def flashinfer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A library of kernels that is found under the name of a real one."""
    (tmp_path / "kernels").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "kernels")
    monkeypatch.delitem(sys.modules, "flashinfer", raising=False)
    yield tmp_path / "kernels" / "flashinfer.py"
    sys.modules.pop("flashinfer", None)


def _model(file: Path, plus: float, first: str = "") -> ModuleType:
    """A model whose library multiplies by the weight and a number more, as a version may."""
    file.write_text(KERNELS.replace("PLUS", str(plus)).replace("FIRST", first))
    return package(file.parent.parent, model=MODEL)["model"]


@pytest.mark.parametrize(("strategy", "dropout"), [("flag", 0.0), ("replace", 0.1)])
def test_another_forward_is_refused(flashinfer: Path, strategy: str, dropout: float) -> None:
    module = _model(flashinfer, 1.0)
    model = module.Model(dropout)
    random = torch.get_rng_state()
    before = model(X)
    torch.set_rng_state(random)
    with pytest.raises(trainify.NotTrainable) as raised:
        trainify.trainify(model, X, strategy=strategy)
    line = 1 + module.__loader__.get_data(module.__file__).decode().split("\n").index(
        "    def forward(self, x):"
    )
    assert (
        f"{module.__file__}:{line}: layers.0.norm (Norm), given the same, returns other values once "
        "it is rewritten" in str(raised.value)
    )
    assert "layers.1" not in str(raised.value)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(model(X), before) and type(model) is module.Model
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_the_kernel_itself_is_no_other(flashinfer: Path) -> None:
    model = _model(flashinfer, 1.0).Model()
    before = model(X)
    trainify.trainify(model, X)
    assert torch.equal(model(X), before)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("strategy", ["flag", "replace"])
def test_the_same_forward_is_taken(flashinfer: Path, strategy: str, dropout: float) -> None:
    model = _model(flashinfer, 0.0).Model(dropout)
    trainify.trainify(model, X, strategy=strategy)
    model(X).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_other_random_numbers_are_no_other_forward(flashinfer: Path) -> None:
    """The kernel draws twice as many as its equivalent, for the dropout behind it."""
    model = _model(flashinfer, 0.0, "torch.randn(input.shape)").Model(dropout=0.1)
    trainify.trainify(model, X, strategy="replace")


def test_what_is_random_is_asked_once(flashinfer: Path) -> None:
    model = _model(flashinfer, 0.0).Model(dropout=0.1)
    forwards = []
    model.register_forward_hook(lambda *_: forwards.append(1))
    for rewritten, count in ((False, 4), (True, 3)):  # one sees what is written outside of it
        forwards.clear()
        assert computed(model, (X,), {}, None, rewritten=rewritten) is not None
        assert len(forwards) == count


def test_little_bits_are_no_other_forward(flashinfer: Path) -> None:
    model = _model(flashinfer, 0.02).Model()
    trainify.trainify(model, X, strategy="replace")


DERIVED = """
    def forward(self, x):
        energy = lambda x: super(Derived, self).forward(x).square().sum()
        if self.how == "grad":
            return torch.func.grad(energy)(x)
        x = x.requires_grad_()
        return torch.autograd.grad(energy(x), x, create_graph=True)[0]
"""


@pytest.mark.parametrize("how", ["grad", "autograd"])
def test_derivatives_are_to_be_others(
    flashinfer: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forces of an energy: without a backward of the kernel they were wrong."""
    monkeypatch.setattr(
        sys.modules[__name__],
        "MODEL",
        f"{MODEL}\nclass Derived(Model):\n    how = {how!r}\n{DERIVED}",
    )
    model = _model(flashinfer, 0.0).Derived()
    before = model(X)
    trainify.trainify(model, X, strategy="replace")
    assert not torch.allclose(model(X), before)
