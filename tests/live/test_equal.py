"""Equivalents that take the place of an op compute what the op computes, or are refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from live_package import package

import trainify
from tests.each import in_turn
from trainify.catalog.own import _registered

KERNELS = """
@torch.library.custom_op("trainify_equal::square", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x * x

@torch.library.custom_op("trainify_equal::square_", mutates_args={"x"})
def op_(x: torch.Tensor) -> None:
    x.mul_(x)

@torch.library.custom_op("trainify_equal::dropped", mutates_args=())
def dropped(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.5)

def square(x):
    return torch.from_numpy(x.detach().numpy() ** 2)

def square_into(out, x):
    out.copy_(square(x))

def padded(x):
    out = torch.full_like(x.detach(), 7.0)
    out[1:] = square(x)[1:]
    return out
"""

MODEL = """
from . import kernels

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.activation(self.first(x)))

class Op(Model):
    def activation(self, x):
        return torch.ops.trainify_equal.square(x)

class InPlace(Model):
    def activation(self, x):
        torch.ops.trainify_equal.square_(x)
        return x

class Dropped(Model):
    def activation(self, x):
        return torch.ops.trainify_equal.dropped(x)

class Symbol(Model):
    def activation(self, x):
        return kernels.square(x)

class Into(Model):
    def activation(self, x):
        out = torch.empty_like(x)
        kernels.square_into(out, x)
        return out

class Padded(Model):
    def activation(self, x):
        return kernels.padded(x)
"""

OPS = {
    "Op": ("torch.ops.trainify_equal.square", "square(Tensor x) -> Tensor", "{}"),
    "InPlace": ("torch.ops.trainify_equal.square_", "square_(Tensor(a!) x) -> ()", "x = {}"),
    "Symbol": ("square", "square(Tensor x) -> Tensor", "{}"),
    "Into": ("square_into", "square_into(Tensor(a!) out, Tensor x) -> ()", "out = {}"),
    "Dropped": ("torch.ops.trainify_equal.dropped", "dropped(Tensor x) -> Tensor", "{}"),
    "Padded": ("padded", "padded(Tensor x) -> Tensor", "{}"),
}
SQUARES = ["Op", "InPlace", "Symbol", "Into"]

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[dict[str, ModuleType]]:
    before = list(_registered)
    yield package(tmp_path, kernels=KERNELS, model=MODEL)
    _registered[:] = before


def _register(modules: dict[str, ModuleType], model: str, equivalent: str) -> torch.nn.Module:
    name, schema, form = OPS[model]
    if "." not in name:
        name = f"{modules['kernels'].__name__}.{name}"
    trainify.register(name, schema, form.format(equivalent))
    made: torch.nn.Module = getattr(modules["model"], model)()
    return made


@pytest.mark.parametrize(("name", "strategy"), in_turn(list(SQUARES), ["flag", "replace"]))
def test_another_function_is_refused(
    modules: dict[str, ModuleType], name: str, strategy: str
) -> None:
    model = _register(modules, name, "x * x * x")
    state, source = dict(vars(modules["kernels"])), model(X)
    with pytest.raises(trainify.NotTrainable) as raised:
        trainify.trainify(model, X, strategy=strategy)
    assert "square" in str(raised.value)
    assert "computes something else than the equivalent that is registered for it" in str(
        raised.value
    )
    assert f"{modules['model'].__file__}:" in str(raised.value)
    assert dict(vars(modules["kernels"])) == state and torch.equal(model(X), source)


@pytest.mark.parametrize(("name", "strategy"), in_turn(list(SQUARES), ["flag", "replace"]))
def test_the_same_function_is_taken(
    modules: dict[str, ModuleType], name: str, strategy: str
) -> None:
    model = _register(modules, name, "x * x")
    trainify.trainify(model, X, strategy=strategy)
    model(X).sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    first, last = model.first, model.last
    right = torch.autograd.grad(last(first(X).square()).sum(), [*model.parameters()])
    torch.testing.assert_close(found, list(right))


@pytest.mark.parametrize(
    ("name", "equivalent"), [("Dropped", "F.dropout(x, 0.5)"), ("Padded", "x * x")]
)
def test_random_numbers_and_padding_are_no_other_function(
    modules: dict[str, ModuleType], name: str, equivalent: str
) -> None:
    model = _register(modules, name, equivalent)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainify.trainify(model, X, strategy="replace")


@pytest.mark.parametrize("strategy", ["auto", "flag"])
@pytest.mark.parametrize("name", ["Op", "Symbol", "Into"])
def test_nearly_the_same_function_is_warned_of(
    modules: dict[str, ModuleType], name: str, strategy: str
) -> None:
    """As GELU by tanh for one by erf: other gradients than the kernel's, in the third digit."""
    model = _register(modules, name, "x * x * 1.003")
    with pytest.warns(trainify.NotEverything, match=r"nearly what .* differ by 3e-03 of"):
        trainify.trainify(model, X, strategy=strategy)


def test_rounding_is_no_other_function(modules: dict[str, ModuleType]) -> None:
    model = _register(modules, "Op", "x.square() * (1 + 2e-3)").bfloat16()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainify.trainify(model, X.bfloat16())


def test_where_the_kernel_stays_its_values_do() -> None:
    """An equivalent that is another by a constant has the same derivative."""
    before = list(_registered)

    @torch.library.custom_op("trainify_equal::shifted", mutates_args=())
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x * x + 1

    class Shifted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.last(torch.ops.trainify_equal.shifted(self.first(x)))
            return out

    trainify.register("torch.ops.trainify_equal.shifted", "shifted(Tensor x) -> Tensor", "x * x")
    try:
        model = Shifted()
        trainify.trainify(model, X)
        trainify.restore(model)
        with pytest.raises(trainify.NotTrainable, match="computes something else"):
            trainify.trainify(model, X, strategy="replace")
    finally:
        _registered[:] = before
