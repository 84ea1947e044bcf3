"""A kernel overwrites a piece of a tensor that is read as a whole later, as in MLA."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stand_in_kernels import fused_add_rms_norm, stand_in
from verbs import findings, fix

from tests.each import in_turn
from trainify.findings import STRATEGIES

TEXT = """\
import torch
from torch import nn
from vllm import _custom_ops as ops


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.rank = 3
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x, whole):
        x, whole = x * 2, whole * 2
        {piece}
        ops.fused_add_rms_norm(x, piece, self.weight, 1e-6)
        return {result}
"""
LAST = [
    "piece = whole.split([self.rank, 4], dim=-1)[1]",
    "piece = whole.split([self.rank, 4], dim=-1)[1].unsqueeze(0).squeeze(0)",
    "rest, piece = whole.split((self.rank, 4), -1)",
    "piece = whole[..., -4:].view(2, 4)",
]
FIRST = ["piece = whole.split([4, 3], -1)[0]", "piece = whole[..., :4].unsqueeze(0).squeeze(0)"]


def expected(x: torch.Tensor, whole: torch.Tensor, weight: torch.Tensor, last: bool) -> Any:
    x, whole = x * 2, whole * 2
    old = whole[:, 3:] if last else whole[:, :4]
    new = x + old
    parts = (whole[:, :3], new) if last else (new, whole[:, 4:])
    return F.rms_norm(new, (4,), weight, 1e-6), torch.cat(parts, -1)


def ran(text: str, monkeypatch: pytest.MonkeyPatch, strategy: str) -> Any:
    stand_in(monkeypatch, "vllm._custom_ops", fused_add_rms_norm=fused_add_rms_norm)
    scope: dict[str, Any] = {}
    exec(compile(fix(text, strategy=strategy, unsafe=True), "m.py", "exec"), scope)
    return scope["Layer"]()


@pytest.mark.parametrize(
    ("piece", "last", "strategy"),
    in_turn([*((p, True) for p in LAST), *((p, False) for p in FIRST)], STRATEGIES),
)
def test_the_whole_has_the_new_piece(
    piece: str, last: bool, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEXT.format(piece=piece, result="x, whole")
    assert "torch.cat(" in fix(text, strategy=strategy)
    layer = ran(text, monkeypatch, strategy)
    torch.manual_seed(0)
    x, whole = (torch.randn(2, n, requires_grad=True) for n in (4, 7))
    got, right = layer(x, whole), expected(x, whole, layer.weight, last)
    factors = [torch.randn_like(each) for each in right]
    for a, b in zip(got, right, strict=True):
        torch.testing.assert_close(a, b)
    grads = [
        torch.autograd.grad(
            sum((a * f).sum() for a, f in zip(results, factors, strict=True)),
            [x, whole, layer.weight],
            retain_graph=True,
        )
        for results in (got, right)
    ]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    ("piece", "reason"),
    [
        ("piece = whole.chunk(2, dim=-1)[1]", "gives a tuple, of which no element can be set"),
        ("piece = whole.unbind(0)[1]", "gives a tuple, of which no element can be set"),
        ("piece = whole.split([self.rank, 4], dim=-1)[1].reshape(2, 4)", "read later"),
        ("piece = whole.split([self.rank, 4], dim=-1)[1].contiguous()", "read later"),
        ("piece = whole.split([x.shape[0], 5], dim=-1)[1]; x = x[:, :5]", "can be set"),
        ("piece = whole.split([self.rank, 4], dim=-2)[1]", "can be set"),
    ],
)
def test_what_is_not_plain_is_kept(piece: str, reason: str) -> None:
    (found,) = findings(TEXT.format(piece=piece, result="x, whole"))
    assert reason in found.message and not found.fixes


def test_an_element_of_a_tuple_of_pieces_is_not_set() -> None:
    text = TEXT.format(piece="pieces = whole.unbind(0)", result="x, whole")
    (found,) = findings(text.replace("piece, self", "pieces[1], self"))
    assert "`pieces` is a tuple" in found.message and not found.fixes


def test_a_whole_that_nobody_reads_is_not_made() -> None:
    for piece in LAST[:3]:
        assert "torch.cat" not in fix(TEXT.format(piece=piece, result="x, piece"))


def test_a_caller_who_has_the_whole_keeps_its_kernel() -> None:
    text = TEXT.format(piece=LAST[0], result="x, whole").replace(
        "x, whole = x * 2, whole * 2", "x = x * 2"
    )
    assert "torch.cat" not in fix(text, unsafe=True)
