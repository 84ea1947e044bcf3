"""``trainify.audit``: parts that add so little that no bit of the loss shows it."""

import pytest
import torch
from torch import Tensor, nn

import trainify

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
BLOCK = {f"block.{n}.{kind}" for n in (0, 2) for kind in ("weight", "bias")}


class Detached(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.beside = nn.Linear(8, 8)
        for parameter in self.block[2].parameters():
            parameter.data *= share

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        self.logged = self.beside(h.detach()).square().mean().detach()
        return self.last(h + self.added(h)).square().mean()

    def added(self, h: Tensor) -> Tensor:
        y: Tensor = self.block(h).detach()
        return y


class OfArrays(Detached):
    def added(self, h: Tensor) -> Tensor:
        return torch.from_numpy(self.block(h).detach().numpy())


class OnlyFloat32(Detached):
    def added(self, h: Tensor) -> Tensor:
        if h.dtype != torch.float32:
            raise TypeError("there is a kernel for float32 only")
        return super().added(h)


class Gate(Detached):
    def added(self, h: Tensor) -> Tensor:
        return (self.block(h) > 1e3).float()


class GateInFloat32(OnlyFloat32):
    def added(self, h: Tensor) -> Tensor:
        return (super().added(h) > 1e3).float()


class Learning(Detached):
    def added(self, h: Tensor) -> Tensor:
        y: Tensor = self.block(h)
        return y


@pytest.mark.parametrize("cls", [Detached, OfArrays])
@pytest.mark.parametrize("share", [1e-5, 1e-7])
def test_more_bits_show_what_is_missing(cls: type[Detached], share: float) -> None:
    report = trainify.audit(cls(share), X)
    assert not report.ok
    assert {*report.missing} == BLOCK
    assert {*report.unused} == {"beside.weight", "beside.bias"}


def test_of_nothing_that_shows_it_is_said_that_it_cannot_be_told() -> None:
    report = trainify.audit(OnlyFloat32(1e-9), X)
    assert report.ok and {*report.lost} == BLOCK
    assert {*report.unused} == {"beside.weight", "beside.bias"}
    (note,) = (each for each in report.notes if "cannot be told" in each)
    assert note.startswith("whether the loss depends on block.*.weight, block.*.bias cannot")


def test_what_float32_shows_from_afar_is_missing_there() -> None:
    report = trainify.audit(OnlyFloat32(1e-4), X)
    assert {*report.missing} == BLOCK


@pytest.mark.parametrize("share", [1.0, 1e-7])
@pytest.mark.parametrize("cls", [Gate, GateInFloat32])
def test_what_a_gate_keeps_out_is_unused(cls: type[Detached], share: float) -> None:
    report = trainify.audit(cls(share), X)
    assert report.ok and not report.notes, str(report)
    assert {*report.unused} == BLOCK | {"beside.weight", "beside.bias"}


def test_what_adds_little_with_its_history_is_right() -> None:
    report = trainify.audit(Learning(1e-7), X)
    assert report.ok and not report.lost
