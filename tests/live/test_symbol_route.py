"""The route *symbol*: functions around kernels that no dispatcher knows become ops."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_package import package
from torch import nn

import trainify
from tests.each import case, some
from trainify.catalog.own import _registered
from trainify.live.apply import restore
from trainify.live.attach import CannotAttach
from trainify.live.reach import reached
from trainify.live.symbol import symbol

H = 8
KERNELS = """
import numpy as np
from trainify_fixture_kernels import rmsnorm, fused_add_rmsnorm, rope

def norm(x, weight, eps=1e-6, out=None, layout=None):
    '''With a result of its own, or in `out`.'''
    if out is None:
        out = torch.empty_like(x)
    rmsnorm(out, x, weight, eps, False)
    return out

def add_norm(x, residual, weight, eps=1e-6):
    fused_add_rmsnorm(x, residual, weight, eps, False)

def exact(x, weight):
    '''In double, and by NumPy.'''
    rows = x.numpy()
    normed = rows / np.sqrt(np.square(rows).mean(-1, keepdims=True) + 1e-6)
    return torch.from_numpy(normed * weight.numpy())
"""
MODEL = """
from collections import namedtuple
from dataclasses import dataclass
from functools import cache, partial, wraps
from typing import Any
from . import kernels
from .kernels import norm, add_norm

TABLE = {"norm": norm, "list": [norm], "tuple": (None, norm)}
Named = namedtuple("Named", "norm")

def make(f):
    return lambda *args: f(*args)

def wrapped(f):
    @wraps(f)
    def inner(*args):
        return f(*args)
    return inner

def call(f, *args):
    return f(*args)

def default(x, weight, f=norm):
    return f(x, weight)

def keyword(x, weight, *, f=norm):
    return f(x, weight)

@cache
def chosen():
    return norm

class Slots:
    __slots__ = ("norm",)

    def __init__(self):
        self.norm = norm

@dataclass(frozen=True)
class Config:
    norm: Any = norm

class Backend:
    def __init__(self):
        self.norm = norm

    def run(self, x, weight):
        return self.norm(x, weight)

class Model(nn.Module):
    table = TABLE
    held = norm
    static = staticmethod(norm)

    def __init__(self, how):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.how = how
        self.attribute = norm
        self.partial = partial(norm, eps=1e-6)
        self.closure = make(norm)
        self.wrapped = wrapped(norm)
        self.argument = partial(call, norm)
        self.slots, self.config, self.named = Slots(), Config(), Named(norm)
        self.method = Backend().run

    def forward(self, x):
        if self.how == "module":
            return kernels.norm(x, self.weight)
        if self.how == "name":
            return norm(x, self.weight)
        if self.how == "table":
            return TABLE["norm"](x, self.weight)
        if self.how == "list":
            return self.table["list"][0](x, self.weight)
        if self.how == "tuple":
            return TABLE["tuple"][1](x, self.weight)
        if self.how in ("slots", "config", "named"):
            return getattr(self, self.how).norm(x, self.weight)
        if self.how == "default":
            return default(x, self.weight)
        if self.how == "keyword":
            return keyword(x, self.weight)
        if self.how == "cached":
            return chosen()(x, self.weight)
        if self.how == "class":
            return type(self).held(x, self.weight)
        if self.how == "buffer":
            out = torch.empty_like(x)
            norm(x, self.weight, out=out)
            return out
        if self.how == "in place":
            h, r = x * 2, x * 3
            add_norm(h, r, self.weight)
            return h + r
        if self.how == "onto itself":
            return norm(x * 1, self.weight, out=x * 1) + kernels.norm(y := x * 1, self.weight, out=y)
        return getattr(self, self.how)(x, self.weight)
