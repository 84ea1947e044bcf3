"""Weights that backward reaches, and that no module's parameters() has."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainify

D = 6
X = torch.linspace(-1, 1, 4 * D).reshape(4, D)


class InAList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(D, D) for _ in range(2)]  # <- here

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class InADict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = {}  # <- here
        for name in ("a", "b.c"):
            self.weights[name] = nn.Parameter(torch.randn(D, D))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weights["a"] @ self.weights["b.c"]


class InAnObject(nn.Module):
    class Scales:
        def __init__(self) -> None:
            self.first = nn.Parameter(torch.ones(D))

    def __init__(self) -> None:
        super().__init__()
        self.scales = self.Scales()  # <- here

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scales.first


class Beside(InAList):
    """With a part that is registered."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(super().forward(x))


class Inside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.inner = nn.Linear(D, D), nn.ModuleList([InAList(), InAList()])

    def forward(self, x: Tensor) -> Tensor:
        return self.inner[1](self.head(self.inner[0](x)))


LAYERS = "layers.*.weight, layers.*.bias"
UNREGISTERED = {
    InAList: (LAYERS, InAList),
    InADict: ("weights.a, weights.b.c", InADict),
    InAnObject: ("scales.first", InAnObject),
    Beside: (LAYERS, InAList),
    Inside: ("inner.*.layers.*.weight, inner.*.layers.*.bias", InAList),
}


def line_of(cls: type) -> int:
    source, first = inspect.getsourcelines(cls)
    return first + next(i for i, text in enumerate(source) if "# <- here" in text)


@pytest.mark.parametrize("cls", UNREGISTERED)
def test_they_are_named_with_their_place(cls: Any) -> None:
    names, holder = UNREGISTERED[cls]
    model = cls()
    report = trainify.audit(model, X)
    assert not report.ok
    assert report.error.startswith(f"{names} ({__file__}:{line_of(holder)}): ")
    with pytest.raises(trainify.NotTrainable, match="no optimizer trains them"):
        trainify.trainify(model, X)


class Registered(InAList):
    """The list is there for its order."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ModuleList(self.layers)


class Frozen(Beside):
    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers:
            layer.requires_grad_(False)


class Trained(Beside):
    """By an optimizer that the model has itself."""

    def __init__(self) -> None:
        super().__init__()
        weights = [weight for layer in self.layers for weight in layer.parameters()]
        self.optimizer = torch.optim.SGD(weights, lr=0.1)


class Teacher(Beside):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = InAList.forward(self, x)
        return (self.head(x) - target).square().mean()


class OwnParameters(Beside):
    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        yield from super().named_parameters(*args, **kwargs)
        for i, layer in enumerate(self.layers):
            yield from layer.named_parameters(f"layers.{i}")


class MadeInForward(nn.Module):
    """An input that is a leaf of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.z = nn.Linear(D, D), None

    def forward(self, x: Tensor) -> Tensor:
        self.z = x.detach().requires_grad_()
        return self.head(self.z)


@pytest.mark.parametrize(
    "cls", [Registered, Frozen, Trained, Teacher, OwnParameters, MadeInForward]
)
def test_what_somebody_trains_or_nobody_should_is_right(cls: Any) -> None:
    report = trainify.audit(cls(), X)
    assert report.ok and not any("optimizer" in note for note in report.notes)


class Hidden(nn.Module):
    """``[module]`` is how one is hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.features = nn.Linear(D, D), [nn.Linear(D, D)]

    def forward(self, x: Tensor) -> Tensor:
        return self.features[0](self.head(x))


class Perturbed(nn.Module):
    """A plain tensor, which whoever made it may optimize."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.delta = nn.Linear(D, D), torch.zeros(D, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.delta)


class Groups(Beside):
    def parameter_groups(self) -> list[Any]:
        return [layer.weight for layer in self.layers]


@pytest.mark.parametrize(
    ("cls", "names"),
    [(Hidden, "features.0.weight"), (Perturbed, "delta"), (Groups, "layers.*.weight")],
)
def test_what_may_be_kept_apart_on_purpose_is_noted(cls: Any, names: str) -> None:
    report = trainify.audit(cls(), X)
    assert report.ok and any(note.startswith(names) for note in report.notes)


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(D, D))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def test_a_model_without_parameters_is_warned_of() -> None:
    with pytest.warns(trainify.NotEverything, match="do not learn: weight\n.*nothing to train"):
        trainify.trainify(Buffers(), X)
