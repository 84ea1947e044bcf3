"""TRN112: layers for Hugging Face's kernels that do not say that they have no backward."""

from __future__ import annotations

import pytest
from verbs import findings, fix, rules

LAYER = """\
import torch
from torch import nn
from .._ops import ops
from .functions import NormFunction


class Norm(nn.Module):
    \"\"\"A layer.\"\"\"

    can_torch_compile: bool = True
    weight: torch.Tensor

    def forward(self, x):
        out = torch.empty_like(x)
        ops.rms_norm(out, x, self.weight, 1e-6)
        return out
"""


def test_a_layer_that_says_nothing() -> None:
    (found,) = findings(LAYER, select=("TRN112",))
    assert "`Norm` runs `ops.rms_norm`" in found.message
    assert fix(LAYER, select=("TRN112",)) == LAYER, "the build may register a formula"
    assert fix(LAYER, select=("TRN112",), unsafe=True) == LAYER.replace(
        "compile: bool = True\n", "compile: bool = True\n    has_backward: bool = False\n"
    )
    plain = LAYER.replace("can_torch_compile: bool = True", "can_torch_compile = True")
    assert "    has_backward = False\n" in fix(plain, select=("TRN112",), unsafe=True)


def test_a_known_op_counts_too() -> None:
    text = LAYER.replace("from .._ops import ops", "from vllm import _custom_ops as ops")
    assert "TRN112" in rules(text)


@pytest.mark.parametrize(
    "change",
    [
        ("    weight:", "    has_backward = False\n    weight:"),
        ("    weight:", "    has_backward: bool = True\n    weight:"),  # its author's word
        ("    can_torch_compile: bool = True\n", ""),  # no layer for kernels
        ("ops.rms_norm(out, x, self.weight, 1e-6)", "out = NormFunction.apply(x, self.weight)"),
        ("ops.rms_norm(out, x, self.weight, 1e-6)", "out = x * self.weight"),
        ("from .._ops import ops", "from .ops import ops"),
    ],
)
def test_layers_that_are_right(change: tuple[str, str]) -> None:
    assert change[0] in LAYER
    assert "TRN112" not in rules(LAYER.replace(*change))
