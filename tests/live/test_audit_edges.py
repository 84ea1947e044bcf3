"""Steps at the edge of what can be judged: a verdict that is true, or an error that says why not."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

import trainify
from trainify.live.audit.report import Cause
from trainify.live.audit.run import audit

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = self.first(x)
        y: Tensor = self.last(hidden)
        return y


@pytest.mark.parametrize("transform", [torch.func.jacrev, torch.func.hessian, torch.func.jacfwd])
def test_transforms_are_gone_through(transform: object) -> None:
    class Slopes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1))

        def forward(self, x: Tensor) -> Tensor:
            slopes: Tensor = torch.func.vmap(transform(self.net))(x)  # type: ignore[operator]
            return slopes.square().mean() + self.net(x).square().mean()

    report = audit(Slopes(), torch.randn(4, 2))
    assert report.ok and report.proof.startswith("float64")


def test_hooks_of_the_model_stay_refused() -> None:
    class Offloaded(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autograd.graph.save_on_cpu():
                slopes: Tensor = torch.func.jacrev(super().forward)(x)
                return slopes

    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        audit(Offloaded(4, 4), X)
    with torch.autograd.graph.save_on_cpu():  # nothing is left of the audit's own
        assert torch.autograd.graph.disable_saved_tensors_hooks.__module__.startswith("torch")


def test_of_several_things_on_a_line_the_cut_is_named() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))

        def forward(self, x: Tensor) -> Tensor:
            one, other = (self.net(x), self.net(x + 1).detach())
            return one * other

    (cut,) = audit(Pair(), torch.randn(6, 4)).cuts
    assert (cut.cause, cut.op) == (Cause.DETACH, "torch.Tensor.detach")


def test_masked_outputs_hide_no_cut() -> None:
    class Masked(Two):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).masked_fill(torch.eye(3, 4, dtype=torch.bool), -torch.inf)

    assert audit(Masked(), X).missing == ("first.weight", "first.bias")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_an_error(bad: float) -> None:
    with pytest.raises(ValueError, match=f"the loss is {bad}"):
        audit(nn.Linear(4, 4), X, loss=lambda out: out.square().sum() * bad)


def test_a_loss_of_integers_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"floating-point number, not torch\.int64"):
        audit(nn.Linear(4, 4), X, loss=lambda out: out.argmax())


def test_parameters_without_values_are_an_error() -> None:
    with pytest.raises(ValueError, match="weight has no values: it is on the meta device"):
        audit(nn.Linear(4, 4, device="meta"), X)
    with pytest.raises(ValueError, match="made by the first call"):
        audit(nn.LazyLinear(4), X)


def test_what_may_be_stopped_is_not_said_to_arrive() -> None:
    report = audit(Two(), X, allow=["Two.forward"])
    assert report.ok and report.lost == ("first.weight", "first.bias")
    assert str(report).startswith("ok: 2 of 4 parameters get a gradient\n")
    (note,) = report.notes
    assert "stopped on purpose at" in note and "not found" not in note


def test_a_layer_before_a_rounding_is_not_said_to_get_a_gradient() -> None:
    class Rounded(nn.Module):
        def __init__(self, straight: bool) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.straight = straight

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            rounded = (h * 8).round() / 8
            return self.second(h + (rounded - h).detach() if self.straight else rounded)

    report = audit(Rounded(straight=False), X)
    assert report.ok and report.zeros == ("first.weight", "first.bias")
    assert str(report).startswith("ok: 2 of 4 parameters get a gradient, 2 get zeros alone\n")
    report = audit(Rounded(straight=True), X)
    assert report.ok and not report.zeros
    assert str(report).startswith("ok: 4 of 4 parameters get a gradient\n")


def test_noise_in_the_shape_of_a_value_is_no_detach() -> None:
    class Lengths(nn.Module):
        """As in a text-to-speech model: what is computed says how long the output is."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.net(x)
            y = y.repeat_interleave(1 + (y.detach().sum(-1) * 1e6).long() % 7, dim=0)
            return (y + torch.randn_like(y)).mean()

    for seed in range(20):  # each by chance another length
        torch.manual_seed(seed)
        assert audit(Lengths(), torch.randn(3, 4)).cuts == ()


def test_gradients_of_zeros_are_said() -> None:
    class Rounded(Two):
        def forward(self, x: Tensor) -> Tensor:
            hidden = (self.first(x) * 8).round()
            y: Tensor = self.last(hidden)
            return y

    report = audit(Rounded(), X)
    assert report.ok
    (note,) = [each for each in report.notes if "zeros" in each]
    assert "first.weight, first.bias" in note and f"{__file__}:" in note and "round" in note
    assert not audit(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), X).notes


