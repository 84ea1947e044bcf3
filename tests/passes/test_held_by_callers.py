"""Callers that take what a module wrote, and hold the tensor that it wrote into as well.

The kernel changes what they hold.  A result that is computed leaves it as it was, so the forward
would be another one.  Each program runs before and after its fix.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stand_in_kernels import fused_add_rms_norm, stand_in
from verbs import findings, fix

from trainify.findings import Safety

HEAD = """\
import sgl_kernel
import torch
from torch import nn


class AddNorm(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x, residual):
        sgl_kernel.fused_add_rmsnorm(x, residual, self.weight, 1e-6)
        return x, residual


class Block(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(d, d), nn.Linear(d, d), AddNorm(d)

"""
LAYERS = """\
    def forward(self, h, residual):
        h, residual = self.norm(h, residual)
        return self.a(h), residual


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.seen = {}

    def forward(self, h, residual):
        h, residual = 2 * h, 2 * residual
        aux = []
        for i, layer in enumerate(self.layers):
            BEFORE
            h, residual = layer(h, residual)
        return RETURNED
"""


def layers(before: str, returned: str) -> str:
    return LAYERS.replace("BEFORE", before).replace("RETURNED", returned)


HELD = {
    "a list": """\
    def forward(self, x):
        h, r = self.a(x), self.b(x)
        states = [r]
        h, r = self.norm(h, r)
        return h, torch.stack(states)
""",
    "an attribute": """\
    def forward(self, x):
        h, r = self.a(x), self.b(x)
        self.last = r
        h, r = self.norm(h, r)
        return h * self.last
""",
    "a view": """\
    def forward(self, x):
        h, r = self.a(x), self.b(x)
        last = r[-1]
        h, r = self.norm(h, r)
        return h * last
""",
    "another name": """\
    def forward(self, x):
        h, r = self.a(x), self.b(x)
        first = r
        h, r = self.norm(h, r)
        return h * first
""",
    "its own caller": """\
    def forward(self, h):
        y, total = self.norm(self.a(h), h)
        return y + total


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        h = 2 * x
        return self.block(h) * h
""",
    "a default": """\
    def inner(self, h, r=None):
        r = h if r is None else r
        y, r = self.norm(self.a(h), r)
        return y + r

    def forward(self, x):
        h = self.b(x)
        return self.inner(h) + h
""",
    "a list of layers' inputs": layers("aux.append(residual)", "h, torch.cat(aux, -1)"),
    "a dict of the module": layers("self.seen[i] = residual", "h, self.seen[0]"),
}
FREE = {
    "sums": """\
    def forward(self, x):
        h, r = self.a(x), self.b(x)
        aux = [h + r]
        h, r = self.norm(h, r)
        aux.append(r.clone())
        return h, torch.stack(aux)
""",
    "layers": layers("aux.append(i)", "h + residual"),
    "sums of layers' inputs": layers("aux.append(h + residual)", "h, torch.cat(aux, -1)"),
    "a residual that is the input": """\
    def forward(self, h, residual):
        if residual is None:
            residual = h
            h = self.a(h)
        else:
            h, residual = self.norm(h, residual)
        h = self.b(h)
        h, residual = self.norm(h, residual)
        return h, residual


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        h, r = 2 * x, None
        for _ in range(2):
            h, r = self.block(h, r)
        return h + r
""",
}


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "sgl_kernel", fused_add_rmsnorm=fused_add_rms_norm)


def computed(text: str) -> torch.Tensor:
    space: dict[str, Any] = {"__name__": "m"}
    exec(compile(text, "m.py", "exec"), space)
    torch.manual_seed(0)
    model = space.get("Model", space["Block"])()
    x = torch.linspace(-1, 1, 16, requires_grad=True).view(2, 8)
    results = model(*(x, x.flip(-1))[: model.forward.__code__.co_argcount - 1])
    results = results if isinstance(results, tuple) else (results,)
    return torch.cat([each.detach().flatten() for each in results])


@pytest.mark.parametrize("text", HELD.values(), ids=HELD)
def test_what_is_held_changes_with_the_write(text: str) -> None:
    (found,) = findings(HEAD + text, select=("TRN102",))
    assert all(each.safety is Safety.UNSAFE for each in found.fixes.values())
    fixed = fix(HEAD + text, unsafe=True)
    assert fixed != HEAD + text
    assert torch.allclose(computed(fixed), computed(HEAD + text), atol=1e-6)


@pytest.mark.parametrize("text", FREE.values(), ids=FREE)
def test_what_nobody_holds_may_become_another_tensor(text: str) -> None:
    (found,) = findings(HEAD + text)
    assert found.fixes["flag"].safety is Safety.SAFE
    assert torch.allclose(computed(fix(HEAD + text)), computed(HEAD + text), atol=1e-6)
