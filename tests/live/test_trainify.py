"""`trainify.trainify`: for each cut the lightest way that is right, or an error and nothing."""

from __future__ import annotations

import copy
import gc
import subprocess
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
from live_package import package
from torch import nn
from wrapped import ROUTES, assert_right, batch, build, is_cut

import trainify
from tests.each import in_turn
from trainify.live.swap import Plan, plan_of

Modules = dict[str, ModuleType]


def plan(model: nn.Module) -> Plan:
    found = plan_of(model)
    assert found is not None
    return found[1]


def done_by(model: nn.Module) -> set[str]:
    """The routes that were taken."""
    plans = [found[1] for found in map(plan_of, model.modules()) if found is not None]
    taken = {"dispatcher": "ops", "symbol": "symbols", "source": "methods"}
    return {route for route, name in taken.items() if any(getattr(p, name) for p in plans)}


@pytest.mark.parametrize("route", ROUTES)
def test_the_lightest_route_that_is_right(modules: Modules, route: str) -> None:
    model = build(modules, route)
    assert trainify.trainify(model, batch()) is model
    assert_right(modules, model)
    # With the weight's .data a backward for the op is not enough, and does no harm.
    assert done_by(model) - {"dispatcher"} == {route} - {"dispatcher"}
    assert trainify.audit(model, batch()).ok
    trainify.restore(model)
    assert is_cut(model)
    assert not trainify.audit(model, batch()).ok


def test_the_diff_names_what_no_source_was_changed_for(modules: Modules) -> None:
    for route, name in (("dispatcher", "_C::rms_norm"), ("symbol", "kernels.norm")):
        model = build(modules, route)
        trainify.trainify(model, batch())
        diff = trainify.source_diff(model)
        assert f"{name}\n" in diff and all(line[0] == "#" for line in diff.splitlines())
        trainify.trainify(model, batch(), strategy="flag")
        assert "#" not in trainify.source_diff(model)
        trainify.trainify(model)  # both: the comments do not keep git from applying the rest
        both = trainify.source_diff(model)
        assert name in both.partition("diff --git")[0]
        done = subprocess.run(
            ["git", "apply", "--numstat"], input=both.encode(), capture_output=True, check=True
        )
        assert b"model.py" in done.stdout
        trainify.restore(model)


@pytest.mark.parametrize(
    ("strategy", "route"), in_turn(["auto", "attach", "flag", "replace"], ROUTES)
)
def test_without_inputs(modules: Modules, route: str, strategy: str) -> None:
    model = build(modules, route)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainify.trainify(model, strategy=strategy)
    assert_right(modules, model)
    if strategy in ("flag", "replace"):
        assert done_by(model) == {"source"}
    trainify.restore(model)
    assert is_cut(model)


def test_models_of_transformers_stay_as_they_are() -> None:
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**size, intermediate_size=16, vocab_size=32)
    model = transformers.LlamaForCausalLM(config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainify.trainify(model)
    assert all(plan_of(module) is None for module in model.modules())


def test_what_is_clean_stays_as_it_is(modules: Modules) -> None:
    model = build(modules, "plain")
    trainify.trainify(model, batch())
    assert type(model) is modules["model"].Model
    assert trainify.source_diff(model) == ""


SCOPED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    @torch.inference_mode()
    def forward(self, x):
        return self.fc(x)
"""


@pytest.mark.parametrize("when", ["grad", "training"])
def test_when(tmp_path: Path, when: str) -> None:
    model = package(tmp_path, model=SCOPED)["model"].Model()
    trainify.trainify(model, batch(), when=when)
    assert model(batch()).requires_grad
    model.eval()
    assert model(batch()).requires_grad == (when == "grad")
    with torch.no_grad():
        assert not model.train()(batch()).requires_grad
    trainify.restore(model)
    assert not model(batch()).requires_grad


@pytest.mark.parametrize(
    "arguments, reason",
    [({"strategy": "fast"}, "auto, flag, replace, attach"), ({"when": "eval"}, "grad, training")],
)
def test_misuse(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"must be one of {reason}"):
        trainify.trainify(nn.Linear(2, 2), **arguments)


UNKNOWN = """
from trainify_fixture_kernels import softmax as kernel

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        h = self.fc(x)
        y = torch.empty_like(h)
        kernel(y, h, None, None)
        out = torch.empty_like(y)
        torch.ops._C.rms_norm(out, y, self.weight, 1e-6)
        return out
"""


def test_what_has_no_rule_is_named_and_nothing_stays(tmp_path: Path) -> None:
    module = package(tmp_path, model=UNKNOWN)["model"]
    model = module.Model()
    with pytest.raises(trainify.NotTrainable) as raised:
        trainify.trainify(model, batch())
    assert f"{module.__file__}:15: " in str(raised.value)
    assert {cut.line for cut in raised.value.report.cuts} == {15}
    assert set(raised.value.report.missing) == {"fc.weight", "fc.bias"}
    assert type(model) is module.Model
    assert model(batch()).grad_fn is None


def test_what_source_cannot_mend_is_warned_of(tmp_path: Path) -> None:
    text = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(8, 8) for _ in range(2)]
        self.fc = nn.Linear(8, 8)

    @torch.no_grad()
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.fc(x)

class Elsewhere(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(8, 8) for _ in range(2)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""
    module = package(tmp_path, model=text)["model"]
    model = module.Model()
    with pytest.warns(trainify.NotEverything, match=r"model\.py:7: TRN501") as warned:
        trainify.trainify(model)
    assert warned[0].filename == __file__
    assert "Elsewhere" not in str(warned[0].message) and "py:17" not in str(warned[0].message)
    assert model(batch()).requires_grad
    trainify.restore(model)


def test_no_source_at_all() -> None:
    space: dict[str, Any] = {"nn": nn, "torch": torch, "__name__": "elsewhere"}
    exec(UNKNOWN.replace("from trainify_fixture_kernels import softmax as kernel", ""), space)
    model = space["Model"]()
    model.forward_with = None
    with pytest.warns(trainify.NotEverything, match="no source, so there is nothing to rewrite"):
        trainify.trainify(model)
    assert plan(model).ops == ("_C::rms_norm",), "the op is known all the same"
    trainify.restore(model)
    with pytest.raises(trainify.NotTrainable, match="no source, so there is nothing to rewrite"):
        trainify.trainify(model, strategy="flag")


CACHED = """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.cache_k = torch.zeros(4, 8)

    def forward(self, x, start_pos=0):
        n = x.shape[0]
        k = self.fc(x)
        self.cache_k[start_pos : start_pos + n] = k
        keys = self.cache_k[: start_pos + n]
        return (x @ keys.T).softmax(-1) @ keys

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.first = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.ones(8))

    @torch.no_grad()
    def forward(self, x):
        h = self.first(x)  # where the gradient is cut first
        out = torch.empty_like(h)
        torch.ops._C.rms_norm(out, h, self.weight, 1e-6)
        return self.attention(out)
