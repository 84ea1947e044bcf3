"""Queries and keys that are pieces of one tensor, normalized or rotated in place head by head."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from verbs import findings, fix

from tests.each import in_turn
from trainify.findings import STRATEGIES

HEAD = """\
import torch
from vllm import _custom_ops as ops


def forward(qkv: torch.Tensor, w: torch.Tensor):
    q, k, v = {cut}
    q_heads = q.view(-1, 2, 4)
    k_heads = k.view(-1, 2, 4)
"""
CUTS = {
    "split": "qkv.split([8, 8, 8], dim=-1)",
    "chunk": "qkv.chunk(3, dim=-1)",
}
NORMS = {
    "both": "    norm(q_heads, q_heads, w, 1e-6)\n    norm(k_heads, k_heads, w, 1e-6)\n",
    "read back": (
        "    norm(q_heads, q_heads, w, 1e-6)\n    q = q_heads.view(q.shape)\n"
        "    norm(k_heads, k_heads, w, 1e-6)\n    k = k_heads.flatten(1)\n"
    ),
}


def kernel(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, eps: float) -> None:
    out.data.copy_(F.rms_norm(x.detach(), x.shape[-1:], w.detach(), eps))


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("vllm")
    package._custom_ops = SimpleNamespace(rms_norm=kernel)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", package)


def results(text: str) -> tuple[torch.Tensor, ...]:
    """What a forward gives, and the gradients of its arguments."""
    torch.manual_seed(0)
    qkv = torch.randn(3, 24, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, dtype=torch.float64, requires_grad=True)
    space: dict[str, object] = {}
    exec(text, space)
    outs = space["forward"](qkv * 1.0, w)  # type: ignore[operator]
    loss = sum((out.reshape(3, -1) * torch.arange(8.0)).pow(2).sum() for out in outs)
    return (*(out.detach() for out in outs), *torch.autograd.grad(loss, (qkv, w)))


PLAIN = """\
import torch.nn.functional as F


def forward(qkv, w):
    q, k, v = qkv.split([8, 8, 8], dim=-1)
    return (*(F.rms_norm(x.view(-1, 2, 4), (4,), w, 1e-6).flatten(1) for x in (q, k)), v)
"""


PAIRS = {f"{c}-{n}": (cut, norms) for c, cut in CUTS.items() for n, norms in NORMS.items()}


@pytest.mark.parametrize(("cut", "norms", "strategy"), in_turn(PAIRS, STRATEGIES))
def test_heads_are_normalized_in_place(cut: str, norms: str, strategy: str) -> None:
    text = HEAD.format(cut=cut) + norms.replace("norm(", "ops.rms_norm(") + "    return q, k, v\n"
    found, expected = results(fix(text, strategy=strategy)), results(PLAIN)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)  # attach: in float32


@pytest.mark.parametrize(
    "cut", ["qkv, qkv, qkv", "qkv[:, :8], qkv[:, 4:12], qkv[:, 16:]"], ids=["same", "overlapping"]
)
def test_pieces_that_overlap_are_left_alone(cut: str) -> None:
    text = (
        HEAD.format(cut=cut) + "    ops.rms_norm(q_heads, q_heads, w, 1e-6)\n    return q, k, v\n"
    )
    (found,) = findings(text)
    assert "shares storage with `q_heads` and is read later" in found.message
    assert not found.fixes
