"""Kernels with several results, of which a model does not use each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainify import audit


@torch.library.custom_op("results::add_norm", mutates_args=("x", "residual"))
def add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> None:
    residual += x
    x.copy_(torch.rms_norm(residual, residual.shape[-1:], weight))


LIBRARY = torch.library.Library("results_raw", "DEF")
LIBRARY.define("both(Tensor x, Tensor left, Tensor right) -> (Tensor, Tensor)")
LIBRARY.impl("both", torch.no_grad()(lambda x, left, right: (x * left, x * right)), "CPU")


class Model(nn.Module):
    def __init__(self, used: str, way: str) -> None:
        super().__init__()
        self.inner, self.beside = nn.Linear(8, 8), nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.rand(8) + 0.5)
        self.other = nn.Parameter(torch.rand(8) + 0.5)
        self.used, self.way = used, way

    def written(self, h: Tensor) -> Tensor:
        x, residual = self.beside(h), h * 1
        add_norm(x, residual, self.weight)
        return {"first": x, "second": residual, "all": x + residual}[self.used]

    def returned(self, h: Tensor) -> Tensor:
        first, second = torch.ops.results_raw.both(h, self.weight, self.other)
        return {"first": first, "second": second, "all": first + second}[self.used]

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        if self.way == "checkpoint":
            return checkpoint(self.written, h, use_reentrant=False) * 2
        return getattr(self, self.way)(h) * 2


def look(used: str, way: str) -> tuple[set[str], set[str]]:
    torch.manual_seed(0)
    report = audit(Model(used, way), torch.randn(3, 8))
    return {*report.missing, *report.wrong}, {*report.unused}


@pytest.mark.parametrize("way", ["written", "checkpoint"])
def test_what_is_written_and_thrown_away(way: str) -> None:
    layers = {f"{name}.{kind}" for name in ("inner", "beside") for kind in ("weight", "bias")}
    assert look("first", way) == ({*layers, "weight"}, {"other"})
    assert look("second", way) == (layers, {"weight", "other"})
    assert look("all", way) == ({*layers, "weight"}, {"other"})


def test_what_is_returned_and_thrown_away() -> None:
    inner, beside = {"inner.weight", "inner.bias"}, {"beside.weight", "beside.bias"}
    assert look("first", "returned") == ({*inner, "weight"}, {*beside, "other"})
    assert look("second", "returned") == ({*inner, "other"}, {*beside, "weight"})
    assert look("all", "returned") == ({*inner, "weight", "other"}, beside)