def test_straight_through_rounding_is_not_remarked_on() -> None:
    class Quantized(Two):
        def forward(self, x: Tensor) -> Tensor:
            hidden = F.relu(self.first(x)) * 8  # else all may be rounded to zero
            hidden = hidden + (hidden.round() - hidden).detach()
            y: Tensor = self.last(hidden)
            return y

    assert not [note for note in audit(Quantized(), X).notes if "zeros" in note]


# -- what it is called with, and leaves behind ----------------------------------------------------


def test_a_graph_from_before_can_still_go_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 4)).eval()
    loss = model(X).square().sum()
    expected = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    audit(model, X)
    found = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_one_place_may_be_allowed_as_a_string() -> None:
    assert audit(Two(), X, allow="Two.forward").ok
    assert not audit(Two(), X, allow="other.*").ok  # its letters are no patterns


def test_what_is_no_model_is_an_error() -> None:
    for no_model in (None, nn.Linear, nn.Linear(4, 4).forward):
        with pytest.raises(TypeError, match=r"not a torch\.nn\.Module"):
            audit(no_model, X)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"not a torch\.nn\.Module"):
            trainify.trainify(no_model, X)  # type: ignore[type-var]
    with pytest.raises(TypeError, match=r"int, not a torch\.nn\.Module"):
        trainify.restore(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"int, not a torch\.nn\.Module"):
        trainify.source_diff(3)  # type: ignore[arg-type]
    for argument in ("allow", "through"):
        with pytest.raises(TypeError, match=f"{argument} takes names .*, not 3"):
            trainify.trainify(nn.Linear(2, 2), torch.ones(1, 2), **{argument: 3})
    with pytest.raises(TypeError, match=r"allow takes names .*, not \[1\]"):
        audit(nn.Linear(2, 2), torch.ones(1, 2), allow=[1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="tensors without elements: give audit a loss"):
        audit(nn.Linear(2, 2), torch.ones(0, 2))
    with pytest.raises(TypeError, match="the loss is str, which cannot be called"):
        audit(nn.Linear(4, 4), X, loss="mse")  # type: ignore[arg-type]


def test_parameters_made_in_inference_mode_are_an_error() -> None:
    with torch.inference_mode():
        model = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="weight was made in inference_mode"):
        audit(model, X)


# -- detached values that a loss is held against ---------------------------------------------------


class Codes(nn.Module):
    """A VQ-VAE's losses."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 4), nn.Linear(4, 4)
        self.codes = nn.Embedding(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        z = self.encode(x)
        code = self.codes(torch.cdist(z, self.codes.weight).argmin(-1))
        codebook = F.mse_loss(code, z.detach())
        commitment = F.mse_loss(
            z,
            target=code.detach(),
        )
        y = self.decode(z + (code - z).detach())
        return F.mse_loss(y, x) + codebook + 0.25 * commitment


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.predict = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.encode(x), self.encode(x + 0.1)
        return self.distance(one, other) + self.distance(other, one)

    def distance(self, one: Tensor, other: Tensor) -> Tensor:
        target = other.detach()
        return -F.cosine_similarity(self.predict(one), target).mean()


class Constant(Siamese):
    """What is detached is a factor as well."""

    def distance(self, one: Tensor, other: Tensor) -> Tensor:
        target = other.detach()
        loss = F.mse_loss(self.predict(one), target)
        return loss * target.sum()


class CutOff(Siamese):
    """Nothing but the detached value comes from the encoder."""

    def distance(self, one: Tensor, other: Tensor) -> Tensor:
        return F.mse_loss(self.predict(one.detach()), other.detach())


@pytest.mark.parametrize("model", [Codes, Siamese])
def test_targets_of_a_loss_are_detached_on_purpose(model: type[nn.Module]) -> None:
    report = audit(model(), torch.randn(6, 4))
    assert report.ok, str(report)
    assert all("on purpose" in note for note in report.notes)


def test_other_detached_values_are_cuts() -> None:
    assert audit(Constant(), torch.randn(6, 4)).wrong == ("encode.weight", "encode.bias")
    assert audit(CutOff(), torch.randn(6, 4)).missing == ("encode.weight", "encode.bias")


def test_a_loss_that_moves_by_steps_is_said_to_be_why() -> None:
    class Steps(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return (super().forward(x) > 0).float()

    with pytest.raises(
        trainify.NotTrainable, match="cannot be made trainable:\n  no parameter get"
    ):
        trainify.trainify(Steps(4, 4), X)


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_model_is_left_as_it_was() -> None:
    model = torch.jit.trace(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), X)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert audit(model, X).ok
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


class Checkpointed(nn.Module):
    """Rounds to float32 on purpose, in what is computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def scaled(self, x: Tensor) -> Tensor:
        return (x.float().square().mean() * self.fc(x)).tanh()

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.scaled, self.fc(x), use_reentrant=False)
        y: Tensor = checkpoint(self.scaled, x, use_reentrant=True)
        return y


