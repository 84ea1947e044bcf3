"""Parameters without a gradient: one is due to those along which the loss has a slope."""

from __future__ import annotations

import io
import linecache

import pytest
import torch
from torch import Tensor, nn

import trainify
from trainify.live.audit import Cause
from trainify.live.audit.run import audit

X = torch.randn(6, 4)


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self.first(x)))

    def between(self, h: Tensor) -> Tensor:
        return h


class Archived(TwoLayers):
    def between(self, h: Tensor) -> Tensor:
        archive = io.BytesIO()
        torch.save(h.detach().tolist(), archive)
        archive.seek(0)
        return torch.tensor(torch.load(archive))


class InAnotherLeaf(TwoLayers):
    def between(self, h: Tensor) -> Tensor:
        return torch.tensor(h, requires_grad=True)


class Saved(TwoLayers):
    def between(self, h: Tensor) -> Tensor:
        file = io.BytesIO()
        torch.save(h, file)
        file.seek(0)
        return torch.load(file)


class Set(TwoLayers):
    def between(self, h: Tensor) -> Tensor:
        out = torch.empty(0)
        with torch.no_grad():
            out.set_(h)
        return out


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", [Archived, InAnotherLeaf, Saved, Set])
def test_a_gradient_that_is_due_is_missing(model: type[nn.Module]) -> None:
    net = model()
    report = audit(net, X)
    assert not report.ok
    assert report.missing == ("first.weight", "first.bias")
    assert report.cuts or "where it is lost was not found" in report.error
    if model is InAnotherLeaf:
        trainify.trainify(net, X)
        net(X).sum().backward()
        assert net.first.weight.grad is not None
        return
    with pytest.raises(trainify.NotTrainable, match="cannot be made trainable"):
        trainify.trainify(net, X)
    assert type(net) is model


