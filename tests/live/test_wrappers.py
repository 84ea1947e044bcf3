"""Routes by wrappers: a model that was made trainable is still the user's model."""

from __future__ import annotations

import copy
import functools
import gc
import io
import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from live_package import package
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchrun_options import torchrun
from wrapped import ROUTES, assert_right, batch, build, gradients, is_cut, loss_of, mend

import trainify
from tests.each import some
from tests.torch_process import TorchProcess
from trainify.catalog.own import _registered
from trainify.live.apply import restore
from trainify.live.swap import become

Modules = dict[str, ModuleType]


@pytest.fixture(params=ROUTES)
def route(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(modules: Modules, route: str) -> Iterator[nn.Module]:
    """Made trainable; restoring it in the end takes everything back."""
    made = build(modules, route)
    assert is_cut(made)
    mend(modules, made, route)
    yield made
    restore(made)
    assert is_cut(build(modules, route)), "something was left behind"


def each_once(*chosen: tuple[str, Any], of: Iterable[Any]) -> list[Any]:
    """Each route and each item of ``of``, chosen pairs of them; all pairs in the soak."""
    return some(chosen, itertools.product(ROUTES, of))


def test_itself(modules: Modules, route: str, model: nn.Module) -> None:
    plain = build(modules, route)
    assert_right(modules, model)
    assert isinstance(model, modules["model"].Model)
    assert all(isinstance(layer, modules["model"].Block) for layer in model.layers)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert repr(model) == repr(plain)
    plain.load_state_dict(model.state_dict())
    restore(model)
    assert type(model) is modules["model"].Model
    assert is_cut(model)
    mend(modules, model, route)
    assert_right(modules, model)


def test_serving_runs_the_kernel_alone(modules: Modules, route: str, model: nn.Module) -> None:
    model.eval()
    plain = build(modules, route).eval()
    with torch.no_grad():
        assert torch.equal(model(batch()), plain(batch()))
    with torch.inference_mode():
        assert torch.equal(model(batch()), plain(batch()))


def test_hooks(modules: Modules, model: nn.Module) -> None:
    seen: list[str] = []
    layer = model.layers[0]
    layer.register_forward_pre_hook(lambda m, a: seen.append("before"))
    layer.register_forward_hook(lambda m, a, o: seen.append("after"))
    layer.register_full_backward_hook(lambda m, i, o: seen.append("backward"))
    assert_right(modules, model)
    assert seen == ["before", "after", "backward"]


def test_functional_call(modules: Modules, model: nn.Module) -> None:
    x = batch()
    parameters = {k: v.detach().clone().requires_grad_() for k, v in model.named_parameters()}
    loss = torch.nn.functional.mse_loss(
        torch.func.functional_call(model, parameters, (x,)), x.roll(1, 0)
    )
    found = torch.autograd.grad(loss, list(parameters.values()))
    torch.testing.assert_close(list(found), list(gradients(model).values()))


def of_one(model: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    return torch.func.functional_call(model, parameters, (x,)).square().sum()


def test_transforms(modules: Modules, model: nn.Module) -> None:
    """``torch.func.grad``, and that under ``vmap``: gradients for each sample."""
    plain = build(modules, "plain")
    plain.load_state_dict(model.state_dict())
    parameters = {k: v.detach() for k, v in model.named_parameters()}
    for transform in (torch.func.grad, lambda f: torch.func.vmap(torch.func.grad(f), (None, 0))):
        found, expected = (
            transform(functools.partial(of_one, each))(parameters, batch())
            for each in (model, plain)
        )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": lambda m: _saved(m),
}


def _saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


@pytest.mark.parametrize(
    ("route", "how"),
    each_once(
        ("source", "copy"),
        ("source", "deepcopy"),
        ("dispatcher", "pickle"),
        ("symbol", "deepcopy"),
        ("symbol", "torch.save"),
        of=COPIES,
    ),
    indirect=["route"],
)
def test_copies(modules: Modules, model: nn.Module, how: str) -> None:
    made = COPIES[how](model)
    if how != "copy":  # which has the very same layers
        restore(model)
    assert_right(modules, made)
    restore(made), restore(model)
    assert is_cut(made)


@pytest.mark.parametrize(
    ("route", "reentrant"),
    each_once(("dispatcher", True), ("symbol", False), ("source", True), of=(True, False)),
    indirect=["route"],
)
def test_checkpointing(modules: Modules, model: nn.Module, reentrant: bool) -> None:
    model.zero_grad()
    h = batch().requires_grad_()
    for layer in model.layers:
        h = h + checkpoint(layer, h, use_reentrant=reentrant)
    torch.nn.functional.mse_loss(h, batch().roll(1, 0)).backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    torch.testing.assert_close(found, gradients(model))


@pytest.mark.parametrize(
    ("route", "first"),
    each_once(
        ("dispatcher", "compile"),
        ("symbol", "trainify"),
        ("source", "in place"),
        of=("trainify", "compile", "in place"),
    ),
    indirect=["route"],
)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compile(modules: Modules, route: str, model: nn.Module, first: str, backend: str) -> None:
    if first == "compile":
        restore(model)
        compiled = torch.compile(model, backend=backend)
        assert is_cut(compiled), "this runs what is compiled"
        mend(modules, model, route)
    elif first == "in place":
        model.compile(backend=backend, fullgraph=True)
        compiled = model
    else:
        compiled = torch.compile(model, backend=backend, fullgraph=True)
    assert_right(modules, compiled)
    torch._dynamo.reset()


@pytest.mark.parametrize("route", some(["symbol"], ROUTES), indirect=True)
def test_compiled_model_itself(modules: Modules, route: str) -> None:
    """What torch.compile returns is handed over."""
    compiled = torch.compile(build(modules, route), backend="aot_eager", fullgraph=True)
    mend(modules, compiled, route)
    assert_right(modules, compiled)
    restore(compiled)
    assert is_cut(compiled._orig_mod)
    torch._dynamo.reset()


# -- adapters -------------------------------------------------------------------------------------


def lora(model: nn.Module) -> Any:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["up"], init_lora_weights=False)
    return peft.get_peft_model(model, config)