def test_checkpoints_are_proven_in_float64() -> None:
    report = audit(Checkpointed(), torch.randn(3, 4))
    assert report.ok and report.proof.startswith("float64"), str(report)


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)  # type: ignore[attr-defined]
        ctx.factor = factor  # type: ignore[attr-defined]
        return x * x

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return grad * x * ctx.factor, None  # type: ignore[attr-defined]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_backward_that_somebody_wrote_in_a_checkpoint(reentrant: bool) -> None:
    """It is called once more to be checked, and the checkpoint counts what is saved in it."""

    class Squares(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor
            self.first, self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 8), nn.Linear(8, 4)

        def squared(self, x: Tensor) -> Tensor:
            y: Tensor = self.down(Squared.apply(self.up(x), self.factor))
            return y

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = checkpoint(self.squared, self.first(x), use_reentrant=reentrant)
            return y

    assert audit(Squares(2.0), X).ok
    report = audit(Squares(3.0), X)
    assert [(cut.cause, cut.kind) for cut in report.cuts] == [(Cause.BACKWARD, "wrong")]
    assert "raises" not in report.cuts[0].message


def test_sharded_parameters_are_refused_by_name() -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        model = fully_shard(nn.Sequential(nn.Linear(4, 4)))
        for what, raised in ((audit, ValueError), (trainify.trainify, trainify.NotTrainable)):
            with pytest.raises(raised, match=r"0\.weight is sharded .* before fully_shard"):
                what(model, X)
    finally:
        dist.destroy_process_group()


