"""What an audit holds at once, in copies of the parameters."""

from __future__ import annotations

import gc
from functools import partial

import pytest
import torch
from torch import nn

from benchmarks.models import peak_bytes
from trainify import audit


@pytest.mark.parametrize("proof, copies", [(False, 2), (True, 5)])
def test_copies_of_the_parameters(proof: bool, copies: int) -> None:
    layers = [layer for _ in range(12) for layer in (nn.Linear(96, 96), nn.Tanh())]
    model, x = nn.Sequential(*layers), torch.randn(1, 96)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    work = partial(audit, model, x, proof=proof)
    assert work().ok  # and what is made once is there
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    assert peak_bytes(work) < (copies + 0.4) * size
    assert all(map(torch.equal, before, model.parameters()))


def test_what_others_keep_from_the_collector_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # of imports_stay_frozen
    model, x = nn.Linear(4, 4), torch.randn(1, 4)
    gc.freeze()
    assert audit(model, x).ok
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
    try:
        assert audit(model, x).ok
        assert gc.get_freeze_count() == 0
    finally:
        gc.freeze()  # as tests/conftest.py has it
