"""Norms of heads and gates of shared experts, as SGLang's Qwen3-Next and GLM-4.5 call them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from verbs import findings, fix

EXPERTS = """\
import torch
from torch import nn
from sglang.kernels.ops.elementwise.elementwise import (
    fused_gate_sigmoid_mul,
    fused_gate_sigmoid_mul_add,
    sigmoid_gate_mul_broadcast,
)


class Added(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 1, bias=False)
        self.shared = nn.Linear(4, 4)
        self.routed = nn.Linear(4, 4)

    def forward(self, x):
        out = self.routed(x)
        fused_gate_sigmoid_mul_add(x, self.gate.weight.squeeze(0), self.shared(x), out)
        return out


class Apart(Added):
    def forward(self, x):
        return self.routed(x) + fused_gate_sigmoid_mul(
            x, self.gate.weight.squeeze(0), self.shared(x)
        )


class Broadcast(Added):
    def forward(self, x):
        return self.routed(x) + sigmoid_gate_mul_broadcast(self.shared(x), self.gate(x))
"""


@pytest.mark.parametrize("name", ["Added", "Apart", "Broadcast"])
def test_the_gate_of_a_shared_expert_learns(name: str) -> None:
    fixed = fix(EXPERTS, strategy="replace")
    assert not findings(fixed)
    scope: dict[str, Any] = {}
    exec(fixed, scope)
    torch.manual_seed(0)
    model, x = scope[name](), torch.randn(3, 4)
    right = model.routed(x) + torch.sigmoid(model.gate(x)) * model.shared(x)
    out = model(x)
    torch.testing.assert_close(out, right)
    parameters = list(model.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(out.square().sum(), parameters),
        torch.autograd.grad(right.square().sum(), parameters),
    )


def test_norms_of_query_and_key_heads_in_place() -> None:
    fixed = fix(
        """\
        from sglang.kernels.ops.layernorm.norm import fused_inplace_qknorm


        def heads(x, wq, wk):
            q, k = x.view(-1, 2, 4).unbind(1)
            q, k = q.contiguous(), k.contiguous()
            fused_inplace_qknorm(q, k, wq, wk, 1e-6, head_dim=4)
            return q * k
        """,
        strategy="replace",
    )
    assert not findings(fixed)
    scope: dict[str, Any] = {}
    exec(fixed, scope)
    torch.manual_seed(0)
    leaves = [torch.randn(s).requires_grad_() for s in ((3, 8), (4,), (4,))]
    x, wq, wk = leaves
    q, k = x.view(-1, 2, 4).unbind(1)
    right = F.rms_norm(q, (4,), wq, 1e-6) * F.rms_norm(k, (4,), wk, 1e-6)
    out = scope["heads"](*leaves)
    torch.testing.assert_close(out, right)
    torch.testing.assert_close(
        torch.autograd.grad(out.square().sum(), leaves),
        torch.autograd.grad(right.square().sum(), leaves),
    )
