"""Planted faults: each is named at its exact line, with its cause and what it does."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import faults  # isort: skip  (in this folder)
from tests.each import some
from trainify.live.audit import Cause
from trainify.live.audit.run import audit

LINES = Path(faults.__file__).read_text().splitlines()


def planted_line(layer: type[faults.Layer]) -> int:
    """The line in faults.py that says that it is the fault of this layer."""
    for number, line in enumerate(LINES, 1):
        if line.endswith(f"# <- cut {layer.__name__}"):
            return number
    source, first = inspect.getsourcelines(layer)
    (line,) = [i for i, text in enumerate(source) if text.rstrip().endswith("# <- cut")]
    return first + line


@pytest.mark.parametrize("layer", faults.FAULTS, ids=lambda each: each.__name__)
def test_fault_is_named_at_its_line(layer: type[faults.Layer]) -> None:
    model = faults.Model(layer)
    report = audit(model, torch.randn(3, faults.D))
    assert [(Path(cut.path).name, cut.line, cut.cause, cut.kind) for cut in report.cuts] == [
        ("faults.py", planted_line(layer), Cause[layer.cause], layer.kind)
    ], str(report)
    (cut,) = report.cuts
    if layer.op is not None:
        assert cut.op == layer.op
    assert cut.modules == ("layers.0", "layers.1")
    assert not report.ok
    assert report.missing or report.wrong


@pytest.mark.parametrize(
    "layer",
    [
        faults.OpIntoAWorkspace,
        faults.OpIntoAGlobal,
        faults.PybindIntoABuffer,
        faults.NumpyInPlace,
        faults.NoGradCache,
        faults.OutArgument,
    ],
)
def test_what_an_earlier_call_left_changes_nothing(layer: type[faults.Layer]) -> None:
    model, x = faults.Model(layer), torch.randn(3, faults.D)
    fresh = audit(model, x)
    with torch.no_grad():
        model(x)
    report = audit(model, x)
    assert report.cuts == fresh.cuts
    assert not report.ok
    assert (report.missing, report.wrong) == (fresh.missing, fresh.wrong)
    assert not report.notes


class Last(nn.Module):
    """What the layer returns is what the model returns."""

    def __init__(self, layer: type[faults.Layer]) -> None:
        super().__init__()
        self.embed, self.layer = nn.Linear(faults.D, faults.D), layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.embed(x))


@pytest.mark.parametrize(
    "layer", some(faults.FAULTS[::3], faults.FAULTS), ids=lambda each: each.__name__
)
def test_fault_at_the_end_is_named_at_its_line(layer: type[faults.Layer]) -> None:
    report = audit(Last(layer), torch.randn(3, faults.D), proof=False)
    places = [(Path(cut.path).name, cut.line, cut.cause) for cut in report.cuts]
    assert places == [("faults.py", planted_line(layer), Cause[layer.cause])], str(report)
    assert report.missing or report.wrong


def test_there_are_enough() -> None:
    assert len(faults.FAULTS) >= 25


class OneLine(nn.Module):
    """What goes into the kernel is made on its line."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.weight = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        faults.kernels().rmsnorm(out, self.fc(x), self.weight.exp(), 1e-6, False)
        return self.head(out)


def test_what_goes_into_a_kernel_is_made_on_its_line() -> None:
    report = audit(OneLine(), torch.randn(3, 4), loss=torch.sum)
    (cut,) = report.cuts
    assert "rmsnorm" in str(cut.op)
    assert {*cut.parameters} == {"fc.weight", "fc.bias", "weight"}
    assert not report.error
