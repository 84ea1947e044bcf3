"""Models that draw random numbers by what is not torch's own generator."""

from __future__ import annotations

import os
import random
import threading
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from trainify.live.audit.run import audit

TORCHS, NUMPYS, PYTHONS = torch.Generator(), numpy.random.default_rng(0), random.Random(1)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(torch.tanh(h) * self.drawn(h))

    def drawn(self, h: Tensor) -> Any:
        raise NotImplementedError


class ByTorch(Noisy):
    def drawn(self, h: Tensor) -> Any:
        return torch.rand(h.shape, generator=TORCHS)


class ByNumPy(Noisy):
    def drawn(self, h: Tensor) -> Any:
        return torch.from_numpy(NUMPYS.random(h.shape)).to(h.dtype)


class ByPython(Noisy):
    def drawn(self, h: Tensor) -> Any:
        return PYTHONS.random()


def states() -> list[Any]:
    return [TORCHS.get_state().tolist(), NUMPYS.bit_generator.state, PYTHONS.getstate()]


@pytest.mark.parametrize("cls", [ByTorch, ByNumPy, ByPython])
def test_generators_that_are_globals_are_put_back(cls: Any) -> None:
    before = states()
    report = audit(cls(), torch.randn(3, 4))
    assert report.ok, str(report)
    assert "float64" in report.proof
    assert states() == before
    cls()(torch.randn(3, 4))
    assert states() != before


class BySystem(Noisy):
    def drawn(self, h: Tensor) -> Any:
        return int.from_bytes(os.urandom(4), "big") / 2**32


def test_what_cannot_be_put_back_has_no_proof() -> None:
    report = audit(BySystem(), torch.randn(3, 4))
    assert report.ok
    assert not report.proof
    assert any("not the same in two equal runs" in note for note in report.notes)
    assert not any("kink" in note or "derivative" in note for note in report.notes)


class Stopped(BySystem):
    """Whether what is stopped depends on the parameters, or is only drawn, no run can say."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) * self.drawn(x)
        return self.last(h * torch.tanh(h.detach()))


class Grows(Noisy):
    """The cache is held where nobody puts it back."""

    def forward(self, x: Tensor) -> Tensor:
        CACHE.log.append(self.first(x).detach())
        return self.last(torch.tanh(self.first(x)) + torch.stack(CACHE.log[-64:]).sum(0))


CACHE = threading.local()
CACHE.log = []


@pytest.mark.parametrize("cls", [Stopped, Grows])
def test_what_cannot_be_told_is_not_ok(cls: Any) -> None:
    report = audit(cls(), torch.randn(3, 4))
    assert not report.ok and not report.cuts, str(report)
    assert "cannot be told" in report.error and "test_audit_random.py" in report.error


class Normed(BySystem):
    """What is written where nothing reads it, and drawn by a generator, tells nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        generator = torch.Generator()
        generator.seed()
        h = self.norm(self.first(x) * self.drawn(x))
        return self.last(h + torch.rand(h.shape, generator=generator))


class Slightly(Stopped):
    """As kernels differ that add in no fixed order; what is stopped is told by finite differences."""

    def drawn(self, h: Tensor) -> Any:
        return 1 + 1e-6 * super().drawn(h)


@pytest.mark.parametrize("cls", [Normed, Slightly])
def test_a_difference_that_hides_nothing_does_not_count(cls: Any) -> None:
    report = audit(cls(), torch.randn(3, 4))
    assert not report.error, str(report)


class WithABias(BySystem):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(3))


def test_what_nothing_is_computed_with_is_unused_all_the_same() -> None:
    report = audit(WithABias(), torch.randn(3, 4))
    assert report.ok and report.unused == ("bias",), str(report)