"""
WAYS = ["module", "name", "table", "list", "class", "attribute", "partial", "closure", "buffer"]
WAYS += ["tuple", "static", "wrapped", "argument", "slots", "config", "named", "method"]
WAYS += ["default", "keyword", "cached"]


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[dict[str, ModuleType]]:
    found = package(tmp_path, kernels=KERNELS, model=MODEL)
    name = found["kernels"].__name__
    before = list(_registered)
    for function, schema, equivalent in [
        (
            "norm",
            "(Tensor x, Tensor weight, float eps=1e-6, Tensor(a!)? out=None, Any layout=None)"
            " -> Tensor(a!)",
            "rms_norm(x, weight, eps)",
        ),
        (
            "add_norm",
            "(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps=1e-6) -> ()",
            "x, residual = fused_add_rms_norm_fp32(x, residual, weight, eps)",
        ),
        (
            "exact",
            "(Tensor x, Tensor weight) -> Tensor",
            "x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight",
        ),
    ]:
        trainify.register(f"{name}.{function}", function + schema, equivalent)
    trainify.register(
        "trainify_fixture_kernels.rmsnorm",
        "rmsnorm(Tensor(a!) out, Tensor x, Tensor weight, float eps, bool centred) -> ()",
        "out = rms_norm(x, weight, eps)",
    )
    yield found
    _registered[:] = before


class Holder(nn.Module):
    """Who a symbol is held for."""


def held(modules: dict[str, ModuleType], *names: str) -> tuple[nn.Module, Callable[[], None]]:
    holder = Holder()
    symbols = [symbol(f"{modules['kernels'].__name__}:{name}") for name in names]
    for each in symbols:
        each.hold(holder)
    return holder, lambda: [each.release(holder) for each in symbols]  # type: ignore[func-returns-value,return-value]


def gradient(model: nn.Module, x: torch.Tensor) -> list[Any]:
    out = model(x)
    if not out.requires_grad:
        return [None, None]
    return list(
        torch.autograd.grad(out.square().sum(), [x, *model.parameters()], allow_unused=True)
    )


def right(x: torch.Tensor, weight: torch.Tensor, how: str) -> list[torch.Tensor]:
    if how == "onto itself":
        out = 2 * F.rms_norm(x, (H,), weight, 1e-6)
    elif how == "in place":
        out = F.rms_norm(5 * x, (H,), weight, 1e-6) + 5 * x
    else:
        out = F.rms_norm(x, (H,), weight, 1e-6)
    return list(torch.autograd.grad(out.square().sum(), [x, weight]))


def test_wherever_it_is_held(modules: dict[str, ModuleType]) -> None:
    models = {how: modules["model"].Model(how) for how in [*WAYS, "in place", "onto itself"]}
    x = torch.randn(3, H, requires_grad=True)
    kernel = modules["kernels"].norm
    with torch.no_grad():
        served = {how: model(x) for how, model in models.items()}
    assert all(gradient(model, x)[1] is None for model in models.values())
    _, release = held(modules, "norm", "add_norm")
    for how, model in models.items():
        with case(how):
            assert torch.equal(model(x), served[how]), "the bits of the kernel"
            torch.testing.assert_close(gradient(model, x), right(x, model.weight, how))
            with torch.no_grad():
                assert torch.equal(model(x), served[how])
    release()
    for how, model in models.items():
        with case(how):
            assert gradient(model, x)[1] is None
            assert modules["kernels"].norm is modules["model"].norm is model.attribute is kernel


ALONE = """
from functools import cache, partial, wraps
from .kernels import norm

def call(f, *args):
    return f(*args)

@wraps(norm)
def wrapped(*args):
    return norm(*args)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))
        HELD

    def forward(self, x, f=None):
        return (f or self.f)(x, self.weight)
"""
HOLDING = {
    "closure": "self.f = (lambda f: lambda *args: f(*args))(norm)",
    "wraps": "self.f = wrapped",
    "argument": "self.f = partial(call, norm)",
    "static": "type(self).f = staticmethod(norm)",
    "default": "self.f = lambda x, weight, f=norm: f(x, weight)",
    "keyword": "self.f = lambda x, weight, *, f=norm: f(x, weight)",
    "tuple": "self.fs = (norm,); self.f = lambda *args: self.fs[0](*args)",
    "cached": "get = cache(lambda: norm); self.f = lambda *args: get()(*args)",
}


def test_found_from_the_model_wherever_it_is_held(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    """Each model alone: no other one shows the function by an easier way."""
    kernels = modules["kernels"].__name__
    head = f"import {kernels} as kernels\n"
    x = torch.randn(3, H, requires_grad=True)
    for how, held in HOLDING.items():
        text = head + ALONE.replace("from .kernels", f"from {kernels}").replace("HELD", held)
        with case(how):
            model = package(tmp_path, alone=text)["alone"].Layer()
            assert reached(model).kernels.keys() == {f"{kernels}:norm"}
            trainify.trainify(model, x)
            torch.testing.assert_close(gradient(model, x), right(x, model.weight, how))
            trainify.restore(model)
            assert gradient(model, x)[1] is None


RUNNING = {
    "object": "held.f = norm; self.f = lambda *args: held.f(*args)",
    "frozen object": "self.f = lambda *args: config.f(*args)",
    "read-only table": "self.f = lambda *args: table['f'](*args)",
    "name put together": "self.f = lambda *args: getattr(kernels, 'no' + 'rm')(*args)",
    "pybind": "held.f = trainify_fixture_kernels.rmsnorm; self.f = direct",
}
OBJECTS = """
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any
import trainify_fixture_kernels

