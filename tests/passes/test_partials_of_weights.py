"""Weights that ``functools.partial`` holds without their history, in programs that are run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stand_in_kernels import stand_in
from verbs import findings, fix

from tests.each import in_turn
from trainify.findings import STRATEGIES

PROGRAM = """\
import functools
import torch
import sgl_kernel
from torch import nn


class Norm(nn.Module):
    def __init__(self, d):
        super().__init__()
        weight = nn.Parameter(torch.linspace(0.5, 1.5, d))
        self.weight = weight
        HELD
        self.norm = functools.partial(sgl_kernel.rmsnorm, weight=GIVEN, eps=1e-6)

    def forward(self, x):
        return self.norm(x)
"""
BY_NAME = ("self.weight.data", "self.weight.detach()", "weight.data", "self.weight.detach().data")


@torch.no_grad()
def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def program(given: str, held: str = "pass") -> str:
    return PROGRAM.replace("HELD", held).replace("GIVEN", given)


@pytest.mark.parametrize(("given", "strategy"), in_turn(BY_NAME, STRATEGIES))
def test_the_weight_itself_takes_the_place(
    given: str, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, "sgl_kernel", rmsnorm=rmsnorm)
    space: dict[str, Any] = {}
    exec(fix(program(given), strategy=strategy), space)
    norm = space["Norm"](4)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    norm(x).square().sum().backward()
    mine = torch.autograd.grad(
        F.rms_norm(x, (4,), norm.weight, 1e-6).square().sum(), (x, norm.weight)
    )
    torch.testing.assert_close((x.grad, norm.weight.grad), mine)


@pytest.mark.parametrize(
    "given, held",
    [
        ("self.weight.detach().clone()", "pass"),
        ("held", "held = self.weight.detach().clone()"),
        ("held", "held = self.weight.data * 2"),
    ],
)
def test_what_cannot_be_said_by_name_is_looked_at_first(given: str, held: str) -> None:
    (found,) = findings(program(given, held))
    assert all("without its history" in each.look_at for each in found.fixes.values())
    assert fix(program(given, held)) == program(given, held)


def test_a_name_that_begins_like_that_of_the_partial_is_a_name() -> None:
    text = program("self.norm_weight.data").replace("self.weight = ", "self.norm_weight = ")
    (found,) = findings(text)
    assert not any(each.look_at for each in found.fixes.values())
    assert "x.shape[-1:], self.norm_weight, " in fix(text)