@pytest.mark.parametrize(
    ("route", "first"),
    each_once(
        ("dispatcher", "peft"), ("symbol", "trainify"), ("source", "peft"), of=("trainify", "peft")
    ),
    indirect=["route"],
)
def test_lora(modules: Modules, route: str, model: nn.Module, first: str) -> None:
    if first == "peft":
        restore(model)
        adapted = lora(model)
        mend(modules, adapted, route)
    else:
        adapted = lora(model)
    adapted.eval()  # the base is frozen, and nothing has dropout: gradients all the same
    loss_of(adapted, batch()).backward()
    found = {n: p.grad for n, p in adapted.named_parameters() if p.requires_grad}
    assert len(found) == 4 and all(g is not None and g.abs().sum() > 0 for g in found.values())
    plain = lora(build(modules, "plain")).eval()
    plain.load_state_dict(adapted.state_dict())
    loss_of(plain, batch()).backward()
    expected = {n: p.grad for n, p in plain.named_parameters() if p.requires_grad}
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    restore(adapted)


# -- accelerate -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "first"),
    each_once(
        ("dispatcher", "trainify"), ("symbol", "hook"), ("source", "hook"), of=("trainify", "hook")
    ),
    indirect=["route"],
)
def test_accelerate_hooks(modules: Modules, route: str, model: nn.Module, first: str) -> None:
    """They keep the bound forward of before, and put it back in the end."""
    hooks = pytest.importorskip("accelerate.hooks")
    calls: list[str] = []

    class Hook(hooks.ModelHook):  # type: ignore[misc, name-defined]
        def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            calls.append("hook")
            return args, kwargs

    if first == "hook":
        restore(model)
    for layer in model.layers:
        hooks.add_hook_to_module(layer, Hook())
    if first == "hook":
        mend(modules, model, route)
    assert_right(modules, model)
    assert len(calls) == 2
    for layer in model.layers:
        hooks.remove_hook_from_module(layer)
    assert_right(modules, model)
    assert len(calls) == 2
    restore(model)
    assert is_cut(model)