@dataclass(frozen=True, slots=True)
class Config:
    f: Any

held, config, table = SimpleNamespace(), Config(norm), MappingProxyType({"f": norm})

def direct(x, weight):
    out = torch.empty_like(x)
    held.f(out, x, weight, 1e-6, False)
    return out

def call"""


def test_found_by_running_where_nothing_shows_it(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    kernels = modules["kernels"].__name__
    head = f"import {kernels} as kernels\n"
    x = torch.randn(3, H, requires_grad=True)
    code = ALONE.replace("def call", OBJECTS, 1).replace("from .kernels", f"from {kernels}")
    for how, held in RUNNING.items():
        with case(how):
            made = package(tmp_path, alone=head + code.replace("HELD", held))["alone"]
            model = made.Layer()
            assert not reached(model).kernels
            trainify.trainify(model, x)
            torch.testing.assert_close(gradient(model, x), right(x, model.weight, how))
            trainify.restore(model)
            assert gradient(model, x)[1] is None


@pytest.mark.parametrize("frozen", [False, True])
def test_a_pybind_function_itself(
    modules: dict[str, ModuleType], frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # of imports_stay_frozen
    if frozen:  # then the collector does not tell who holds the function
        gc.freeze()
    else:
        gc.unfreeze()
    model = modules["model"].Model("name")
    x = torch.randn(3, H, requires_grad=True)
    rebound = symbol("trainify_fixture_kernels:rmsnorm")
    holder = Holder()
    rebound.hold(holder)
    torch.testing.assert_close(gradient(model, x), right(x, model.weight, "name"))
    assert modules["kernels"].rmsnorm is sys.modules["trainify_fixture_kernels"].rmsnorm
    rebound.release(holder)
    assert gradient(model, x)[1] is None
    assert type(modules["kernels"].rmsnorm).__name__ == "builtin_function_or_method"
    gc.freeze()  # as tests/conftest.py has it


def test_a_kernel_that_writes_over_what_it_reads(modules: dict[str, ModuleType]) -> None:
    """One tensor is given as both: what it was, and not what it becomes, has the gradient."""
    rebound = symbol("trainify_fixture_kernels:rmsnorm")
    holder = Holder()
    rebound.hold(holder)
    x, weight = torch.randn(3, H, requires_grad=True), torch.rand(H, requires_grad=True)
    y = x * 2
    modules["kernels"].rmsnorm(y, y, weight, 1e-6, False)
    found = torch.autograd.grad(y.square().sum(), (x, weight))
    plain = F.rms_norm(x * 2, (H,), weight, 1e-6)
    expected = torch.autograd.grad(plain.square().sum(), (x, weight))
    torch.testing.assert_close(found, expected)
    rebound.release(holder)


def test_first_and_second_derivatives(modules: dict[str, ModuleType]) -> None:
    _, release = held(modules, "exact")
    inputs = (
        torch.randn(3, 4, dtype=torch.double, requires_grad=True),
        torch.randn(4, dtype=torch.double, requires_grad=True),
    )
    assert torch.autograd.gradcheck(modules["kernels"].exact, inputs)
    assert torch.autograd.gradgradcheck(modules["kernels"].exact, inputs)
    release()


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "how", some(("buffer", "onto itself"), ("name", "buffer", "in place", "onto itself"))
)
def test_compiled_in_full(modules: dict[str, ModuleType], backend: str, how: str) -> None:
    """Before, the compiler had to break the graph at the call."""
    model = modules["model"].Model(how)
    x = torch.randn(3, H, requires_grad=True)
    _, release = held(modules, "norm", "add_norm")
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    torch.testing.assert_close(gradient(compiled, x), right(x, model.weight, how))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    release()
    torch._dynamo.reset()


def test_torch_checks_the_op(modules: dict[str, ModuleType]) -> None:
    name = modules["kernels"].__name__
    _, release = held(modules, "add_norm")
    op = getattr(torch.ops.trainify, f"{name}_add_norm".replace(".", "_")).default
    arguments = [torch.randn(3, H, requires_grad=True) for _ in range(2)]
    torch.library.opcheck(op, (*arguments, torch.ones(H, requires_grad=True), 1e-6))
    release()


def test_what_the_equivalent_does_not_cover(modules: dict[str, ModuleType]) -> None:
    _, release = held(modules, "norm")
    x = torch.randn(3, H, requires_grad=True)
    with pytest.raises(NotImplementedError, match="no backward is known for layout='NHD'"):
        modules["kernels"].norm(x, torch.ones(H), layout="NHD")
    with pytest.raises(NotImplementedError, match=r"known where layout is given$"):
        modules["kernels"].norm(x, torch.ones(H), layout=torch.ones(H))
    modules["kernels"].norm(x.detach(), torch.ones(H), layout="NHD")
    release()


def test_what_is_no_symbol(modules: dict[str, ModuleType]) -> None:
    with pytest.raises(CannotAttach, match="nothing differentiable for it"):
        symbol("math:sqrt")


def test_as_part_of_a_plan(modules: dict[str, ModuleType]) -> None:
    from trainify.live.apply import apply
    from trainify.live.swap import Plan

    model = modules["model"].Model("name")
    x = torch.randn(3, H, requires_grad=True)
    apply(model, Plan(symbols=(f"{modules['kernels'].__name__}:norm",)))
    torch.testing.assert_close(gradient(model, x), right(x, model.weight, "name"))
    restore(model)
    assert gradient(model, x)[1] is None


def test_all_of_a_plan_are_looked_for_at_once(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look goes through all objects that the process has."""
    from trainify.live.apply import apply
    from trainify.live.swap import Plan

    looks: list[tuple[object, ...]] = []
    get_referrers = gc.get_referrers

    def counted(*objects: object) -> list[object]:
        looks.append(objects)
        return get_referrers(*objects)

    def looks_for(names: list[str]) -> int:
        looks.clear()
        plan = Plan(symbols=tuple(f"{modules['kernels'].__name__}:{name}" for name in names))
        kernels = [id(vars(modules["kernels"])[name]) for name in names]  # no list that holds them
        apply(model, plan)
        assert kernels != [id(vars(modules["kernels"])[name]) for name in names]
        restore(model)
        assert kernels == [id(vars(modules["kernels"])[name]) for name in names]
        return len(looks)

    model = modules["model"].Model("name")
    monkeypatch.setattr(gc, "get_referrers", counted)
    assert 0 < looks_for(["norm", "add_norm"]) <= looks_for(["norm"])


