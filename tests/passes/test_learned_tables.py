"""What is a constant as a rule, and a parameter in some models: rotary tables, temperatures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stand_in_kernels import stand_in
from verbs import findings, fix

TEXT = """\
import torch
from torch import nn
from vllm import _custom_ops as ops


class Rope(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.table = MADE

    def forward(self, x, positions):
        q, k = x.clone(), x * 2
        ops.rotary_embedding(positions, q, k, 8, self.table, True)
        return q * k
"""
LEARNED = TEXT.replace("MADE", "nn.Parameter(torch.randn(n, 8))")
SOFTMAX = """\
import flashinfer
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.t = nn.Parameter(torch.zeros(n))

    def forward(self, x):
        warm = self.t.exp()
        return flashinfer.sampling.softmax(x, warm)
"""


@pytest.mark.parametrize("strategy", ["flag", "replace"])
def test_a_table_learns_where_nothing_else_does(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernel(*given: object) -> None:
        raise AssertionError("the kernel runs where a gradient is wanted")

    stand_in(monkeypatch, "vllm._custom_ops", rotary_embedding=kernel)
    scope: dict[str, Any] = {}
    exec(compile(fix(LEARNED, strategy=strategy), "m.py", "exec"), scope)
    torch.manual_seed(0)
    rope, x, positions = scope["Rope"](16), torch.randn(3, 8), torch.tensor([1, 5, 7])
    (found,) = torch.autograd.grad(rope(x, positions).sum(), [rope.table])
    table = rope.table.detach().clone().requires_grad_()
    cos, sin = table[positions].chunk(2, dim=-1)
    a, b = x.chunk(2, dim=-1)
    turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    (right,) = torch.autograd.grad((2 * turned.square()).sum(), [table])
    torch.testing.assert_close(found, right)


def test_the_message_and_the_condition_name_it() -> None:
    (found,) = findings(LEARNED)
    assert "`self.table` none" in found.message
    assert "self.table.requires_grad" in fix(LEARNED)
    (found,) = findings(SOFTMAX)
    assert "`warm`" in found.message
    assert "warm.requires_grad" in fix(SOFTMAX)


@pytest.mark.parametrize(
    "made", ["nn.Parameter(torch.randn(n, 8), requires_grad=False)", "torch.randn(n, 8)"]
)
def test_what_nothing_learns_is_not_asked(made: str) -> None:
    text = TEXT.replace("MADE", made)
    (found,) = findings(text)
    assert "self.table" not in found.message
    assert "self.table.requires_grad" not in fix(text)