SERVED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    @torch.inference_mode()
    def forward(self, x):
        h = self.up(x)
        out = torch.empty_like(h)
        torch.ops._C.rms_norm(out, h, self.weight.data, 1e-6)
        return self.down(out)
"""


def _itself(model: nn.Module) -> None:
    model.forward = model.forward


def _partly(model: nn.Module) -> None:
    model.forward = functools.partial(model.forward)


def _kept_beside(model: nn.Module) -> None:
    model.before = model.forward  # type: ignore[assignment]
    model.forward = lambda x: model.before(x)


def _hooked(model: nn.Module) -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    hooks.add_hook_to_module(model, hooks.AlignDevicesHook(execution_device="cpu"))


@pytest.mark.parametrize(
    ("hold", "strategy"),
    some(
        [(_itself, "auto"), (_partly, "flag"), (_kept_beside, "auto"), (_hooked, "flag")],
        itertools.product([_itself, _partly, _kept_beside, _hooked], ["auto", "flag"]),
    ),
)
def test_a_model_that_holds_its_own_forward(
    tmp_path: Path, hold: Callable[[nn.Module], None], strategy: str
) -> None:
    """Where that is the method of its class, it is rewritten with the class, and put back."""
    model = package(tmp_path, model=SERVED)["model"].Model()
    hold(model)
    assert not model(batch()).requires_grad
    trainify.trainify(model, batch(), strategy=strategy)
    weights = list(model.parameters())
    found = torch.autograd.grad(model(batch()).square().sum(), weights)
    normed = torch.nn.functional.rms_norm(model.up(batch()), (8,), model.weight, 1e-6)
    expected = torch.autograd.grad(model.down(normed).square().sum(), weights)
    torch.testing.assert_close(found, expected)
    gc.collect()  # an audit's copy, which holds its own forward
    restore(model)
    assert not model(batch()).requires_grad
    assert trainify.audit(model, batch()).missing


def test_what_a_module_holds_of_another_one_stays() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    class Changed(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    model, other = Model(), Model()
    model.teach = functools.partial(other.forward)  # type: ignore[assignment]
    model.learn = functools.partial(model.forward)  # type: ignore[assignment]
    become(model, Changed)
    zero = torch.zeros(1)
    assert model.teach(zero) == 0 and model.learn(zero) == 1


PRECISE = """
class Model(nn.Module):
    def __init__(self, served=True):
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.served = served

    def forward(self, x):
        x = self.up(x).float()
        if not self.served:
            return self.down(nn.functional.rms_norm(x, (8,), self.weight, 1e-6))
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, self.weight.data, 1e-6)
        return self.down(out)
"""


@pytest.mark.parametrize(
    ("first", "inputs"),
    some(
        {("trainify", True), ("prepare", False)},
        itertools.product(("trainify", "prepare"), (True, False)),
    ),
)
def test_accelerate_in_mixed_precision(tmp_path: Path, first: str, inputs: bool) -> None:
    """It puts autocast and a cast of the result around the forward that it finds."""
    accelerate = pytest.importorskip("accelerate")
    model = package(tmp_path, model=PRECISE)["model"].Model()
    right = type(model)(served=False)
    right.load_state_dict(model.state_dict())
    given = [batch()] if inputs else []
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    try:
        if first == "trainify":
            trainify.trainify(model, *given)
        model, right = accelerator.prepare(model, right)
        if first == "prepare":
            assert trainify.audit(model, batch()).missing
            trainify.trainify(model, *given)
    finally:
        accelerate.state.AcceleratorState._reset_state(True)
    assert model(batch()).dtype == torch.float32
    assert trainify.audit(model, batch()).ok
    for each in (model, right):
        each(batch()).square().sum().backward()
    for ours, theirs in zip(model.parameters(), right.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=2e-2, atol=1e-3)
    restore(model)
    gc.collect()  # an audit's copy, which holds its own forward
    restore(model)
    assert trainify.audit(model, batch()).missing


# -- other processes ------------------------------------------------------------------------------

FRESH = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
from live_kernels import register_kernels
register_kernels()
import importlib, torch, wrapped
found = {{name: importlib.import_module("{package}." + name) for name in ("kernels", "model")}}
wrapped.register(found)
model = torch.load({file!r}, weights_only=False)
wrapped.assert_right(found, model)
print("right")
"""