RESIDUAL = """
from .kernels import norm, add_norm

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x):
        residual = self.up(x)
        x = norm(residual, self.weight)
        for _ in range(3):
            x = x.sin()
            add_norm(x, residual, self.weight)
        return x + residual
"""


def test_norms_that_write_into_one_residual(tmp_path: Path) -> None:
    """What the first reads, the others write into."""
    from trainify.live.apply import apply
    from trainify.live.swap import Plan

    before = list(_registered)
    found = package(tmp_path, kernels=KERNELS, model=RESIDUAL)
    name = found["kernels"].__name__
    trainify.register(
        f"{name}.norm",
        "norm(Tensor x, Tensor weight, float eps=1e-6) -> Tensor",
        "rms_norm(x, weight, eps)",
    )
    trainify.register(
        f"{name}.add_norm",
        "add_norm(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps=1e-6) -> ()",
        "x, residual = fused_add_rms_norm(x, residual, weight, eps)",
    )
    model, x = found["model"].Model(), torch.randn(3, H)
    served = model(x)
    apply(model, Plan(symbols=(f"{name}:norm", f"{name}:add_norm")))
    _registered[:] = before
    out = model(x)
    assert torch.equal(out, served)
    ours = torch.autograd.grad(out.square().sum(), list(model.parameters()))
    residual = model.up(x)
    h = F.rms_norm(residual, (H,), model.weight, 1e-6)
    for _ in range(3):
        residual = h.sin() + residual
        h = F.rms_norm(residual, (H,), model.weight, 1e-6)
    right = (h + residual).square().sum()
    torch.testing.assert_close(ours, torch.autograd.grad(right, list(model.parameters())))
    restore(model)


