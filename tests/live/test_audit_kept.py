"""What a step keeps for the next one with its history: named, where the second step fails by it."""

from __future__ import annotations

from pathlib import Path

import kept_steps
import pytest
import torch
import torch.nn.functional as F
from kept_steps import D, assert_named_at_its_line, assert_trains_on, line_of_the_cut
from torch import Tensor, nn

from trainify.live.audit import Cause
from trainify.live.audit.run import audit


class Model(kept_steps.Model):
    def __init__(self) -> None:
        super().__init__()
        self.state: Tensor | None = None
        self.log: list[Tensor] = []
        self.slots = {"k": torch.zeros(16, D)}
        self.register_buffer("mean", torch.zeros(D))


class Recurrent(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        if self.state is not None:
            h = h + self.state.mean(0)
        h = h.tanh()
        self.state = h  # <- cut
        return self.head(h)


class Running(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        self.mean.mul_(0.9).add_(0.1 * h.mean(0))  # <- cut
        return self.head(h - self.mean)


class Cached(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        self.slots["k"][: len(x)] = h  # <- cut
        return self.head(torch.softmax(h @ self.slots["k"].T, -1) @ self.slots["k"])


class Growing(Model):
    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)  # <- cut
        self.log.append(h)
        past = torch.cat(self.log)
        return self.head(torch.softmax(h @ past.T, -1) @ past)


class Detached(Model):
    """The same, kept without its history."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        if self.state is not None:
            h = h + self.state.mean(0)
        h = h.tanh()
        self.state = h.detach()
        return self.head(h)


class Stashed(Model):
    """Kept with its history, for whoever wants to look at it; the next step makes it anew."""

    def forward(self, x: Tensor) -> Tensor:
        self.state = self.fc(x).tanh()
        self.log = [self.state]
        return self.head(self.log[0])


class PerCall(Model):
    """A cache that each call makes for itself."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        self.slots = {"k": h.new_zeros(16, D)}
        self.slots["k"][: len(x)] = h
        return self.head(torch.softmax(h @ self.slots["k"].T, -1) @ self.slots["k"])


class Cleared(Recurrent):
    """Between steps, a training loop resets it."""

    def reset(self) -> None:
        self.state = None


class Given(Model):
    def forward(self, x: Tensor, cache: Tensor) -> Tensor:
        h = self.fc(x)
        cache[: len(x)] = h
        return self.head(cache)


@pytest.mark.parametrize("cls", [Recurrent, Running, Cached, Growing])
def test_a_kept_graph_is_named_at_its_line(cls: type[Model]) -> None:
    report = assert_named_at_its_line(cls)
    assert "none gets one in the second step" in str(report)


@pytest.mark.parametrize("cls", [Recurrent, Running, Cached, Growing])
def test_what_an_earlier_step_has_left_is_named(cls: type[Model]) -> None:
    """A model is often audited when the second step of its training has raised."""
    x = torch.randn(3, D)
    model = cls()
    model.step(x)
    with pytest.raises(RuntimeError, match=r"second time|inplace"):
        model.step(x)
    report = audit(model, x, proof=False)
    assert [(Path(c.path), c.line, c.cause) for c in report.cuts] == [
        (Path(__file__), line_of_the_cut(cls), Cause.KEPT)
    ], str(report)
    assert report.error.startswith("backward raises")
    assert "none gets one\n" in str(report)


@pytest.mark.parametrize("cls", [Recurrent, Running, Cached, Growing])
def test_what_a_forward_has_left_without_a_backward(cls: type[Model]) -> None:
    """As of one that looked whether the model runs: the next step goes on into its graph."""
    x = torch.randn(3, D)
    model = cls()
    model(x)
    report = audit(model, x)
    assert [(Path(c.path), c.line, c.cause) for c in report.cuts] == [
        (Path(__file__), line_of_the_cut(cls), Cause.KEPT)
    ], str(report)
    assert "none gets one in the second step" in str(report)
    model.step(x)  # the audit has left that graph as it was
    with pytest.raises(RuntimeError, match=r"second time|inplace"):
        model.step(x)


class Merged(Model):
    """A product of weights that is computed with its graph, when the model is made."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(D, D)
        self.both = self.out.weight @ self.head.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.fc(x), self.both)  # <- cut


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, by: Tensor) -> Tensor:
        ctx.save_for_backward(x, by)
        return x * by

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, by = ctx.saved_tensors
        return grad * by, grad * x


class MergedByFunction(Merged):
    def __init__(self) -> None:
        super().__init__()
        self.both = Scaled.apply(self.out.weight, self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.fc(x), self.both)  # <- cut


class Turned(Merged):
    """Of which backward needs nothing that is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.both = self.out.weight.t()


def test_a_view_of_a_weight_with_its_graph() -> None:
    model = Turned()
    assert audit(model, torch.randn(3, D), proof=False).ok
    for _ in range(2):
        model.step(torch.randn(3, D))
    assert model.out.weight.grad is not None


@pytest.mark.parametrize("cls", [Merged, MergedByFunction])
def test_what_was_computed_from_weights_when_the_model_was_made(cls: type[Merged]) -> None:
    x = torch.randn(3, D)
    model = cls()
    for _ in range(2):
        report = audit(model, x)
        (cut,) = report.cuts
        assert (Path(cut.path), cut.line) == (Path(__file__), line_of_the_cut(cls)), str(report)
        assert cut.message.startswith("both was made before the step, and its graph with it")
        assert cut.message.endswith("Make it in forward.")
        assert not report.missing
    model.step(x)
    with pytest.raises(RuntimeError, match="second time"):
        model.step(x)


class Joined(Merged):
    """Of which backward frees nothing: it goes through, with what the weights were."""

    def __init__(self) -> None:
        super().__init__()
        self.both = torch.cat([self.out.weight, self.head.weight])

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.fc(x), self.both)  # <- cut


def test_what_does_not_follow_the_weights() -> None:
    report = audit(Joined(), torch.randn(3, D))
    (cut,) = report.cuts
    assert (Path(cut.path), cut.line) == (Path(__file__), line_of_the_cut(Joined)), str(report)
    assert "does not arrive here" in cut.message and not report.missing and not report.error
    assert "do not arrive there" in str(report)


class Told(Merged):
    """Somebody tells it what to go by, before each step."""

    def tell(self, x: Tensor) -> None:
        self.both = self.out(x).tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * self.both


def test_what_a_loop_has_to_make_anew() -> None:
    model = Told()
    model.tell(torch.randn(1, D))
    report = audit(model, torch.randn(3, D))
    assert report.ok, str(report)
    assert any("tell() has to be called for each step" in note for note in report.notes)
    for _ in range(2):
        model.tell(torch.randn(1, D))
        model.step(torch.randn(3, D))


class Learned(Model):
    """Its first state is learned: a training loop begins each sequence with reset()."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(D))
        self.reset()

    def reset(self) -> None:
        self.state = self.first.tanh()

    def forward(self, x: Tensor) -> Tensor:
        h = (self.fc(x) + self.state).tanh()
        self.state = h[-1].detach()
        return self.head(h)


def test_what_the_step_lets_go_of_itself() -> None:
    x = torch.randn(3, D)
    model = Learned()
    report = audit(model, x)
    assert report.ok, str(report)
    (note,) = report.notes
    assert "not held against finite differences" in note
    for _ in range(2):
        model.step(x)
        model.reset()
    assert model.first.grad is not None


class HeadOnly(Recurrent):
    """Its inputs are what the caller has made with its own layer."""

    def forward(self, h: Tensor) -> Tensor:
        return self.head(h.tanh())


def test_what_is_given_with_a_graph_of_the_models_own() -> None:
    model = HeadOnly()
    x = model.fc(torch.randn(3, D)).tanh()
    assert audit(model, x).ok
    model(x).sum().backward()
    assert model.fc.weight.grad is not None


class ReadOnly(Model):
    """Computed in the first step, and read in each."""

    def forward(self, x: Tensor) -> Tensor:
        if self.state is None:
            self.state = self.fc(torch.eye(D)).tanh()
        return self.head(x @ self.state)  # <- cut


def test_what_an_earlier_step_has_left_and_no_other_makes_anew() -> None:
    x = torch.randn(3, D)
    model = ReadOnly()
    model.step(x)
    report = audit(model, x, proof=False)
    (cut,) = report.cuts
    assert (Path(cut.path), cut.line) == (Path(__file__), line_of_the_cut(ReadOnly)), str(report)
    model.state = None
    assert "in the second step" in str(audit(model, x, proof=False))


HELD: list[Tensor] = []


class Beside(Model):
    """Kept by a global."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x).tanh()
        if HELD:
            h = h + HELD[-1].mean(0)  # <- cut
        HELD[:] = [h]
        return self.head(h)


def test_what_an_earlier_step_has_left_in_a_global() -> None:
    x = torch.randn(3, D)
    model = Beside()
    try:
        model.step(x)
        report = audit(model, x, proof=False)
    finally:
        HELD.clear()
    (cut,) = report.cuts
    assert (Path(cut.path), cut.line) == (Path(__file__), line_of_the_cut(Beside)), str(report)
    assert cut.message.startswith("HELD holds what an earlier step has left")


@pytest.mark.parametrize("cls", [Detached, Stashed, PerCall])
def test_a_step_after_others(cls: type[Model]) -> None:
    model = cls()
    model.step(torch.randn(3, D))
    assert audit(model, torch.randn(3, D), proof=False).ok


@pytest.mark.parametrize("cls", [Detached, Stashed, PerCall])
def test_what_the_second_step_does_not_go_back_through(cls: type[Model]) -> None:
    assert_trains_on(cls)


def test_what_a_training_loop_lets_go_of() -> None:
    report = audit(Cleared(), torch.randn(3, D), proof=False)
    assert report.ok
    (note,) = report.notes
    assert note.startswith("state keeps its graph") and "Cleared.reset()" in note


def test_what_is_allowed() -> None:
    report = audit(Recurrent(), torch.randn(3, D), proof=False, allow=["Recurrent.forward"])
    assert report.ok, str(report)


def test_a_cache_that_is_given() -> None:
    """Each step may get another one."""
    cache = torch.zeros(5, D)
    report = audit(Given(), torch.randn(3, D), cache, proof=False)
    assert report.ok
    (note,) = report.notes
    assert note.startswith("a tensor that the model was given") and Path(__file__).name in note
    assert cache.grad_fn is None
