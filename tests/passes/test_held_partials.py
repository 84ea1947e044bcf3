"""Kernels in partials that a table or an object holds: what they bound is passed once."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stand_in_kernels import stand_in
from verbs import fix

from tests.each import in_turn
from trainify.findings import STRATEGIES

PROGRAM = """\
import functools
import types
import torch
import sgl_kernel
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.w = nn.Parameter(torch.rand(4) + 0.5)
        norm = functools.partial(sgl_kernel.rmsnorm, weight={}, eps=1e-6)
        {}

    def forward(self, x):
        return {}(self.up(x)) * x
"""
HELD = {
    "dict": ('self.fs = {"n": norm}', 'self.fs["n"]'),
    "dict in place": (
        'self.fs = {"n": functools.partial(sgl_kernel.rmsnorm, weight=self.w.data, eps=1e-6)}',
        'self.fs["n"]',
    ),
    "object": ("self.fs = types.SimpleNamespace(n=norm)", "self.fs.n"),
    "attribute": ("self.f = norm", "self.f"),
}


@torch.no_grad()
def rmsnorm(input: Any, weight: Any, eps: float = 1e-5, out: Any = None) -> torch.Tensor:
    return F.rms_norm(input, weight.shape, weight, eps)


@pytest.mark.parametrize(
    ("held", "weight", "strategy"),
    in_turn(list(product(HELD, ["self.w", "self.w.data"])), STRATEGIES),
)
def test_the_program_runs_and_all_learn(
    held: str, weight: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, "sgl_kernel", rmsnorm=rmsnorm)
    fixed = fix(PROGRAM.format(weight, *HELD[held]), strategy=strategy)
    scope: dict[str, Any] = {}
    exec(compile(fixed, "m.py", "exec"), scope)
    torch.manual_seed(0)
    model, x = scope["Model"](), torch.randn(3, 4)
    right = F.rms_norm(model.up(x), (4,), model.w, 1e-6) * x
    out = model(x)
    torch.testing.assert_close(out, right)
    parameters = list(model.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(out.square().sum(), parameters),
        torch.autograd.grad(right.square().sum(), parameters),
    )
    with torch.no_grad():
        torch.testing.assert_close(model(x), right)
