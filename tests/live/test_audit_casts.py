"""The proof in float64, in which parameters are cast where they are used."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainify import audit
from trainify.live.audit import directional


class _Lists(nn.Module):
    """Parameters in lists, attributes that alias them, buffers, a row that does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 8, padding_idx=0)
        self.cells = nn.LSTM(8, 8, batch_first=True)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.experts = nn.Parameter(torch.randn(3, 8, 8))
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("scale", torch.rand(8) + 0.5)

    def forward(self, ids: Tensor) -> Tensor:
        x, _ = self.cells(self.embed(ids))
        x, _ = self.attend(x, x, x)
        x = self.norm(x.flatten(0, 1)) * self.scale.to(self.weight.dtype)
        with torch.no_grad():
            assert self.weight.size(0) == 8 and self.weight.sum().isfinite()
        x = x @ self.weight.T
        for expert in self.experts:
            x = torch.tanh(x @ expert)
        return F.linear(x, self.embed.weight)


class _Scripted(nn.Module):
    """Parameters that nobody can cast, as TorchScript uses them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_is_copied(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object) -> None:
        raise AssertionError

    monkeypatch.setattr(directional, "widened", refused)
    torch.manual_seed(0)
    report = audit(_Lists().to(dtype), torch.randint(7, (2, 5)))
    assert report.ok
    assert report.proof.startswith("float64: the loss changes along 13 parameters"), report


def test_a_copy_where_parameters_are_hidden() -> None:
    report = audit(_Scripted(), torch.randn(2, 8))
    assert report.ok
    assert report.proof.startswith("float64: the loss changes along 2 parameters"), report
