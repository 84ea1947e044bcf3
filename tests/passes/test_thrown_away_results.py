"""Callers that throw a module's result away rely on its writes, also where who they call is unclear.

Each program runs before and after its fix: with gradients on, the forward stays the same.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stand_in_kernels import fused_add_rms_norm, stand_in
from verbs import findings, fix

from tests.each import in_turn
from trainify.findings import Safety

HEAD = """\
import sgl_kernel
import torch
from torch import nn


class AddNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x, residual):
        sgl_kernel.fused_add_rmsnorm(x, residual, self.weight, 1e-6)
        return x, residual


NORMS = {{"add": AddNorm}}


class Other(nn.Module):
    def forward(self, x, residual):
        return x + residual


class Block(nn.Module):
    def __init__(self, d=8, norm=AddNorm):
        super().__init__()
        self.other = Other()
        self.norms = {made}

    def forward(self, x, r):
        x, r = 2 * x, 3 * r
        {calls}
        return x + r
"""
IGNORED = {
    "loop": (
        "nn.ModuleList([AddNorm(d) for _ in range(2)])",
        "for n in self.norms:\n            n(x, r)",
    ),
    "element": ("nn.ModuleList([AddNorm(d)])", "self.norms[0](x, r)"),
    "zip": (
        "nn.ModuleList([AddNorm(d)])",
        "for k, n in zip((1, 2), self.norms):\n            x = k * x\n            n(x, r)",
    ),
    "registry": ('NORMS["add"](d)', "self.norms(x, r)"),
    "parameter": ("norm(d)", "self.norms(x, r)"),
    "local": ("norm(d)", "norm = self.norms\n        norm(x, residual=r)"),
}
TAKEN = {
    "loop": ("nn.ModuleList([AddNorm(d)])", "for n in self.norms:\n            x, r = n(x, r)"),
    "another module": ("AddNorm(d)", "self.other(x, r)\n        x, r = self.norms(x, r)"),
    "a method": (
        "AddNorm(d)",
        "self.check(x, r)\n        x, r = self.norms(x, r)\n        return x + r\n\n"
        "    def check(self, x, r):\n        pass\n\n    def more(self, x, r):\n        pass",
    ),
    "a loader": (
        "AddNorm(d)",
        "x, r = self.norms(x, r)\n        return x + r\n\n"
        "    def load_weights(self, weights):\n        for name, tensor in weights:\n"
        "            loader = getattr(self, name)\n            loader(name, tensor)",
    ),
    "a function": ("AddNorm(d)", "print(x.shape, r.shape)\n        x, r = self.norms(x, r)"),
    "other arguments": (
        "AddNorm(d)",
        "f = lambda *a: 0\n        f(x)\n        x, r = self.norms(x, r)",
    ),
}


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "sgl_kernel", fused_add_rmsnorm=fused_add_rms_norm)


def computed(text: str) -> torch.Tensor:
    space: dict[str, Any] = {"__name__": "m"}
    exec(compile(text, "m.py", "exec"), space)
    x = torch.linspace(-1, 1, 16, requires_grad=True).view(2, 8)
    result = space["Block"]()(x, x.flip(-1))
    assert isinstance(result, torch.Tensor)
    return result.detach()


@pytest.mark.parametrize(("made", "calls", "unsafe"), in_turn(IGNORED, [False, True]))
def test_a_result_that_is_ignored(made: str, calls: str, unsafe: bool) -> None:
    text = HEAD.format(made=made, calls=calls)
    (found,) = findings(text)
    assert all(each.safety is Safety.UNSAFE for each in found.fixes.values())
    assert torch.allclose(computed(fix(text, unsafe=unsafe)), computed(text), atol=1e-6)


@pytest.mark.parametrize(("made", "calls"), TAKEN.values(), ids=TAKEN)
def test_a_result_that_is_taken(made: str, calls: str) -> None:
    text = HEAD.format(made=made, calls=calls)
    (found,) = findings(text)
    assert found.fixes["flag"].safety is Safety.SAFE
    assert fix(text) != text
    assert torch.allclose(computed(fix(text)), computed(text), atol=1e-6)
