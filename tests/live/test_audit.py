"""What an audit promises beside its verdicts."""

from __future__ import annotations

import copy
import dataclasses
import gc
import random
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import faults  # isort: skip  (in this folder)
import sound  # isort: skip
import trainify
from trainify import audit
from trainify.live.audit import Cause, Flow

X = torch.randn(3, faults.D, generator=torch.Generator().manual_seed(0))


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


# -- the model stays as it was --------------------------------------------------------------------


class Everything(faults.Layer):
    """Changes all that a forward can change."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.norm = nn.BatchNorm1d(faults.D)
        self.cache: list[Tensor] = []
        self.by_name: dict[str, Any] = {"memory": torch.zeros(3, faults.D), "inner": [0]}
        self.calls = 0
        self.array = numpy.zeros(2)
        self.generator = torch.Generator().manual_seed(1)
        self.fail = False

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.calls += 1
        self.array += 1
        y = self.norm(x) * self.weight + torch.randn(1, generator=self.generator)
        self.cache.append(y)
        self.by_name["memory"].copy_(y)
        self.by_name["inner"].append(self.calls)
        self.weight.data.mul_(1.01)
        if self.fail and self.calls % 2 == 1 and torch.is_grad_enabled():
            raise KeyError("on purpose")
        return F.dropout(y, 0.5) * random.random() * numpy.random.rand()


class Codes(nn.Parameter):
    """Codes whose scales are an attribute of theirs until a first forward, as in bitsandbytes."""

    scales: Tensor | None


class Quantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codes = Codes(torch.randint(-9, 9, (faults.D, faults.D)).char(), requires_grad=False)
        self.codes.scales = torch.rand(faults.D, 1) + 0.5
        self.scales: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.scales is None:
            self.scales, self.codes.scales = self.codes.scales, None
        assert self.scales is not None
        return x @ (self.codes.to(x.dtype) * self.scales.to(x.dtype))


def test_what_tensors_hold_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(faults.D, faults.D), Quantized())
    codes = model[1].codes
    expected = model[0](X) @ (codes * codes.scales)
    assert audit(model, X).ok
    assert codes.scales is not None and model[1].scales is None
    torch.testing.assert_close(model(X), expected)


@pytest.mark.parametrize("fails", [False, True])
def test_model_is_left_as_it_was(fails: bool) -> None:
    model = faults.Model(Everything)
    layer = model.layers[0]
    layer.fail = fails
    gradient = torch.ones_like(layer.weight)
    layer.weight.grad = gradient
    memory = layer.by_name["memory"]
    before, states = bits(model), (torch.get_rng_state(), random.getstate())
    numbers = numpy.random.get_state()[1].copy()
    own = layer.generator.get_state()
    if fails:
        with pytest.raises(KeyError, match="on purpose"):
            audit(model, X)
    else:
        audit(model, X)
    after = bits(model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert layer.weight.grad is gradient and model.head.weight.grad is None
    assert (layer.cache, layer.calls, layer.array.tolist()) == ([], 0, [0, 0])
    assert layer.by_name["memory"] is memory and not memory.any() and not memory.requires_grad
    assert layer.by_name["inner"] == [0]
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert (numpy.random.get_state()[1] == numbers).all()
    assert torch.equal(layer.generator.get_state(), own)
    assert "apply" not in torch.autograd.function._SingleLevelFunction.__dict__
    assert torch.is_grad_enabled()


def test_inputs_are_left_as_they_were() -> None:
    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(faults.D, faults.D)

        def forward(self, x: Tensor, cache: dict[str, Tensor]) -> Tensor:
            y = self.fc(x) + cache["x"]
            cache["x"] = y.detach()  # trainify: stop-grad
            return y

    cache = {"x": torch.zeros(3, faults.D)}
    kept = cache["x"]
    assert audit(Caching(), X, cache).ok
    assert cache["x"] is kept and not kept.any()


def test_globals_are_left_as_they_were() -> None:
    before = faults.WORKSPACE.clone()
    assert not audit(faults.Model(faults.OpIntoAGlobal), X).ok
    assert torch.equal(faults.WORKSPACE, before)


# -- the loss -------------------------------------------------------------------------------------


def test_a_loss_is_part_of_the_step() -> None:
    model = faults.Model(sound.Dropout)
    target = torch.randn(3, 4)
    report = audit(model, X, loss=lambda out: F.mse_loss(out, target))
    assert report.ok
    with torch.random.fork_rng():
        assert report.loss == pytest.approx(F.mse_loss(model(X), target).item())
    cut = audit(model, X, loss=lambda out: F.mse_loss(out.detach(), target)).cuts[0]
    assert cut.cause is Cause.DETACH and cut.path == __file__


def test_output_with_a_loss() -> None:
    class WithLoss(faults.Model):
        def forward(self, x: Tensor) -> Any:
            out = super().forward(x)
            return {"loss": out.square().mean(), "logits": out.detach()}

    assert audit(WithLoss(sound.Dropout), X).ok
    assert not audit(WithLoss(faults.OpOut), X).ok


def test_no_loss_to_be_had() -> None:
    class Ids(faults.Model):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).argmax(-1)

    with pytest.raises(ValueError, match="give audit a loss"):
        audit(Ids(sound.Dropout), X)
    with pytest.raises(ValueError, match="one element"):
        audit(faults.Model(sound.Dropout), X, loss=lambda out: out)


# -- what is allowed ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "allow", ["faults.py", "live/faults.py", "Detach.forward", "layers.*", "faults.py:*"]
)
def test_allowed_places(allow: str) -> None:
    model = faults.Model(faults.Detach)
    assert not audit(model, X).ok
    assert audit(model, X, allow=[allow]).ok


def test_others_are_not_allowed() -> None:
    model = faults.Model(faults.Detach)
    report = audit(model, X, allow=["other.py", "Other.forward", "head", "faults.py:1"])
    assert not report.ok
    named = "'other.py', 'Other.forward', 'head', 'faults.py:1'"
    assert any(
        note.startswith(f"no gradient ends at what is allowed by {named}") for note in report.notes
    )


def test_what_is_allowed_and_matches_is_not_told() -> None:
    model = faults.Model(faults.Detach)
    report = audit(model, X, allow=["faults.py", "layers.*", "stale.py:3"])
    assert report.ok
    (note,) = [note for note in report.notes if "allowed" in note]
    assert "by 'stale.py:3': it may" in note


# -- parameters -----------------------------------------------------------------------------------


def test_parameters_are_told_apart() -> None:
    report = audit(faults.Model(faults.OpOut), X)
    upstream = {"embed.weight", "embed.bias", "fcs.0.weight", "fcs.0.bias"}
    assert set(report.missing) == {"layers.0.weight", "layers.1.weight"}
    assert set(report.wrong) == upstream
    assert report.trainable == 10 and report.frozen == () and report.unused == ()


def test_unused_and_frozen_are_no_faults() -> None:
    model = faults.Model(sound.Unused)
    model.embed.requires_grad_(False)
    report = audit(model, X)
    assert report.ok
    assert report.unused == ("layers.0.other", "layers.1.other")
    assert report.frozen == ("embed.weight", "embed.bias")


def test_nothing_to_train_is_said() -> None:
    report = audit(faults.Model(sound.Dropout).requires_grad_(False), X)
    assert report.ok and any("nothing to train" in note for note in report.notes)


def test_a_weight_in_a_buffer_is_said() -> None:
    class Kept(sound.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kernel", torch.randn(faults.D, faults.D))
            self.register_buffer("mean", torch.randn(faults.D))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x * self.weight, self.kernel) - self.mean

    report = audit(faults.Model(Kept), X)
    assert report.ok
    assert report.notes == ("buffers that are used as weights do not learn: layers.*.kernel",)


def test_gradients_off_all_over_is_said() -> None:
    with torch.no_grad():
        report = audit(faults.Model(sound.Dropout), X)
    assert report.ok and any("switched off where audit was called" in n for n in report.notes)


def test_passages_show_where_it_ends() -> None:
    report = audit(faults.Model(faults.Detach), X)
    flows = {passage.module: passage.flow for passage in report.passages}
    assert flows["layers.1"] is Flow.ENDS and flows["layers.0"] is Flow.ENDS
    assert flows["head"] is Flow.FLOWS and flows["fcs.1"] is Flow.FLOWS
    kinds = {passage.module: passage.type for passage in report.passages}
    assert kinds[""] == "Model" and kinds["layers.0"] == "Detach"


def test_a_loss_that_no_gradient_reaches_is_not_ok() -> None:
    class Thresholded(faults.Model):
        def forward(self, x: Tensor) -> Tensor:
            return (super().forward(x) > 0).float()

    report = audit(Thresholded(sound.Dropout), X)
    assert not report.ok and "no parameter gets a gradient" in str(report)


def test_what_cannot_be_repeated_is_not_judged() -> None:
    class Unrepeatable(sound.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            generator = torch.Generator()
            generator.seed()  # from the system
            used = x * self.weight * (self.other < 1)
            return used + torch.randn(x.shape, generator=generator)

    report = audit(faults.Model(Unrepeatable), X, proof=False)
    assert report.unused == () and report.lost == ("layers.0.other", "layers.1.other")
    assert not report.ok and "cannot be told whether a gradient is due" in report.error
    (note,) = report.notes
    assert "the loss is not the same in two equal runs" in note and "test_audit.py" in note


def test_weights_changed_behind_torch_are_the_same_in_each_run() -> None:
    class Growing(sound.Layer):
        def forward(self, x: Tensor) -> Tensor:
            self.weight.data.mul_(1.1)
            return x * self.weight + x.detach().mean().item() * 0

    model = faults.Model(Growing)
    before = bits(model)
    report = audit(model, X)
    assert report.ok, str(report)
    assert all(torch.equal(value, before[name]) for name, value in bits(model).items())


def test_rounding_is_no_influence() -> None:
    """In half precision, by a model that cannot be copied to compute it in more."""

    class Single(sound.MaximumSubtracted):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("there is one only")

    for seed in range(4):
        torch.manual_seed(seed)
        model = faults.Model(Single).bfloat16()
        assert audit(model, torch.randn(3, faults.D).bfloat16()).ok


# -- types and wrappers ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_types(dtype: torch.dtype) -> None:
    for layer in (faults.Detach, faults.NoGradBlock, faults.WeightData, faults.Item):
        report = audit(faults.Model(layer).to(dtype), X.to(dtype))
        assert [cut.cause for cut in report.cuts] == [Cause[layer.cause]], str(report)
    for right in (sound.Dropout, sound.Norms, sound.OwnBackward, sound.MaximumSubtracted):
        report = audit(faults.Model(right).to(dtype), X.to(dtype))
        assert report.ok and report.proof.startswith("float64"), str(report)


def test_compiled_submodules_are_looked_into() -> None:
    model = faults.Model(faults.OpOut)
    model.layers[0] = torch.compile(model.layers[0], backend="eager")
    (cut,) = audit(model, X).cuts
    assert cut.op == "_C::rms_norm" and len(cut.modules) == 2


def test_attached_ops_are_right() -> None:
    model = faults.Model(faults.OpOut)
    with trainify.attach("_C::rms_norm"):
        report = audit(model, X)
    assert report.ok, str(report)
    assert not audit(model, X).ok


def test_backward_that_raises_is_placed() -> None:
    report = audit(faults.Model(faults.BackwardAbsent), X)
    assert report.error.startswith("backward raises NotImplementedError") and report.error in str(
        report
    )
    assert report.cuts[0].op == "faults.ForwardOnly"
    assert set(report.missing) >= {"layers.0.weight", "embed.weight"}


def test_torchs_own_backward_that_raises_is_placed() -> None:
    class Penalized(faults.Model):
        def forward(self, x: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            y = self.fcs[0](x)[None, None]
            z = F.scaled_dot_product_attention(y, y, y)  # its gradient has none
            (slope,) = torch.autograd.grad(z.sum(), x, create_graph=True)
            return self.head(slope)

    report = audit(Penalized(sound.Dropout), X)
    assert not report.ok and "is not implemented" in report.error
    (cut,) = report.cuts
    assert cut.path == __file__ and cut.cause is Cause.BACKWARD


# -- finite differences ---------------------------------------------------------------------------


def test_a_model_without_cuts_is_proven() -> None:
    report = audit(faults.Model(sound.OwnBackward), X)
    assert report.ok and report.proof.startswith("float64: the loss changes along 10 parameters")
    assert audit(faults.Model(sound.OwnBackward), X, proof=False).proof == ""


def test_numbers_alone_do_not_accuse() -> None:
    class Hooked(sound.Layer):
        def forward(self, x: Tensor) -> Tensor:
            weight = self.weight * 1
            if weight.grad_fn is not None:
                weight.grad_fn.register_prehook(lambda gradients: (gradients[0] * 1.01,))
            return x * weight

    report = audit(faults.Model(Hooked), X)
    assert report.ok and not report.proof
    (note,) = report.notes
    assert note.startswith("the gradient of layers.*.weight is not the derivative of the loss (")
    assert "Numbers alone accuse nobody" in note


def test_a_hook_that_stops_gradients_is_named() -> None:
    class Hooked(sound.Layer):
        def forward(self, x: Tensor) -> Tensor:
            weight = self.weight * 1
            if weight.requires_grad:
                weight.register_hook(torch.zeros_like)
            return x * weight

    report = audit(faults.Model(Hooked), X)
    assert report.ok
    (note,) = report.notes
    assert note.startswith("gradients of zeros alone arrive at layers.*.weight; ")
    assert "made another by a hook (" in note and "test_audit.py:" in note


def test_hooks_that_change_nothing_are_not_mentioned() -> None:
    class Hooked(sound.Layer):
        def forward(self, x: Tensor) -> Tensor:
            weight = self.weight * 1
            if weight.requires_grad:
                weight.register_hook(lambda gradient: gradient.clamp(-1e6, 1e6))
                weight.register_hook(lambda gradient: None)
            return x * weight

    report = audit(faults.Model(Hooked), X)
    assert report.ok and report.proof and not report.notes


@pytest.mark.parametrize(
    "layer",
    [
        sound.StraightThrough,
        sound.SaidToStop,
        sound.GradientReversal,
        sound.Constrained,
        sound.Hooked,
        sound.HookedInPlace,
    ],
)
def test_what_is_meant_is_said_to_be_meant(layer: type[nn.Module]) -> None:
    (note,) = audit(faults.Model(layer), X).notes
    assert "as it should be: gradients are stopped or shaped on purpose at" in note
    assert "sound.py:" in note


def test_a_model_may_refuse_float64() -> None:
    class Refuses(sound.Layer):
        def forward(self, x: Tensor) -> Tensor:
            if x.dtype == torch.float64:
                raise TypeError("only float32")
            return x * self.weight

    report = audit(faults.Model(Refuses), X)
    assert report.proof.startswith("float32") and "only float32" in report.proof


# -- the report -----------------------------------------------------------------------------------


def test_no_tensor_is_kept() -> None:
    """However many layers there are, no more of their results are alive than without an audit."""
    shape = (64, 977)
    most = []

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            x = (x * self.scale).detach().expand(shape) * 1  # trainify: stop-grad
            for _ in range(20):
                x = x + 1
            most.append(
                sum(type(each) is Tensor and each.shape == shape for each in gc.get_objects())
            )
            return x.sum() * self.scale

    deep, x = Deep(), torch.randn(1, 977)
    deep(x)
    audit(deep, x, proof=False)
    assert len(most) >= 3 and max(most) <= most[0]


def test_progress_is_told() -> None:
    told: list[str] = []
    audit(faults.Model(faults.PybindOut), X, progress=told.append)
    assert told[0] == "forward and backward" and "forward, line by line" in told


def test_report_does_not_hold_the_model() -> None:
    report = audit(faults.Model(faults.OpOut), X)
    assert copy.deepcopy(report) == report
    assert "rms_norm" in str(report) and "rms_norm" in report.to_json()


@dataclasses.dataclass(slots=True)
class Counter:
    calls: int = 0


class OwnState(sound.Layer):
    """What it holds is no module's, no tensor, and has no ``__dict__``."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.python = numpy.random.default_rng(0), random.Random(0)
        self.held = [Counter()]

    def forward(self, x: Tensor) -> Tensor:
        self.held[0].calls += 1
        noise = torch.from_numpy(self.numbers.random(faults.D)).float() + self.python.random()
        return x * self.weight * noise * self.held[0].calls


