"""Weights that were derived once, before the step: their classes get a property in place of them."""

from __future__ import annotations

import copy
import pickle
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from live_package import package
from torch import Tensor, nn

import trainify

H = 8

MODEL = """
import torch.nn.functional as F

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8, bias=False)
        self.down = nn.Linear(8, 8, bias=False)
        self.make()

    def make(self):
        pass

    def forward(self, x):
        return self.derived(x).tanh() + x

class Turned(Layer):
    def make(self):
        self.up_t = self.up.weight.data.t()

    def derived(self, x):
        return self.down(x @ self.up_t)

class Scope(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8, bias=False)
        self.down = nn.Linear(8, 8, bias=False)
        with torch.no_grad():
            self.up_t = self.up.weight.t()

    def forward(self, x):
        return self.down(x @ self.up_t).tanh() + x

class Halves(Layer):
    def process_weights_after_loading(self):
        self.low, self.high = self.up.weight.data.chunk(2)

    def derived(self, x):
        return self.down(torch.cat([F.linear(x, self.high), F.linear(x, self.low)], -1))

class Buffer(Layer):
    def make(self):
        self.register_buffer("up_t", self.up.weight.data.t())

    def derived(self, x):
        return self.down(x @ self.up_t)

class Product(Layer):
    def make(self):
        self.both = self.down.weight @ self.up.weight

    def derived(self, x):
        return F.linear(x, self.both)

class Copied(Layer):
    def make(self):
        self.packed = torch.cat([self.up.weight.data, self.down.weight.data])

    def derived(self, x):
        a, b = F.linear(x, self.packed).chunk(2, -1)
        return a * b

class Decay(Layer):
    \"\"\"Other numbers than the weight's, and no graph.\"\"\"

    def make(self):
        self.decay = -torch.exp(self.up.weight.data)

    def derived(self, x):
        return self.down(x * self.decay.sum(0))

class Fused(Layer):
    def make(self):
        with torch.no_grad():
            self.both = self.down.weight @ self.up.weight

    def derived(self, x):
        return F.linear(x, self.both)

class Rounded(Layer):
    \"\"\"By the scale alone its gradient would be another.\"\"\"

    def make(self):
        self.scale = self.up.weight.data.abs().amax() / 127
        self.whole = (self.up.weight.data / self.scale).round().to(torch.int8)

    def derived(self, x):
        return self.down(F.linear(x, self.whole.to(x.dtype) * self.scale))

class Unclear(Layer):
    def make(self):
        self.packed = self.up.weight.data.clone()
        self.packed = self.packed + 0

    def derived(self, x):
        return self.down(F.linear(x, self.packed))

class Joined(Layer):
    \"\"\"With its graph, of which backward frees nothing.\"\"\"

    def make(self):
        self.packed = torch.cat([self.up.weight, self.down.weight])

    def derived(self, x):
        a, b = F.linear(x, self.packed).chunk(2, -1)
        return a * b

class Inherited(Turned):
    pass

class Absorbed(Layer):
    \"\"\"Both halves of a weight are put into other layouts, as MLA's are for decoding.\"\"\"

    def process_weights_after_loading(self):
        w = self.up.weight.data
        first, second = w.unflatten(0, (2, -1)).split([2, 2], dim=1)
        self.w_first = first.transpose(1, 2).contiguous().transpose(1, 2)
        self.w_second = second.contiguous().transpose(1, 2)

    def derived(self, x):
        h = torch.einsum("bi,hji->bhj", x, self.w_first)
        g = torch.einsum("bi,hij->bhj", x, self.w_second)
        return self.down(torch.cat([h, g], -1).flatten(1))

class Scaled(Layer):
    \"\"\"Something else is made of the weight, too, and would go on without it.\"\"\"

    def process_weights_after_loading(self):
        self.up_t = self.up.weight.data.t().contiguous()
        self.norms = self.up.weight.data.norm(dim=1)

    def derived(self, x):
        return self.down(x @ self.up_t / self.norms)

class Viewed(Scaled):
    def process_weights_after_loading(self):
        self.up_t = self.up.weight.data.t()
        self.norms = self.up.weight.data.norm(dim=1)

class Row(Copied):
    \"\"\"As a derived class makes something of it.\"\"\"

    def make(self):
        super().make()
        self.row = self.up.weight.data[0].clone()

    def derived(self, x):
        return super().derived(x) + self.row

class HalfKept(Layer):
    \"\"\"One half is held where no property can stand for it.\"\"\"

    def process_weights_after_loading(self):
        self.low = self.up.weight.data[:4].clone()
        self.parts = {"high": self.up.weight.data[4:].clone()}

    def derived(self, x):
        return self.down(torch.cat([F.linear(x, self.low), F.linear(x, self.parts["high"])], -1))

class Tied(Layer):
    \"\"\"The weight learns by another way: it may be meant.\"\"\"

    def make(self):
        self.fixed = self.up.weight.detach()

    def derived(self, x):
        return self.down(self.up(x)) @ self.fixed.t()

class Listed(Layer):
    def make(self):
        self.parts = {"up": self.up.weight.data.t()}

    def derived(self, x):
        return self.down(x @ self.parts["up"])

class Model(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.layers = nn.ModuleList(layer() for _ in range(2))

    def forward(self, x):
        x = self.inner(x)
        for layer in self.layers:
            x = layer(x)
        return x
"""

