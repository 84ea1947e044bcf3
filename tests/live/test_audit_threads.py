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


class Beside(nn.Module):
    """A block that a thread computes, of a new model: it adds little yet."""

    def __init__(self, stops: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        for parameter in self.block[2].parameters():
            parameter.data *= 1e-3
        run = self.block.forward  # of this block, which copies of the model go on calling

        def forward(x: Tensor) -> Tensor:
            results: list[Tensor] = []

            def compute() -> None:
                with torch.set_grad_enabled(not stops):
                    results.append(run(x))

            thread = threading.Thread(target=compute)
            thread.start()
            thread.join()
            return results[0]

        self.block.forward = forward  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(h + self.block(h)).square().mean()


def test_what_a_thread_stops_is_missing_though_it_is_too_little_to_tell() -> None:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    report = audit(Beside(stops=True), x)
    assert not report.ok
    assert {*report.missing} == {f"block.{n}.{kind}" for n in (0, 2) for kind in ("weight", "bias")}
    (cut,) = report.cuts
    assert cut.cause is Cause.KERNEL
    assert "another thread" in cut.message
    assert {*cut.parameters} == {*report.missing}


def test_what_a_thread_computes_with_a_history_is_right() -> None:
    report = audit(Beside(stops=False), torch.randn(6, 8))
    assert report.ok, str(report)


class Chosen(Beside):
    """The block only says which of the values go on."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        results: dict[str, Tensor] = {}

        def compute() -> None:
            results["mask"] = (self.block(h) > 0).float()

        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
        return self.last(h * results["mask"]).square().mean()


@pytest.mark.parametrize("seed", range(4))
def test_what_a_thread_chooses_by_steps_is_not_missing(seed: int) -> None:
    x = torch.randn(400, 8, generator=torch.Generator().manual_seed(seed))
    report = audit(Chosen(stops=False), x)
    assert not report.missing, str(report)
