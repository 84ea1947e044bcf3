"""Results that go into a tensor of the caller's, which he may read: there they have to arrive."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from verbs import findings, fix

from tests.each import in_turn
from trainify.findings import STRATEGIES

PROGRAM = """\
import flashinfer
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.w = nn.Parameter(torch.tensor([1.0, 2.0, 0.5, 1.5]))
        self.ways = {{"norm": self.norm}}

    def norm(self, q, out=None):
        {}

    def forward(self, x):
        x = self.a(x)
        o = torch.full_like(x, 7.0)
        norm = self.ways["norm"]
        norm(x[:2], out=o[:2])
        norm(x[2:], out=o[2:])
        return x + o + norm(x)
"""
BODIES = {
    "returned": "return flashinfer.rmsnorm(q, self.w, out=out)",
    "named": "out = flashinfer.rmsnorm(q, self.w, 1e-6, out)\nreturn out",
    "under another name": "y = flashinfer.rmsnorm(q, self.w, out=out)\nreturn y * 1",
    "in an expression": "return flashinfer.rmsnorm(q, self.w, out=out) * 1",
    "a view": "o = torch.empty_like(q) if out is None else out\nflashinfer.rmsnorm(q.view(-1, 4), self.w, out=o.view(-1, 4))\nreturn o",
    "a view by a shape": "shape = (-1, 4)\no = torch.empty_like(q) if out is None else out\nflashinfer.rmsnorm(q.view(shape), self.w, out=o.view(shape))\nreturn o",
}


def rmsnorm(x: Any, weight: Any, eps: float = 1e-6, out: Any = None) -> Any:
    value = F.rms_norm(x, x.shape[-1:], weight, eps)
    return value if out is None else out.copy_(value)


def result(monkeypatch: pytest.MonkeyPatch, text: str, differentiable: bool) -> list[torch.Tensor]:
    library = ModuleType("flashinfer")
    library.rmsnorm = rmsnorm if differentiable else torch.no_grad()(rmsnorm)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    scope: dict[str, Any] = {"__name__": "outs"}
    exec(text, scope)
    torch.manual_seed(0)
    model = scope["Model"]()
    out = model(torch.randn(5, 4))
    out.sin().sum().backward()
    return [out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize(("body", "strategy"), in_turn(BODIES, STRATEGIES))
def test_values_and_gradients(monkeypatch: pytest.MonkeyPatch, body: str, strategy: str) -> None:
    text = PROGRAM.format(body.replace("\n", "\n        "))
    fixed = fix(text, strategy=strategy, unsafe=True)
    assert fixed != text and fix(fixed, strategy=strategy, unsafe=True) == fixed
    got, want = result(monkeypatch, fixed, False), result(monkeypatch, text, True)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("used", ["return {}", "q_, k_ = {}\n    return q_, k_"])
def test_several_results(used: str) -> None:
    call = "rotate(q, k, cos, sin, q_out, k_out)"
    text = (
        "from lmdeploy.pytorch.kernels.cuda import apply_rotary_pos_emb as rotate\n\n\n"
        f"def f(q, k, cos, sin, q_out, k_out):\n    {used.format(call)}\n"
    )
    (finding,) = findings(text)
    assert not finding.fixes and "its output buffers are the caller's" in finding.message


def test_no_statement_can_come_before_a_part() -> None:
    text = PROGRAM.format("return q.exp_() + flashinfer.rmsnorm(q, self.w, out=out)")
    (finding,) = (f for f in findings(text) if f.rule == "TRN101")
    assert not finding.fixes and "its output buffer is the caller's" in finding.message