class Stores(nn.Module):
    """Keeps in a weight, at each call, what is computed from another."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.fc = nn.Parameter(torch.rand(4, 1) + 0.5), nn.Linear(4, 4)
        self.basis = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.fc.weight.copy_(self.gain * self.basis)  # <- here
        return self.fc(x)


def test_weights_that_are_made_of_others() -> None:
    report = audit(Stores(), X)
    (cut,) = report.cuts
    assert cut.cause is Cause.GRAD_MODE and report.missing == ("gain", "basis")
    assert not report.wrong
    with open(__file__) as file:
        assert file.read().splitlines()[cut.line - 1].endswith("# <- here")


class Chooses(nn.Module):
    """The router of hard experts, whose derivative is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(4, 3), nn.Parameter(torch.randn(3, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.router(x).argmax(-1)
        return torch.einsum("nd,nde->ne", x, self.experts[chosen]).cumsum(0)


@pytest.mark.parametrize("rows", [6, 3000])
def test_no_gradient_is_due_to_what_only_chooses(rows: int) -> None:
    report = audit(Chooses(), torch.randn(rows, 4))
    assert report.ok, str(report)
    assert {*report.unused, *report.lost} == {"router.weight", "router.bias"}
    assert report.lost == () or "by steps" in report.notes[0]
    assert rows == 6 or report.lost


class Routed(nn.Module):
    """Rows go to one of two experts; ``gap`` is how far the experts' scores lie apart."""

    def __init__(self, gap: float) -> None:
        super().__init__()
        self.router = nn.Linear(8, 2, bias=False)
        self.experts = nn.Parameter(torch.randn(2, 8, 8) / 3)
        with torch.no_grad():
            self.router.weight[1] = self.router.weight[0]
            self.router.weight[1, 0] += gap

    def forward(self, x: Tensor) -> Tensor:
        score, expert = self.router(x).softmax(-1).max(-1)
        expert, order = torch.sort(expert)
        end = torch.histc(expert.float(), bins=2, min=0, max=1).cumsum(0).int().tolist()[0]
        first, second = x[order][:end] @ self.experts[0], x[order][end:] @ self.experts[1]
        out = torch.cat([first, second]) * score[order, None]
        return torch.empty_like(out).index_copy(0, order, out)


@pytest.mark.parametrize("gap", [1, 1e-1, 1e-3, 1e-5])
def test_a_route_that_changes_is_no_cut(gap: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 8)
    report = audit(Routed(gap), x)
    assert report.ok and report.proof.startswith("float64"), str(report)
    assert not report.cuts


class StopsByItself(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> None:
        return None


class Stopped(TwoLayers):
    def between(self, h: Tensor) -> Tensor:
        return StopsByItself.apply(h)


def test_a_function_whose_backward_is_to_stop() -> None:
    report = audit(Stopped(), X)
    assert report.ok and report.lost == ("first.weight", "first.bias")
    assert "on purpose" in report.notes[0]


class Gated(nn.Module):
    """A branch behind a gate that is shut before training, as in ReZero and adaLN-Zero."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.inner = nn.Linear(4, 4), nn.Linear(4, 4)
        self.gate = nn.Parameter(torch.zeros(4))
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        return x + self.gate * self.branch(self.inner(x))

    def branch(self, x: Tensor) -> Tensor:
        return x * self.weight


class GatedKernel(Gated):
    def branch(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, self.weight, 1e-6)
        return out


class GatedStop(Gated):
    def branch(self, x: Tensor) -> Tensor:
        return x.detach() * self.weight


class GatedArchive(Gated):
    """Where it is lost is not found."""

    def branch(self, x: Tensor) -> Tensor:
        file = io.BytesIO()
        torch.save(x, file)
        file.seek(0)
        return torch.load(file) * self.weight


class ZeroProjection(Gated):
    """As LoRA's second matrix, or a zero convolution."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.inner.weight)
        nn.init.zeros_(self.inner.bias)
        self.down = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate + x + self.inner(self.down(x).detach())


INNER = ("inner.weight", "inner.bias")


@pytest.mark.parametrize(
    ("model", "missing"),
    [
        (Gated, ()),
        (GatedKernel, ("weight", *INNER)),
        (GatedStop, INNER),
        (GatedArchive, INNER),
        (ZeroProjection, ("down.weight", "down.bias")),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_gate_of_zeros_hides_nothing(model: type[nn.Module], missing: tuple[str, ...]) -> None:
    net = model()
    report = audit(net, X)
    assert set(report.missing) == set(missing), str(report)
    assert report.ok is (not missing)
    assert len(report.cuts) == bool(missing) or model is GatedArchive
    if model in (GatedKernel, GatedStop):
        trainify.trainify(net, X)
        net(X).sum().backward()
        assert all(p.grad is not None for p in net.parameters())
        trainify.restore(net)


class Skips(Gated):
    """What does not run has no gradient, and is not used."""

    def branch(self, x: Tensor) -> Tensor:
        return super().branch(x) if self.gate.any() else x


def test_what_a_gate_of_zeros_keeps_from_running_is_unused() -> None:
    report = audit(Skips(), X)
    assert report.ok and report.unused == ("weight",), str(report)


class Absorbed(nn.Module):
    """Weights that are kept in another form when they are loaded, in the same memory."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(4, 6, bias=False, dtype=dtype)
        self.fc = nn.Linear(4, 6, dtype=dtype)
        self.parts = {"up": self.up.weight.data.view(2, 3, 4)[1].t()}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)[:, :4] @ self.parts["up"]  # <-


class Loaded(nn.Module):
    """Under no_grad, by which torch refuses the view once what it is of is written."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(4, 4, bias=False, dtype=dtype)
        self.fc = nn.Linear(4, 4, dtype=dtype)
        with torch.no_grad():
            self.first, self.second = self.up.weight.t().chunk(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.fc(x)
        h = h @ self.first * (h @ self.second)  # <-
        return h


class Head(nn.Module):
    """The weight learns by another way as well."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Embedding(5, 4, dtype=dtype)
        self.fc = nn.Linear(4, 4, dtype=dtype)
        self.head = self.up.weight.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.fc(self.up(torch.tensor([1, 2])) + x)
        return (h @ self.head.t()).square()  # <-


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cls, attribute", [(Absorbed, "parts"), (Loaded, "first"), (Head, "head")])
def test_a_weight_of_which_a_view_is_kept(
    cls: type[nn.Module], attribute: str, dtype: torch.dtype
) -> None:
    model = cls(dtype)
    report = trainify.audit(model, torch.ones(2, 4, dtype=dtype), loss=torch.sum)
    names = ("up.weight",)
    assert (report.missing, report.wrong) == (((), names) if cls is Head else (names, ()))
    (cut,) = report.cuts
    assert cut.cause.value == "data" and cut.parameters == names, str(report)
    assert "# <-" in linecache.getline(cut.path, cut.line)
    assert cut.message.startswith(f"{attribute} lies in the memory of a weight")
    model.fc.weight.grad = None
    model(torch.ones(2, 4, dtype=dtype)).sum().backward()  # as before the audit
    assert model.fc.weight.grad is not None
    if cls is Loaded:  # a property can stand for what is kept, as test_weights_derived_once says
        with pytest.warns(trainify.StopRemoved, match="self.first, self.second ="):
            trainify.trainify(model, torch.ones(2, 4, dtype=dtype), loss=torch.sum)
        return
    with pytest.raises(trainify.NotTrainable, match="Make it in forward") as raised:
        trainify.trainify(model, torch.ones(2, 4, dtype=dtype), loss=torch.sum)
    assert "allow=" in str(raised.value)
    assert ("through=" in str(raised.value)) == (cls is Head)


class Compared(Head):
    """What nothing is lost by: it goes into no loss, or where nothing learns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        drift = (self.head - self.up.weight).norm()
        return self.fc(self.up(torch.tensor([1, 2])) + x) + drift.detach() * 0


def test_a_view_that_does_not_go_into_the_loss() -> None:
    report = trainify.audit(Compared(torch.float64), torch.ones(2, 4).double(), loss=torch.sum)
    assert report.ok, str(report)


class Normalized(nn.Module):
    """The sum of squares of what is normalized changes by what keeps it from dividing by zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 4)
        self.bias = nn.Linear(4, 4, bias=False)
        self.norm = nn.LayerNorm(4, elementwise_affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            bias = self.bias(x)  # <-
        return self.norm(3 * (self.fc(x) + bias))


def test_a_cut_of_which_float32_hardly_tells() -> None:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    report = trainify.audit(Normalized(), x, loss=lambda out: out.square().mean())
    assert report.missing == ("bias.weight",)
    (cut,) = report.cuts
    assert "# <-" in linecache.getline(cut.path, cut.line) and cut.parameters == ("bias.weight",)


class Packed(nn.Module):
    """Weights that are copied when they are loaded."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.fc = nn.Linear(4, 4)
        pair = [self.q.weight.data, self.k.weight.data]
        self.packed = {
            "rows": torch.cat(pair),
            "columns": torch.cat(pair).t().contiguous(),
            "one": pair[0].t().reshape(2, 2, 4).clone(),
            "another": torch.cat([2 * each for each in pair]),
        }[how]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) @ self.packed.reshape(4, -1)


@pytest.mark.parametrize(
    "how, told", [("rows", "q.weight, k.weight"), ("columns", "q.weight, k.weight"),
                  ("one", "q.weight"), ("another", "")]
)  # fmt: skip
def test_a_copy_that_is_used_in_place_of_a_weight(how: str, told: str) -> None:
    """Which the loss does not change with: that is a note."""
    report = trainify.audit(Packed(how), torch.ones(2, 4))
    assert report.unused == ("q.weight", "k.weight"), str(report)
    notes = [note for note in report.notes if "copy" in note]
    said = f"{told} is unused, and what was made of it once is in packed: a copy, which training "
    assert notes == ([f"{said}does not reach. Make it in forward"] if told else [])
