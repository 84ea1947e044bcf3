"""Scaled matmuls: what has a scale for each block is none with one for each row."""

from __future__ import annotations

import pytest
from verbs import findings, fix

CALL = """\
import torch
import torch.nn.functional as F


def f(a, b, scale_a, scale_b):
    return {}
"""


@pytest.mark.parametrize(
    "call",
    [
        "torch._scaled_mm(a, b, scale_a.to(torch.float8_e8m0fnu), scale_b)",
        "torch._scaled_mm(a.view(torch.float4_e2m1fn_x2), b, scale_a, scale_b)",
        "F.scaled_mm(a, b, scale_a, F.ScalingType.BlockWise1x32, scale_b, F.ScalingType.TensorWise)",
    ],
)
def test_scales_of_blocks_are_explained(call: str) -> None:
    (found,) = findings(CALL.format(call), unsafe=True)
    assert found.rule == "TRN103"
    assert "stands for codes with a scale for each block" in found.message
    assert not found.fixes


def test_scales_of_rows_are_rewritten() -> None:
    text = CALL.format("torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16)")
    assert "@ b.float()" in fix(text, unsafe=True)


@pytest.mark.parametrize("module", ["fused_moe", "fused_moe.fused_moe"])
@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("fused_experts(x, w1, w2, tw, ids)", ""),
        ("fused_experts(x, w1, w2, tw, ids, inplace=True)", "`inplace` is passed"),
        ("fused_moe(x, w1, w2, tw, 2, True)", ""),
        ("fused_moe(x, w1, w2, tw, 2, True, inplace=True)", "`inplace` is passed"),
    ],
)
def test_experts_by_both_names_of_their_module(module: str, call: str, reason: str) -> None:
    (found,) = findings(
        f"from vllm.model_executor.layers.{module} import fused_experts, fused_moe\n\n\n"
        f"def f(x, w1, w2, tw, ids):\n    return {call}\n"
    )
    assert found.rule == "TRN101"
    assert reason in found.message
    assert bool(found.fixes) is not bool(reason)