class OwnStateCut(OwnState):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach())


def test_generators_and_slots_are_put_back() -> None:
    model = faults.Model(OwnState)
    layer = model.layers[0]
    states = layer.numbers.bit_generator.state, layer.python.getstate()
    report = audit(model, X)
    assert report.ok and report.proof.startswith("float64"), str(report)
    assert (layer.numbers.bit_generator.state, layer.python.getstate()) == states
    assert layer.held[0].calls == 0
    (cut,) = audit(faults.Model(OwnStateCut), X).cuts
    assert cut.op == "torch.Tensor.detach"


def test_within_inference_mode_gradients_are_held_against_the_loss() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(3, 4)
    with torch.inference_mode():
        report = audit(model, x)
        assert torch.is_inference_mode_enabled() and not torch.is_grad_enabled()
    assert report.ok
    assert report.proof.startswith("float64: the loss changes along 4 parameters as their ")
    (note,) = report.notes
    assert note.startswith("gradients were switched off where audit was called")


def test_a_single_parameter_is_one() -> None:
    report = audit(nn.Linear(4, 2, bias=False), torch.randn(3, 4))
    assert report.proof.startswith("float64: the loss changes along 1 parameter as its gradient ")
    assert str(report).startswith("ok: 1 of 1 parameter gets a gradient")
