"""Models that may keep something for the next step, and what an audit has to say of them."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainify.live.audit import Cause, Report
from trainify.live.audit.run import audit

D = 8


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(D, D)
        self.head = nn.Linear(D, D)

    def step(self, x: Tensor) -> Tensor:
        out = F.mse_loss(self(x), torch.zeros(len(x), D))
        out.backward()
        return out


def line_of_the_cut(cls: type[Model]) -> int:
    source, first = inspect.getsourcelines(cls)
    (line,) = [first + i for i, text in enumerate(source) if text.rstrip().endswith("# <- cut")]
    return line


def assert_named_at_its_line(cls: type[Model]) -> Report:
    """The line that ends in ``# <- cut`` is named, and its second step raises; so does torch."""
    x = torch.randn(3, D)
    model = cls()
    report = audit(model, x, proof=False)
    line = line_of_the_cut(cls)
    assert [(Path(c.path), c.line, c.cause) for c in report.cuts] == [
        (Path(inspect.getfile(cls)), line, Cause.KEPT)
    ], str(report)
    assert "second time" in report.error
    model.step(x)  # the audit has left nothing behind
    with pytest.raises(RuntimeError, match="second time"):
        model.step(x)
    return report


def assert_trains_on(cls: type[Model]) -> None:
    """Nothing is said of it, and torch takes a second step."""
    x = torch.randn(3, D)
    model = cls()
    report = audit(model, x, proof=False)
    assert report.ok and not report.notes, str(report)
    for _ in range(2):
        model.step(x)