class UnderAutocast(nn.Module):
    """Computes in bfloat16 with weights in float32, as most who train do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(8, 8), nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.head(self.inner(self.fc(x)))

    def inner(self, x: Tensor) -> Tensor:
        return x * self.weight.to(x.dtype)


class AutocastKernel(UnderAutocast):
    def inner(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, self.weight.to(x.dtype), 1e-6)
        return out


class AutocastData(UnderAutocast):
    def inner(self, x: Tensor) -> Tensor:
        return x * (1 + self.weight.data).to(x.dtype)


class AutocastDetach(UnderAutocast):
    def inner(self, x: Tensor) -> Tensor:
        return x.detach() * self.weight


WHOLE = ("weight", "fc.weight", "fc.bias")


@pytest.mark.parametrize(
    ("model", "missing"),
    [
        (AutocastKernel, WHOLE),
        (AutocastData, WHOLE[:1]),
        (AutocastDetach, WHOLE[1:]),
        (UnderAutocast, ()),
    ],
)
def test_autocast_rounds_no_cut_away(model: type[nn.Module], missing: tuple[str, ...]) -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        report = audit(model(), torch.randn(4, 8))
        assert {*report.missing} == {*missing}, str(report)
        assert len(report.cuts) == bool(missing) and not report.wrong
        assert report.ok is (not missing)
    assert not torch.is_autocast_enabled("cpu")


class Pickled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        h = super().forward(x)
        self.last = pickle.dumps(h.detach()), copy.copy(h.detach())  # trainify: stop-grad
        warnings.warn("of the model's own", UserWarning, stacklevel=1)
        return h


def test_what_a_model_warns_of_is_not_repeated(recwarn: pytest.WarningsRecorder) -> None:
    assert audit(Pickled(4, 4), torch.randn(3, 4)).ok
    assert not recwarn.list


class FromDlpack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.from_dlpack(self.fc(x).detach()))


def test_a_module_is_not_what_records_no_backward() -> None:
    (cut,) = audit(FromDlpack(), torch.randn(3, 4)).cuts
    assert cut.op != "self.fc"


class Spectrum(nn.Module):
    """Complex weights, by a buffer and a type that are complex too."""

    def __init__(self, conjugated: bool = False) -> None:
        super().__init__()
        weight = torch.randn(4, 4, dtype=torch.cfloat)
        self.weight = nn.Parameter(weight.mH if conjugated else weight)
        self.first = nn.Linear(4, 4)
        self.register_buffer("phase", torch.randn(4, dtype=torch.cfloat))

    def product(self, x: Tensor) -> Tensor:
        return x @ self.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.product(torch.fft.fft(self.first(x))) * self.phase
        x = x + torch.ones(4, dtype=torch.complex64)
        return torch.fft.ifft(x.to(torch.complex64)).real


class Imaginary(Spectrum):
    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) @ self.weight.imag


class Unconjugated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        return grad @ weight.T, x.T @ grad


class Conjugated(Unconjugated):
    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        return grad @ weight.mH, x.mH @ grad


def weighed(y: Tensor) -> Tensor:
    return (y * torch.arange(4)).pow(2).sum()


@pytest.mark.parametrize("conjugated", [False, True])
@pytest.mark.parametrize("model", [Spectrum, Imaginary])
def test_complex_weights_are_proven_in_complex_numbers(
    model: type[Spectrum], conjugated: bool
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = audit(model(conjugated), X, loss=weighed)
    assert report.ok and not report.unused and not report.notes
    assert report.proof.startswith("float64: the loss changes along 3 parameters")


@pytest.mark.parametrize("function", [Conjugated, Unconjugated])
def test_a_backward_for_complex_numbers(function: type[Unconjugated]) -> None:
    class Model(Spectrum):
        def product(self, x: Tensor) -> Tensor:
            found: Tensor = function.apply(x, self.weight)
            return found

    report = audit(Model(), X, loss=weighed)
    assert report.ok == (function is Conjugated)
    if not report.ok:
        assert report.wrong == ("weight", "first.weight", "first.bias")
        (cut,) = report.cuts
        assert cut.cause is Cause.BACKWARD and "Unconjugated" in (cut.op or "")


class Branches(nn.Module):
    """Control flow that torch has operators for, around parameters that only the branches name."""

    def __init__(self, stopped: bool = False) -> None:
        super().__init__()
        self.yes, self.no = nn.Linear(4, 4), nn.Linear(4, 4)
        self.stopped = stopped

    def branch(self, x: Tensor) -> Tensor:
        y: Tensor = self.yes(x)
        return y.detach().sin() if self.stopped else y.sin()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.cond(x.sum() > -99, self.branch, lambda x: self.no(x).cos(), (x,))
        return y


class Scan(Branches):
    def forward(self, x: Tensor) -> Tensor:
        from torch._higher_order_ops import scan

        def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            carry = self.branch(row + carry)
            return carry, carry.clone()

        found: Tensor = scan(step, torch.zeros(4), x)[1]
        return found


class Map(Branches):
    def forward(self, x: Tensor) -> Tensor:
        from torch._higher_order_ops.map import map as each

        found: Tensor = each(self.branch, x)
        return found


@pytest.mark.parametrize("model", [Branches, Scan, Map])
def test_operators_for_control_flow_are_looked_into(model: type[Branches]) -> None:
    operator = type(torch.ops.higher_order.cond)
    call = operator.__call__
    report = audit(model(), X)
    assert report.ok and report.unused == ("no.weight", "no.bias"), str(report)
    assert report.proof.startswith("float64: the loss changes along 2 parameters")
    report = audit(model(stopped=True), X)
    assert report.missing == ("yes.weight", "yes.bias")
    assert [cut.function for cut in report.cuts] == ["Branches.branch"]
    assert operator.__call__ is call


def top_two(x: Tensor) -> Tensor:
    return torch.where(x >= x.topk(2, -1).values[..., -1:], x, 0.0)


MASKING = {
    "clamp": (lambda x: x.clamp(-0.3, 0.3), lambda x, g: g, True),
    "the largest": (top_two, lambda x, g: g, True),
    "a leak": (torch.relu, lambda x, g: torch.where(x > 0, g, g / 100), True),
    "a factor": (lambda x: 2 * x, lambda x, g: g, False),
    "clamp, a factor": (lambda x: x.clamp(-0.3, 0.3) / 2, lambda x, g: g, False),
    "clamp, twice": (lambda x: x.clamp(-0.3, 0.3), lambda x, g: 2 * g, False),
    "another slope": (lambda x: torch.where(x > 0, x, x / 2), lambda x, g: g, False),
}


@pytest.mark.parametrize("name", MASKING)
def test_a_mask_whose_gradient_is_passed_on_is_meant(name: str) -> None:
    compute, derivative, meant = MASKING[name]

    class Masking(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x)
            return compute(x)

        @staticmethod
        def backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
            return derivative(*ctx.saved_tensors, grad)

    class Model(Two):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.last(Masking.apply(self.first(x)))
            return y

    torch.manual_seed(0)
    report = audit(Model(), torch.randn(8, 4))
    assert report.ok == meant
    assert bool(report.wrong or report.missing) != meant


class Sums(nn.Linear):
    def forward(self, parts: Iterable[Tensor]) -> Tensor:
        total = torch.zeros(4)
        for each in parts:
            total = total + super().forward(each).sum(0)
        return total


@pytest.mark.parametrize(
    "make", [iter, lambda each: (x for x in each), lambda each: map(abs, each)]
)
def test_inputs_that_can_be_gone_through_once_are_refused(
    make: Callable[[list[Tensor]], object],
) -> None:
    assert audit(Sums(4, 4), [X, X]).ok
    for given in ((make([X, X]),), ()):
        keywords = {} if given else {"parts": make([X, X])}
        with pytest.raises(ValueError, match=r"an input is an iterator \(.*give a list"):
            audit(Sums(4, 4), *given, **keywords)
    with pytest.raises(trainify.NotTrainable, match="an input is an iterator"):
        trainify.trainify(Sums(4, 4), make([X, X]))


def test_a_result_that_is_gone_through_by_the_loss() -> None:
    class Parts(nn.Linear):
        def forward(self, x: Tensor) -> Iterator[Tensor]:  # type: ignore[override]
            for row in x:
                yield super().forward(row)

    with pytest.raises(
        ValueError, match=r"an iterator \(generator\) that nothing has gone through"
    ):
        audit(Parts(4, 4), X)
    report = audit(Parts(4, 4), X, loss=lambda parts: sum(each.square().sum() for each in parts))
    assert report.ok and report.proof.startswith("float64")


def test_what_torch_warns_of_copies_is_not_passed_on(recwarn: pytest.WarningsRecorder) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Linear(4, 4))
    report = trainify.audit(nn.Sequential(scripted, nn.Tanh()), torch.randn(3, 4))
    assert report.ok and report.proof.startswith("float64")
    assert not recwarn.list


@pytest.mark.parametrize("cls", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_held_against_the_loss(cls: type[nn.Module]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = cls(9, 8, sparse=True), nn.Linear(8, 4)

        def forward(self, rows: Tensor) -> Tensor:
            return self.head(self.table(rows)).square().mean()

    report = audit(Model(), torch.randint(0, 9, (2, 4)))
    assert report.proof.startswith("float64: the loss changes along 3 parameters"), report.notes


def test_a_view_of_a_parameter_that_is_detached_is_placed() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            return (h.detach() @ self.b.weight.t().detach() + h).square().mean()

    report = audit(Model(), torch.randn(6, 8))
    assert report.missing == ("b.weight",) and not report.error
    assert any("b.weight" in cut.parameters for cut in report.cuts)


class InBits(nn.Parameter):
    """A weight in eight bits, that brings along what it is scaled with."""

    scale: Tensor | None


class EightBits(nn.Module):
    """Takes over what the weight brings along, in the first forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
        scale = weight.abs().amax() / 127
        self.weight = InBits((weight / scale).round().to(torch.int8), requires_grad=False)
        self.weight.scale = scale
        self.scale: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.scale, self.weight.scale = self.weight.scale, None
        scale = torch.ones(()) if self.scale is None else self.scale
        return (self.first(x) @ (self.weight.float() * scale)).square().mean()


