"""A kernel's output that may be its input: where nobody else reads that, its name is bound anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verbs import findings, fix

MAYBE = """\
import torch
import torch.nn.functional as F
from vllm import _custom_ops as ops


def norm(x: torch.Tensor, w: torch.Tensor, fast, into=None):
    MADE
    ops.rms_norm(out, x, w, 1e-6)
    RETURNED
"""


def norm(made: str, returned: str = "return out") -> str:
    made = made.replace("\n", "\n    ")
    return MAYBE.replace("MADE", made).replace("RETURNED", returned)


@pytest.mark.parametrize("strategy", ["flag", "replace"])
@pytest.mark.parametrize(
    "made",
    [
        "out = torch.empty_like(x) if fast else x",
        "if fast:\n    out = torch.empty_like(x)\nelse:\n    out = x",
        "out = x.view(-1, x.shape[-1])",
    ],
)
def test_it_is_bound_anew(made: str, strategy: str) -> None:
    fixed = fix(norm(made), strategy=strategy, unsafe=True)
    assert not findings(fixed, strategy=strategy)
    source = fixed.replace("from vllm import _custom_ops as ops\n", "")
    for fast in (True, False):
        scope: dict[str, Any] = {}
        exec(compile(source, "m.py", "exec"), scope)
        leaf = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(4, dtype=torch.float64, requires_grad=True)
        wanted = torch.nn.functional.rms_norm(leaf * 1, (4,), weight, 1e-6)
        wanted = torch.autograd.grad(wanted.square().sum(), (leaf, weight))
        found = scope["norm"](leaf * 1, weight, fast)
        found = torch.autograd.grad(found.square().sum(), (leaf, weight))
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("made", "returned"),
    [
        ("out = torch.empty_like(x) if fast else x", "return out + x"),
        ("out = torch.empty_like(x) if fast else x", "pass"),
        ("out = x if into is None else into", "return out"),
        ("out = into or x", "return out"),
        ("out = x\nif into is not None:\n    out = into", "return out"),
    ],
)
def test_what_somebody_else_reads_is_left(made: str, returned: str) -> None:
    text = norm(made, returned)
    (finding,) = findings(text, unsafe=True)
    assert finding.rule == "TRN101" and "Not rewritten" in finding.message
    assert fix(text, unsafe=True) == text
