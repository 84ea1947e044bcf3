"""A kernel that is looked up in a dict by a literal key."""

from __future__ import annotations

import pytest
from verbs import becomes, stays

TABLE = """\
import torch
import torch.nn.functional as F
from vllm import _custom_ops as ops

KERNELS = {"norm": ops.rms_norm, "plain": plain_norm}


def norm(x, w: torch.Tensor):
    out = torch.empty_like(x)
    KERNELS["norm"](out, x, w, 1e-6)
    return out
"""


def test_by_a_literal_key() -> None:
    becomes(
        TABLE,
        TABLE.replace(
            '    out = torch.empty_like(x)\n    KERNELS["norm"](out, x, w, 1e-6)\n',
            "    out = F.rms_norm(x, x.shape[-1:], w, 1e-6)\n",
        ),
        strategy="replace",
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('KERNELS["norm"](out', 'KERNELS["plain"](out'),
        ('KERNELS["norm"](out', "KERNELS[which](out"),
        ('"plain": plain_norm}', "**others}"),
        ("plain_norm}\n", 'plain_norm}\nKERNELS["norm"] = plain_norm\n'),
        ("plain_norm}\n", "plain_norm}\nKERNELS.update(others)\n"),
        ("plain_norm}\n", "plain_norm}\nregister(KERNELS)\n"),
        ("norm(x, w: torch.Tensor)", "norm(x, w: torch.Tensor, KERNELS)"),
    ],
)
def test_what_may_be_another(old: str, new: str) -> None:
    assert old in TABLE
    stays(TABLE.replace(old, new))