"""


def test_what_outlives_a_step(tmp_path: Path) -> None:
    """One step shows no fault of a cache that keeps the graph; the second one fails."""
    model = package(tmp_path, model=CACHED)["model"].Model()
    trainify.trainify(model, batch())
    for _ in range(3):
        model(batch()).square().sum().backward()
    assert not model.attention.cache_k.requires_grad
    trainify.restore(model)


@pytest.mark.parametrize("route", ["dispatcher", "symbol"])
def test_what_another_model_has_brought_about_is_needed_too(modules: Modules, route: str) -> None:
    """The second is right as long as the first is; it must not end with that."""
    first, second = build(modules, route), build(modules, route)
    trainify.trainify(first, batch())
    trainify.trainify(second, batch())
    trainify.restore(first)
    assert_right(modules, second)
    trainify.restore(second)
    assert is_cut(second)


TWO_USERS = """
from .norms import norm

class One(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return norm(x, self.weight)

class Two(One):
    pass
"""
NORM = """
def above(x):
    return x.data

def norm(x, weight):
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight.data, 1e-6)
    return out
"""


@pytest.mark.parametrize("route", ROUTES)
def test_what_only_a_dead_copy_needed_ends_with_the_next_restore(
    modules: Modules, route: str
) -> None:
    model = build(modules, route)
    trainify.trainify(model, batch())
    alive = copy.deepcopy(model)
    trainify.restore(model)
    assert_right(modules, alive)
    del alive
    gc.collect()
    trainify.restore(model)
    assert is_cut(model)


def test_one_rewriting_is_shared_by_models_of_two_kinds(tmp_path: Path) -> None:
    module = package(tmp_path, norms=NORM, model=TWO_USERS)["model"]
    first, second = module.One(), module.Two()
    trainify.trainify(first, batch(), strategy="replace")
    trainify.trainify(second, batch(), strategy="replace")
    trainify.restore(first)
    assert second(batch()).requires_grad
    trainify.restore(second)
    assert not second(batch()).requires_grad


BESIDE_IT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(8, 8) for _ in range(2)]
        self.fc = nn.Linear(8, 8)
        self.norm = Norm()

    halved = lambda self, x: torch.ops._C.rms_norm(x.clone(), x, x[0], 1e-6) or x / 2

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(self.halved(self.fc(x)))
"""


def test_the_error_names_only_what_concerns_it(tmp_path: Path) -> None:
    norm = UNKNOWN.replace("Model", "Norm").replace(
        "self.fc = nn.Linear(8, 8)", "self.fc = nn.Tanh()"
    )
    model = package(tmp_path, model=norm + BESIDE_IT)["model"].Model()
    with pytest.warns(trainify.NotEverything) as warned:
        trainify.trainify(model)
    assert "TRN501" in str(warned[0].message) and "a lambda has no body" in str(warned[0].message)
    trainify.restore(model)
    with pytest.raises(trainify.NotTrainable) as raised:
        trainify.trainify(model, batch())
    assert len(str(raised.value).splitlines()) == 2 and "model.py:15: " in str(raised.value)
    assert raised.value.remaining == raised.value.refused == ()


