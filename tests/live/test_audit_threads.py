"""Models that compute in threads of their own."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainify.live.audit import Cause
from trainify.live.audit.run import audit


class Threaded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        results: dict[str, Tensor] = {}
        thread = threading.Thread(target=lambda: results.update(h=self.computed(x)))
        thread.start()
        thread.join()
        return self.last(results["h"])

    def computed(self, x: Tensor) -> Tensor:
        h: Tensor = self.first(x)
        return h


class Stopped(Threaded):
    def computed(self, x: Tensor) -> Tensor:
        return super().computed(x).detach()


def test_threads_that_cannot_be_widened_print_nothing(capfd: Any) -> None:
    hook = threading.excepthook
    report = audit(Threaded(), torch.randn(3, 4))
    assert report.ok, str(report)
    assert not capfd.readouterr().err
    assert threading.excepthook is hook


@pytest.mark.parametrize("parts", [1, 2])
def test_what_a_thread_stops_is_laid_on_no_kernel(parts: int) -> None:
    report = audit(nn.Sequential(*[nn.Linear(4, 4)] * parts, Stopped()), torch.randn(3, 4))
    (cut,) = report.cuts
    assert cut.cause is Cause.KERNEL
    assert "another thread" in cut.message
    assert not report.ok
