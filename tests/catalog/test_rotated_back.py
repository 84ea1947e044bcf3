"""vLLM's rotary embedding that begins within a head, or goes back, trains as it serves."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from trainify.engine import Options, fix_text

CODE = """\
import torch
from torch import nn
from vllm import _custom_ops as ops


class Rotary(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.register_buffer("table", table, persistent=False)

    def forward(self, positions, query, key):
        ops.rotary_embedding(positions, query, key, 6, self.table, False, {})
        return query, key
"""


def turned(positions: Any, x: Any, size: int, table: Any, first: int, back: bool) -> torch.Tensor:
    """Neighbours as complex numbers, times those of the table."""
    heads = x.view(len(x), -1, size)
    cos, sin = table[positions].chunk(2, -1)
    angles = torch.complex(cos, -sin if back else sin)[:, None]
    width = table.shape[1]
    part = heads[..., first : first + width].unflatten(-1, (-1, 2)).contiguous()
    middle = torch.view_as_real(torch.view_as_complex(part) * angles).flatten(-2)
    parts = (heads[..., :first], middle, heads[..., first + width :])
    return torch.cat(parts, -1).view_as(x)


def kernel(
    positions: Any, query: Any, key: Any, size: int, table: Any, neox: bool, *how: Any
) -> None:
    assert not neox
    first, back = (*how, False)[:2]
    with torch.no_grad():
        for x in (query, key):
            x.copy_(turned(positions, x, size, table, first, back))


@pytest.mark.parametrize("strategy", ["flag", "replace", "attach"])
@pytest.mark.parametrize("how", [(2, False), (0, True), (1, True), (2,)])
def test_its_gradients(
    how: tuple[Any, ...], strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = ModuleType("vllm")
    ops = SimpleNamespace(rotary_embedding=kernel)
    monkeypatch.setattr(library, "_custom_ops", ops, raising=False)
    monkeypatch.setitem(sys.modules, "vllm", library)
    text = CODE.format(", ".join(map(str, how)))
    fixed = fix_text(text, "m.py", Options(strategy=strategy))
    assert fixed.text != text and not fixed.remaining
    module: dict[str, Any] = {}
    exec(fixed.text, module)
    torch.manual_seed(0)
    table, positions = torch.randn(8, 4), torch.arange(3)
    leaves = [torch.randn(3, 12, requires_grad=True), torch.randn(3, 6, requires_grad=True)]
    results = module["Rotary"](table)(positions, *(x * 2 for x in leaves))
    full = (*how, False)[:2]
    expected = [turned(positions, x * 2, 6, table, *full) for x in leaves]
    for a, b in zip(results, expected, strict=True):
        torch.testing.assert_close(a, b)
    gradients = [
        torch.autograd.grad(torch.cat(r, -1).sin().sum(), leaves) for r in (results, expected)
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)
