"""Operators of one's own that write into their arguments: nothing raises, and gradients lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verbs import findings, stays

OUT = """\
import torch
from torch import Tensor


@torch.library.custom_op("{name}", mutates_args={written})
def scaled(out: Tensor, x: Tensor, weight: Tensor) -> None:
    out.copy_(x * weight)


def forward(x, weight):
    out = torch.empty_like(x)
    scaled(out, x, weight)
    return out
"""
IN_PLACE = """\
import torch
from torch import Tensor


@torch.library.custom_op("{name}", mutates_args=["x"])
def scale_(x: Tensor, weight: Tensor) -> None:
    x.mul_(weight)


def forward(x, weight):
    y = x * 1.0
    scale_(y, weight)
    return y
"""


@pytest.mark.parametrize(
    "text",
    [
        OUT.format(name="writing::scaled", written='("out",)'),
        OUT.format(name="writing::scaled_too", written='{"out"}'),
        IN_PLACE.format(name="writing::scale_"),
    ],
)
def test_what_is_written_has_no_gradient_or_a_wrong_one(text: str) -> None:
    scope: dict[str, Any] = {"__name__": "ops"}
    exec(compile(text, "ops", "exec"), scope)
    x = torch.randn(3, requires_grad=True)
    weight = torch.randn(3, requires_grad=True)
    y = scope["forward"](x, weight)
    assert torch.equal(y.detach(), (x * weight).detach())
    if y.requires_grad:
        y.sum().backward()
        assert weight.grad is None and x.grad is not None
        assert not torch.equal(x.grad, weight.detach())
    found = findings(text)
    assert [(f.rule, bool(f.fixes)) for f in found] == [("TRN110", False)]
    assert "autograd does not see it" in found[0].message


STANDARD = OUT.format(name="mine::scaled", written='("out",)')


def test_the_out_variant_of_an_operator_stays() -> None:
    functional = (
        '@torch.library.custom_op("mine::scaled", mutates_args=())\n'
        "def scaled_new(x: Tensor, weight: Tensor) -> Tensor:\n    return x * weight\n\n\n"
    )
    text = STANDARD.replace("mine::scaled", "mine::scaled_out")
    assert len(findings(text)) == 1
    with_both = text.replace("@torch.library", functional + "@torch.library", 1)
    assert not [f for f in findings(with_both) if "mine::scaled_out" in f.message]


@pytest.mark.parametrize(
    "text",
    [
        STANDARD[: STANDARD.index("def forward")],  # nobody calls it
        STANDARD.replace("def forward", "@torch.no_grad()\ndef forward"),
        STANDARD.replace("out", "kv_cache"),
        STANDARD.replace("scaled", "scaled_backward"),
        STANDARD.replace("def forward(x, weight)", "def backward(x, weight)"),
        STANDARD.replace("x: Tensor, weight: Tensor", "x: float, weight: float").replace(
            "out: Tensor", "out: list"
        ),
        STANDARD.replace('("out",)', '"unknown"'),
    ],
)
def test_what_no_loss_comes_from_stays(text: str) -> None:
    stays(text)