def run(script: str, tmp_path: Path, *command: str) -> str:
    file = tmp_path / "process.py"
    file.write_text(script)
    done = subprocess.run(
        [sys.executable, *command, str(file)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_fresh_process(
    modules: Modules, model: nn.Module, tmp_path: Path, torch_process: TorchProcess
) -> None:
    torch.save(model, tmp_path / "model.pt")
    script = FRESH.format(
        root=str(tmp_path),
        tests=str(Path(__file__).parent),
        package=modules["model"].__package__,
        file=str(tmp_path / "model.pt"),
    )
    file = tmp_path / "process.py"
    file.write_text(script)
    done = torch_process.run(file, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


DISTRIBUTED = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
from live_kernels import register_kernels
register_kernels()
import importlib, os, torch, wrapped
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from trainify.live.apply import restore
found = {{name: importlib.import_module("{package}." + name) for name in ("kernels", "model")}}
wrapped.register(found)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")


def steps(model, wrap, order, route):
    if order == "trainify":
        wrapped.mend(found, model, route)
    model = wrap(model)
    if order == "wrap":
        wrapped.mend(found, model, route)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses = []
    for i in range(3):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * i + rank))
        loss = wrapped.loss_of(model, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if order != "plain":
        restore(model)
    return losses


def ddp(model):
    return DistributedDataParallel(model)


def fsdp(model):
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def recomputing(wrap):
    def both(model):
        model.recomputes = True
        return wrap(model)
    return both


def compiling(wrap):
    def both(model):
        for layer in model.layers:
            layer.compile(backend="aot_eager")
        return wrap(model)
    return both


for name, wrap in {wraps}.items():
    expected = steps(wrapped.build(found, "plain"), wrap, "plain", "")
    for route in wrapped.ROUTES:
        for order in ("trainify", "wrap"):
            got = steps(wrapped.build(found, route), wrap, order, route)
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
            if rank == 0:
                print(name, route, order, flush=True)
dist.destroy_process_group()
"""
WRAPS = {
    "ddp": "{'ddp': ddp, 'ddp, checkpoint': recomputing(ddp)}",
    "fsdp": "{'fsdp': fsdp, 'fsdp, checkpoint': recomputing(fsdp)}",
    "compiled": "{'ddp, compile': compiling(ddp), 'fsdp, compile': compiling(fsdp)}",
}


@pytest.mark.slow
@pytest.mark.parametrize("wraps", WRAPS)
def test_in_two_processes(modules: Modules, tmp_path: Path, wraps: str) -> None:
    """Three steps of AdamW, each loss as without kernels."""
    script = DISTRIBUTED.format(
        root=str(tmp_path),
        tests=str(Path(__file__).parent),
        package=modules["model"].__package__,
        wraps=WRAPS[wraps],
    )
    assert len(run(script, tmp_path, *torchrun()).splitlines()) == 2 * len(ROUTES) * 2


# -- adapters on quantized weights ----------------------------------------------------------------

QUANTIZED = """
class Int8Linear(nn.Module):
    '''Weights as codes, and a scale for each row, as a serving engine loads them.'''

    def __init__(self, linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        scale = linear.weight.detach().abs().amax(1) / 127
        self.register_buffer("scales", scale)
        self.register_buffer("qweight", (linear.weight.detach() / scale[:, None]).round().char())

    def forward(self, x):
        return torch.ops.serving_tests.int8_linear(x, self.qweight, self.scales)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(8, 8)
        self.up = Int8Linear(nn.Linear(8, 16))
        self.down = Int8Linear(nn.Linear(16, 8))

    @torch.inference_mode()
    def forward(self, x):
        return x + self.down(self.up(self.q_proj(x)).relu())
"""


@pytest.fixture
def int8_kernel() -> Iterator[None]:
    library = torch.library.Library("serving_tests", "FRAGMENT")
    library.define("int8_linear(Tensor x, Tensor qweight, Tensor scales) -> Tensor")

    def kernel(x: torch.Tensor, qweight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return (x.detach() @ qweight.to(x.dtype).t()) * scales

    library.impl("int8_linear", kernel, "CPU")
    before = list(_registered)
    trainify.register(
        "torch.ops.serving_tests.int8_linear",
        "int8_linear(Tensor x, Tensor qweight, Tensor scales) -> Tensor",
        "(x @ qweight.to(x.dtype).t()) * scales",
    )
    yield
    _registered[:] = before
    library._destroy()


@pytest.mark.parametrize(
    ("first", "target"),
    some(
        {("trainify", "up"), ("peft", "q_proj")},
        itertools.product(("trainify", "peft"), ("q_proj", "up")),
    ),
)
def test_lora_on_a_quantized_model(
    tmp_path: Path, int8_kernel: None, first: str, target: str
) -> None:
    """Adapters before, and on, layers whose kernel knows no backward; the base stays frozen."""
    peft = pytest.importorskip("peft")
    module = package(tmp_path, model=QUANTIZED)["model"]
    torch.manual_seed(0)
    model = nn.Sequential(module.Block(), module.Block())
    x = batch()
    with torch.no_grad():
        served = model(x)
    config = peft.LoraConfig(r=2, target_modules=[target], init_lora_weights=False)
    config._register_custom_module({module.Int8Linear: adapted()})
    if first == "trainify":
        trainify.trainify(model)
        model = peft.get_peft_model(model, config)
    else:
        model = peft.get_peft_model(model, config)
        trainify.trainify(model, x)
    model.eval()
    loss_of(model, x).backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert len(found) == 4
    h = x
    for block in model.base_model.model:
        h = h + in_torch(block.down, in_torch(block.up, in_torch(block.q_proj, h)).relu())
    loss = torch.nn.functional.mse_loss(h, x.roll(1, 0))
    wanted = {n: p for n, p in model.named_parameters() if p.requires_grad}
    expected = torch.autograd.grad(loss, list(wanted.values()))
    torch.testing.assert_close(list(found.values()), list(expected), rtol=1e-5, atol=1e-7)
    with model.disable_adapter(), torch.no_grad():
        assert torch.equal(model(x), served), "the kernels of before"
    trainify.restore(model)


def test_what_was_registered_has_to_be_before_it_is_loaded(
    tmp_path: Path, int8_kernel: None
) -> None:
    """Otherwise the same source is rewritten to something else, which trains in part."""
    module = package(tmp_path, model=QUANTIZED)["model"]
    model = nn.Sequential(module.Block())
    trainify.trainify(model)
    saved = pickle.dumps(model)
    known, _registered[:] = list(_registered), []
    with pytest.warns(trainify.NotReapplied, match="trainify.register, and has to be before"):
        pickle.loads(saved)
    _registered[:] = known
    loaded, x = pickle.loads(saved), batch().requires_grad_()
    loss_of(loaded, x).backward()
    assert x.grad is not None and x.grad.any()


def adapted() -> type:
    """What PEFT is told to put around a layer that it does not know: W x + B A x."""
    from peft.tuners.lora import LoraLayer

    class Adapted(nn.Module, LoraLayer):  # type: ignore[misc]
        def __init__(self, base: nn.Module, adapter: str, r: int, lora_alpha: int, **kwargs: Any):
            nn.Module.__init__(self)
            LoraLayer.__init__(self, base)
            self._active_adapter = adapter
            self.update_layer(adapter, r, lora_alpha, config=kwargs["config"])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = self.base_layer(x)
            return result if self.disable_adapters else result + adapter_of(self, x)

    return Adapted


def adapter_of(layer: Any, x: torch.Tensor) -> torch.Tensor:
    (name,) = layer.lora_A
    return torch.as_tensor(layer.lora_B[name](layer.lora_A[name](x)) * layer.scaling[name])


def in_torch(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """A layer of the quantized model without its kernel."""
    if hasattr(layer, "base_layer"):
        return in_torch(layer.base_layer, x) + adapter_of(layer, x)
    if hasattr(layer, "qweight"):
        return (x @ layer.qweight.float().t()) * layer.scales
    return torch.nn.functional.linear(x, layer.weight, layer.bias)
