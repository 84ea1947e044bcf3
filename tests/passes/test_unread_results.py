"""Results of a kernel that nobody reads: a fix computes none of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stand_in_kernels import stand_in
from verbs import becomes, fix, rules

GATE = """\
import torch
from vllm import _custom_ops as ops


def gate(logits, topk):
    weights = torch.empty(len(logits), topk, dtype=torch.float32)
    ids = torch.empty(len(logits), topk, dtype=torch.int32)
    rows = torch.empty(len(logits), topk, dtype=torch.int32)
    logits = logits.float()
    ops.topk_softmax(weights, ids, rows, logits)
    return {}
"""


def lines(returned: str) -> str:
    return fix(GATE.format(returned), strategy="replace")


@pytest.mark.parametrize(
    ("returned", "computed"),
    [
        ("weights, ids", False),
        ("weights, ids, rows", True),
        ("weights, ids, lambda: rows", True),
        ("weights", False),
    ],
)
def test_a_result_is_computed_where_it_is_read(returned: str, computed: bool) -> None:
    fixed = lines(returned)
    assert ("arange(" in fixed) == computed
    assert rules(fixed) == []


def test_what_is_left_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "vllm._custom_ops")
    scope: dict[str, Any] = {}
    exec(lines("weights, ids"), scope)
    logits = torch.randn(3, 5, requires_grad=True)
    weights, ids = scope["gate"](logits, 2)
    expected = logits.softmax(-1).topk(2)
    torch.testing.assert_close(weights, expected.values)
    assert torch.equal(ids, expected.indices.int())
    given = torch.randn(3, 2)
    (found,) = torch.autograd.grad((weights * given).sum(), logits)
    (right,) = torch.autograd.grad((expected.values * given).sum(), logits)
    torch.testing.assert_close(found, right)


def test_a_result_that_is_a_step_to_another_keeps_its_name() -> None:
    becomes(
        """\
        import torch
        import torch.nn.functional as F
        from vllm import _custom_ops as ops


        def norm(x, residual, weight: torch.Tensor):
            x, residual = x + 1, residual * 2
            ops.fused_add_rms_norm(x, residual, weight, 1e-6)
            return x
        """,
        """\
        import torch
        import torch.nn.functional as F


        def norm(x, residual, weight: torch.Tensor):
            x, residual = x + 1, residual * 2
            residual = x + residual
            x = F.rms_norm(residual, residual.shape[-1:], weight, 1e-6)
            return x
        """,
        strategy="replace",
    )
