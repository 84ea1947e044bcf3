"""Triton kernels that a name holds together with their grid."""

from __future__ import annotations

import pytest

from trainify.engine import check_text

TEXT = """\
import torch, triton
import triton.language as tl


@triton.jit
def _k(X, Y, N, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    tl.store(Y + c, tl.load(X + c, mask=c < N) * 2, mask=c < N)


def double(x):
    y = torch.empty_like(x)
    launch = _k[(1,)]
    launch(x, y, x.numel(), BLOCK=1024)
    return y
"""


def test_it_is_the_call_that_is_reported() -> None:
    (found,) = check_text(TEXT)
    assert (found.rule, found.line) == ("TRN104", 14)
    assert (
        found.message == "`_k` fills `y` below autograd: no gradient reaches the kernel's inputs."
    )
    (at_once,) = check_text(
        TEXT.replace("launch = _k[(1,)]", "pass").replace("launch(", "_k[(1,)](")
    )
    assert (at_once.rule, at_once.message) == (found.rule, found.message)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("_k[(1,)]", "{1: print}[1]"),
        ("    launch(", "    launch = print\n    launch("),
        ("    y = ", "    x = x.detach()\n    torch.set_grad_enabled(False)\n    y = "),
        ("@triton.jit\n", ""),
    ],
)
def test_others_stay(old: str, new: str) -> None:
    assert old in TEXT
    assert "TRN104" not in [f.rule for f in check_text(TEXT.replace(old, new))]
