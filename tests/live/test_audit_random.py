"""Models that draw random numbers by what is not torch's own generator."""

from __future__ import annotations

import os
import random
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


class WithABias(BySystem):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(3))


def test_what_nothing_is_computed_with_is_unused_all_the_same() -> None:
    report = audit(WithABias(), torch.randn(3, 4))
    assert report.ok and report.unused == ("bias",), str(report)
