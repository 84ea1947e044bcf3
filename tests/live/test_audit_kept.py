"""What a step keeps for the next one with its history: named, where the second step fails by it."""

from __future__ import annotations

from pathlib import Path

import kept_steps
import pytest
import torch
from kept_steps import D, assert_named_at_its_line, assert_trains_on
from torch import Tensor

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