LAMBDA = """
from vllm._custom_ops import rms_norm

class Other(nn.Module):
    norm = lambda self, x, out: rms_norm(out, x, torch.ones(8), 1e-6)

class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        h = self.fc(x)
        y = torch.empty_like(h)
        rms_norm(y, h, torch.ones(8), 1e-6)
        return y + y.detach() * self.fc(y).detach()
"""


def test_lambdas_that_do_not_run_and_places_in_memory_are_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "fixtures" / "standins")
    module = package(tmp_path, model=LAMBDA)["model"]
    model = module.Half()
    with pytest.raises(trainify.NotTrainable) as raised:
        trainify.trainify(model, batch(), strategy="flag")
    said = str(raised.value)
    assert f"{module.__file__}:18: " in said and ":7: " not in said and "(trainify" not in said
    assert raised.value.remaining == ()
    trainify.trainify(model, strategy="flag")
    report = trainify.audit(model, batch())
    assert {cut.place for cut in report.cuts} == {f"{module.__file__}:18"}
    assert "(trainify" not in report.to_json()
    trainify.restore(model)


def test_a_class_of_no_module(tmp_path: Path) -> None:
    """What exec defines in a bare namespace is said to be of ``builtins``."""
    space: dict[str, Any] = {"nn": nn, "torch": torch}
    exec(SCOPED, space)
    model = space["Model"]()
    with pytest.raises(trainify.NotTrainable, match="no source, so there is nothing to rewrite"):
        trainify.trainify(model)
    with pytest.raises(trainify.NotTrainable, match="no source, so there is nothing to rewrite"):
        trainify.trainify(model, batch())


def test_an_interrupt_undoes_it(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainify.live import trainable

    calls = []

    def audit(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return trainify.audit(*args, **kwargs)

    monkeypatch.setattr(trainable, "audit", audit)
    model = build(modules, "source")
    with pytest.raises(KeyboardInterrupt):
        trainify.trainify(model, batch())
    assert type(model) is modules["model"].Model
    assert is_cut(model)


@torch.library.custom_op("trainify_tests::squash", mutates_args=())
def squash(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy().clip(-1, 1) ** 3)


class Squashed(nn.Module):
    """Calls an op by the name that its definition has in Python, as PyTorch's documents do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return squash(self.fc(x))


class SquashedByTable(Squashed):
    TABLE: ClassVar[dict[str, Any]] = {"squash": squash}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.TABLE["squash"](self.fc(x))


class SquashedByAttribute(Squashed):
    def __init__(self) -> None:
        super().__init__()
        self.act = squash

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.fc(x))


@pytest.mark.parametrize("model", [Squashed, SquashedByTable, SquashedByAttribute])
def test_custom_ops_by_their_names_in_python(modules: Modules, model: type[nn.Module]) -> None:
    trainify.register(
        "torch.ops.trainify_tests.squash",
        "squash(Tensor x) -> Tensor",
        "torch.clamp(x, -1, 1) ** 3",
    )
    net, x = model(), torch.randn(5, 4)
    trainify.trainify(net, x)
    net(x).sum().backward()
    weight, bias = net.fc.weight.detach(), net.fc.bias.detach()
    y = x @ weight.T + bias
    slope = torch.where(y.abs() <= 1, 3 * y**2, 0)
    torch.testing.assert_close(net.fc.weight.grad, slope.T @ x)
    torch.testing.assert_close(net.fc.bias.grad, slope.sum(0))
    trainify.restore(net)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        net(x).sum().backward()


CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint

class Model(nn.Module):
    def __init__(self, fused=True):
        super().__init__()
        self.up = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.rand(8) + 0.5)
        self.fused = fused

    def norm(self, residual):
        x = torch.tanh(residual)
        torch.ops._C.fused_add_rms_norm(x, residual, self.weight, 1e-6)
        return x, residual

    def plain(self, residual):
        residual = torch.tanh(residual) + residual
        return nn.functional.rms_norm(residual, (8,), self.weight, 1e-6), residual

    def forward(self, x):
        norm = self.norm if self.fused else self.plain
        x, residual = checkpoint(norm, self.up(x), use_reentrant=False)
        return x.sin() + residual
"""


def test_a_checkpoint_whose_input_a_kernel_writes_into(tmp_path: Path) -> None:
    """It is computed again from what was written, which only a rewritten call leaves alone."""
    module = package(tmp_path, model=CHECKPOINTED)["model"]
    model, x = module.Model(), torch.randn(3, 8)
    with trainify.attach("_C::fused_add_rms_norm"):
        report = trainify.audit(model, x)
        (cut,) = report.cuts
        assert cut.cause is trainify.Cause.SAVED and cut.function == "Model.norm"
        assert "checkpoint" in cut.message
    trainify.trainify(model, x)
    ours = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    right = module.Model(fused=False)
    right.load_state_dict(model.state_dict())
    assert trainify.audit(right, x).ok
    theirs = torch.autograd.grad(right(x).square().sum(), list(right.parameters()))
    torch.testing.assert_close(ours, theirs)
    trainify.restore(model)