HANDING_BACK = """
def scale_(x, w):
    x.data.mul_(w.data)
    return x

def both_(q, k, by):
    q.data.mul_(by)
    k.data.add_(by)
    return q, k

"""
HANDED_BACK = """
from . import kernels

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x):
        q, k = kernels.both_(kernels.scale_(self.a(x), self.weight), self.b(x), 2.0)
        return q * k
"""


@pytest.mark.parametrize("inputs", [True, False])
def test_kernels_that_hand_back_what_they_write(tmp_path: Path, inputs: bool) -> None:
    before = list(_registered)
    found = package(tmp_path, kernels=HANDING_BACK, model=HANDED_BACK)
    name = found["kernels"].__name__
    for schema, equivalent in [
        ("scale_(Tensor(a!) x, Tensor w) -> Tensor(a!)", "x = x * w"),
        (
            "both_(Tensor(a!) q, Tensor(b!) k, float by) -> (Tensor(a!), Tensor(b!))",
            "q, k = q * by, k + by",
        ),
    ]:
        trainify.register(f"{name}.{schema.partition('(')[0]}", schema, equivalent)
    model, x = found["model"].Model(), torch.randn(3, 8)
    served = model(x)
    trainify.trainify(model, *([x] if inputs else []))
    _registered[:] = before
    out = model(x)
    assert torch.equal(out, served)
    out.sum().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    w = model.weight
    q, k = model.a(x) * w * 2, model.b(x) + 2
    (q * k).sum().backward()
    for n, p in model.named_parameters():
        torch.testing.assert_close(gradients[n], p.grad, msg=n)
    restore(model)


def test_a_new_value_beside_what_is_handed_back(tmp_path: Path) -> None:
    before = list(_registered)
    text = "def scale_(x, w):\n    x.data.mul_(w.data)\n    return x.data.sum(-1), x\n"
    found = package(tmp_path, kernels=text, model="from . import kernels\n")
    schema = "scale_(Tensor(a!) x, Tensor w) -> (Tensor, Tensor(a!))"
    name = f"{found['kernels'].__name__}.scale_"
    trainify.register(name, schema, "_, x = ((x * w).sum(-1), x * w)")
    _, release = held(found, "scale_")
    _registered[:] = before
    x, w = torch.randn(3, H), torch.ones(H, requires_grad=True)
    y = x.clone()
    total, same = found["kernels"].scale_(y, w)
    assert same is y
    (total.sum() + same.sum()).backward()
    torch.testing.assert_close(w.grad, 2 * x.sum(0))
    release()


NEVER_RUN = """
from torch.nn import functional as F
from .kernels import norm

class Lazy(dict):
    def values(self):
        raise AssertionError("opened")

    __iter__ = values

TABLE = Lazy()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.ones(8))
        self.scale = None

    def forward(self, x):
        h = self.up(x)
        if self.scale is not None:
            h = F.scaled_mm(h, self.weight, self.scale, 0, self.scale, 0)
        return norm(h, self.weight) * (1 + len(TABLE))
"""


def test_kernels_that_no_op_can_be_made_of_and_never_run(tmp_path: Path) -> None:
    """A table that imports what is asked of it is not gone through by its own methods."""
    found = package(tmp_path, kernels=KERNELS, model=NEVER_RUN)
    name = f"{found['kernels'].__name__}.norm"
    trainify.register(name, "norm(Tensor x, Tensor weight) -> Tensor", "rms_norm(x, weight, 1e-6)")
    model = found["model"].Model()
    x = torch.randn(3, H)
    trainify.trainify(model, x)
    model(x).sum().backward()
    expected = F.rms_norm(model.up(x), (H,), model.weight, 1e-6).sum()
    for p, grad in zip(
        model.parameters(), torch.autograd.grad(expected, list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(p.grad, grad)
    restore(model)