Forward = Callable[[Tensor, Tensor, Tensor], Tensor]


def absorbed(x: Tensor, up: Tensor) -> Tensor:
    first, second = up.unflatten(0, (2, -1)).split([2, 2], dim=1)
    h = torch.einsum("bi,hji->bhj", x, first)
    return torch.cat([h, torch.einsum("bi,hji->bhj", x, second)], -1).flatten(1)


RIGHT: dict[str, Forward] = {
    "Turned": lambda x, up, down: x @ up.t() @ down.t(),
    "Scope": lambda x, up, down: x @ up.t() @ down.t(),
    "Inherited": lambda x, up, down: x @ up.t() @ down.t(),
    "Halves": lambda x, up, down: torch.cat([x @ up[4:].t(), x @ up[:4].t()], -1) @ down.t(),
    "Buffer": lambda x, up, down: x @ up.t() @ down.t(),
    "Product": lambda x, up, down: x @ (down @ up).t(),
    "Decay": lambda x, up, down: (x * -up.exp().sum(0)) @ down.t(),
    "Fused": lambda x, up, down: x @ (down @ up).t(),
    "Copied": lambda x, up, down: (x @ up.t()) * (x @ down.t()),
    "Joined": lambda x, up, down: (x @ up.t()) * (x @ down.t()),
    "Absorbed": lambda x, up, down: absorbed(x, up) @ down.t(),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return package(tmp_path_factory.mktemp("derived"), model=MODEL)["model"]


def build(models: ModuleType, name: str) -> nn.Module:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        model: nn.Module = models.Model(getattr(models, name))
    finally:
        torch.set_default_dtype(torch.float32)
    for layer in model.layers:
        if hasattr(layer, "process_weights_after_loading"):
            layer.process_weights_after_loading()
    return model


def batch() -> Tensor:
    return torch.randn(4, H, dtype=torch.double, generator=torch.Generator().manual_seed(1))


def squares(out: Tensor) -> Tensor:
    return out.square().mean()


def expected(model: nn.Module, name: str) -> Tensor:
    x = model.inner(batch())
    for layer in model.layers:
        x = RIGHT[name](x, layer.up.weight, layer.down.weight).tanh() + x
    return squares(x)


def assert_trains(model: nn.Module, name: str) -> None:
    """For three steps, with the gradients of the same model in plain torch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        right = torch.autograd.grad(expected(model, name), list(model.parameters()))
        optimizer.zero_grad()
        loss = squares(model(batch()))
        trainify.backward(loss, model)
        torch.testing.assert_close(loss, expected(model, name), rtol=1e-12, atol=0)
        for parameter, grad in zip(model.parameters(), right, strict=True):
            torch.testing.assert_close(parameter.grad, grad, rtol=1e-9, atol=1e-12)
        optimizer.step()


def made_trainable(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", trainify.StopRemoved)
        return trainify.trainify(model, batch(), loss=squares)


@pytest.mark.parametrize("name", RIGHT)
def test_it_becomes_a_property(models: ModuleType, name: str) -> None:
    model = build(models, name)
    state, cls = list(model.state_dict()), type(model.layers[0])
    with torch.no_grad():
        served = model(batch())
    made_trainable(model)
    with torch.no_grad():
        assert torch.equal(model(batch()), served)
    assert_trains(model, name)
    assert list(model.state_dict()) == state and isinstance(model.layers[0], cls)
    assert "@property" in trainify.source_diff(model)
    trainify.restore(model)
    assert type(model.layers[0]) is cls
    assert not isinstance(getattr(cls, "up_t", None), property)


@pytest.mark.parametrize("name", ["Turned", "Halves", "Copied"])
def test_copies_and_pickles_have_it_too(models: ModuleType, name: str) -> None:
    model = made_trainable(build(models, name))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_trains(other, name)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_restored_serves_what_was_trained(models: ModuleType, name: str) -> None:
    """What instances hold is from before the training, until somebody reads it again."""
    model = made_trainable(build(models, name))
    assert_trains(model, name)
    with torch.no_grad():
        trained = model(batch())
    trainify.restore(model)
    with torch.no_grad():
        torch.testing.assert_close(model(batch()), trained, rtol=1e-12, atol=0)


def test_a_state_dict_holds_what_was_trained(models: ModuleType) -> None:
    model = made_trainable(build(models, "Buffer"))
    assert_trains(model, "Buffer")
    other = build(models, "Buffer")
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(other(batch()), model(batch()), rtol=1e-12, atol=0)


def test_a_view_of_what_something_else_is_made_of(models: ModuleType) -> None:
    model = build(models, "Viewed")
    with pytest.raises(trainify.NotTrainable, match="up_t lies in the memory of a weight"):
        trainify.trainify(model, batch(), loss=squares)


def test_a_view_that_is_allowed(models: ModuleType) -> None:
    model = build(models, "Turned")
    report = trainify.audit(model, batch(), loss=squares, allow=["Turned.derived"])
    assert report.ok, str(report)
    assert report.lost == ("layers.0.up.weight", "layers.1.up.weight")
    trainify.trainify(model, batch(), loss=squares, allow=["Turned.derived"])
    assert not trainify.source_diff(model)


def test_what_is_allowed_stays(models: ModuleType) -> None:
    model = build(models, "Copied")
    with pytest.warns(trainify.NotEverything, match="a copy"):
        trainify.trainify(model, batch(), loss=squares, allow=["Copied.make"])
    assert not trainify.source_diff(model)


def test_what_made_it_may_run_again(models: ModuleType) -> None:
    """As a loader does after it has put other weights in."""
    model = made_trainable(build(models, "Halves"))
    for layer in model.layers:
        torch.nn.init.normal_(layer.up.weight)
        layer.process_weights_after_loading()
    assert_trains(model, "Halves")


@pytest.mark.parametrize("name", ["Turned", "Scope", "Halves", "Product", "Copied", "Absorbed"])
def test_the_diff_is_the_same_change(name: str, tmp_path: Path) -> None:
    here = package(tmp_path, model=MODEL)
    file = Path(here["model"].__file__)
    diff = trainify.source_diff(made_trainable(build(here["model"], name)))
    subprocess.run(["git", "apply"], input=diff.encode(), cwd=file.parent, check=True)
    patched = ModuleType("patched")
    exec(compile(file.read_text(), str(file), "exec"), vars(patched))
    assert_trains(build(patched, name), name)


def test_a_weight_that_learns_by_another_way(models: ModuleType) -> None:
    model = build(models, "Tied")
    with pytest.raises(trainify.NotTrainable, match="through=") as raised:
        trainify.trainify(model, batch(), loss=squares)
    (cut,) = raised.value.report.cuts
    assert cut.derived == ("layers.0.fixed", "layers.1.fixed")
    with pytest.warns(trainify.StopRemoved, match="fixed = self.up.weight"):
        trainify.trainify(model, batch(), loss=squares, through=["Tied.derived"])
    x = model.inner(batch())
    for layer in model.layers:
        up, down = layer.up.weight, layer.down.weight
        x = (x @ up.t() @ down.t() @ up.t()).tanh() + x
    right = torch.autograd.grad(squares(x), list(model.parameters()))
    squares(model(batch())).backward()
    for parameter, grad in zip(model.parameters(), right, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-9, atol=1e-12)


def test_what_no_property_can_stand_for(models: ModuleType) -> None:
    model = build(models, "Listed")
    with pytest.raises(trainify.NotTrainable, match="Make it in forward") as raised:
        trainify.trainify(model, batch(), loss=squares)
    assert "through=" not in str(raised.value)
    with pytest.raises(trainify.NotTrainable, match="no statement that a property"):
        trainify.trainify(model, batch(), loss=squares, through=["Listed.derived"])


@pytest.mark.parametrize("name", ["Unclear", "HalfKept", "Scaled", "Row", "Old"])
def test_a_copy_that_no_property_can_stand_for_is_warned_of(models: ModuleType, name: str) -> None:
    """A weight of which one part learned and the other did not would be worse."""
    model = build(models, "Copied" if name == "Old" else name)
    if name == "Old":  # what is held is not what would be computed by now
        for layer in model.layers:
            layer.down.weight.data.mul_(1.1)
    with pytest.warns(trainify.NotEverything, match="a copy, which training does not reach"):
        trainify.trainify(model, batch(), loss=squares)
    assert not trainify.source_diff(model)


def test_a_weight_that_was_rounded_once_is_left_alone(models: ModuleType) -> None:
    model = build(models, "Rounded")
    report = trainify.audit(model, batch(), loss=squares)
    assert report.ok and not report.copies
    assert report.unused == ("layers.0.up.weight", "layers.1.up.weight")
    trainify.trainify(model, batch(), loss=squares)
    assert not trainify.source_diff(model)
