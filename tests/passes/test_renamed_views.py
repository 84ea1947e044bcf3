"""A kernel writes into a part of what has become a view of itself, or is cut elsewhere by then."""

from __future__ import annotations

import pytest
from verbs import findings

MODEL = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.proj = nn.Linear(d, d)
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x, residual, n):
        h = self.proj(x)
{lines}
        torch.ops._C.fused_add_rms_norm(a, residual, self.weight, 1e-6)
        return a + b, h if n else residual
"""


def model(body: str, returned: str) -> str:
    lines = "\n".join(f"        {line}" for line in body.split("; "))
    return MODEL.format(lines=lines).replace("h if n else residual", returned)


@pytest.mark.parametrize(
    ("body", "returned"),
    [
        ("a = h[..., :n]; n = n - 2; b = h[..., n:]", "residual"),
        ("b = h[..., n:]; n = n + 1; a = h[..., :n]", "residual"),
        ("a = h[..., :n]; c = h[..., n : n + 2]; n = n - 2; b = h[..., n + 2 :]", "residual"),
        ("a = h[..., :n]; h = h.transpose(-1, -2); b = h[..., n:]", "residual"),
        ("a = h[..., :n]; h = h[..., 1:]; b = h[..., :n]", "residual"),
        ("b = h; h = h.view(-1, 4); a = h", "residual"),
        ("a = h[..., :n]; b = 1; h = h.view(-1, 4)", "h"),
        ("a = h[..., :n]; b = 1; n = n - 2", "h"),
    ],
)
def test_what_may_see_the_write_is_read_later(body: str, returned: str) -> None:
    (found,) = findings(model(body, returned))
    assert found.fix("flag") is None and "shares storage with `a`" in found.message


@pytest.mark.parametrize(
    "body",
    [
        "a = h[..., :n]; b = h[..., n:]",
        "a = h[..., :n]; c = h[..., n : n + 2]; b = h[..., n + 2 :]",
        "a = h[..., :n]; h = h[..., n:]; b = h",
        "a = h[..., :n]; h = torch.relu(h); b = h",
        "b = h; h = self.proj(h); a = h",
    ],
)
def test_what_does_not_see_it_is_no_reason(body: str) -> None:
    (found,) = findings(model(body, "residual"))
    fix = found.fix("flag")
    assert fix is not None and not fix.look_at