def test_what_a_parameter_brings_along_is_put_back() -> None:
    model, same = EightBits(), EightBits()
    same.load_state_dict(model.state_dict())
    held = model.weight.scale
    assert audit(model, X).ok
    assert model.weight.scale is held and model.scale is None
    assert torch.equal(model(X), same(X))


def test_weights_that_are_kept_for_a_time_by_whoever_calls() -> None:
    """In ``parametrize.cached()`` a step would go back through what an earlier one has computed."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    parametrizations.weight_norm(model[0])
    with parametrize.cached():
        assert trainify.audit(model, torch.randn(3, 4)).ok
        model(torch.randn(3, 4)).sum().backward()


class Expanded(nn.Module):
    """Holds what expand() gives, into which torch refuses to write."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.mask = torch.ones(3, 4).tril().expand(2, 3, 4)
        self.steps = [torch.zeros(1).expand(4)]
        self.register_buffer("positions", torch.arange(4).expand(1, -1))
        self.register_buffer("seen", torch.zeros(4, 1).expand(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.seen[:, 0] += 1  # all of each row, which lies in one number
        return (self.fc(x) + self.steps[0]) * self.mask[0] + self.positions


def test_what_is_expanded_is_put_back() -> None:
    model, x = Expanded(), torch.randn(1, 4).expand(3, 4)
    assert trainify.audit(model, x).ok
    assert torch.equal(model.seen, torch.zeros(4, 3))
    trainify.trainify(model, x)
