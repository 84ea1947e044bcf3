"""Grad modes in ``__call__``, under which a module runs its forward."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from verbs import fix, rules

PROGRAM = """\
import torch
from torch import nn


class BASE(nn.Module):
    CALL


class Model(OF):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)
        OWN
    def forward(self, x):
        return self.head(self.embed(x))
"""
OFF = {
    "with": """\
def __call__(self, *args, **kwargs):
    with torch.inference_mode():
        return super().__call__(*args, **kwargs)
""",
    "with, result named": """\
def __call__(self, x):
    with torch.no_grad():
        y = self.forward(x)
    return y
""",
    "decorator": """\
@torch.no_grad()
def __call__(self, *args):
    return super().__call__(*args)
""",
}
ON = {
    "another branch": """\
def __call__(self, *args):
    if self.training:
        return super().__call__(*args)
    with torch.no_grad():
        return super().__call__(*args)
""",
    "training's flag": """\
def __call__(self, *args):
    with torch.set_grad_enabled(self.training):
        return super().__call__(*args)
""",
    "a check": """\
def __call__(self, *args):
    with torch.no_grad():
        assert args[0].isfinite().all()
    return super().__call__(*args)
""",
}


def program(call: str, by_base: bool) -> str:
    method = textwrap.indent(call, " " * 4).strip()
    text = PROGRAM.replace("OF", "BASE" if by_base else "nn.Module").replace("BASE", "Base")
    own, base = ("", method) if by_base else (f"\n    {method}\n", "pass")
    return text.replace("CALL", base).replace("        OWN\n", f"{own}\n")


@pytest.mark.parametrize("by_base", [False, True])
@pytest.mark.parametrize("call", OFF.values(), ids=OFF)
def test_gradients_off_in_call(call: str, by_base: bool) -> None:
    before = program(call, by_base)
    assert rules(before) == ["TRN201"]
    space: dict[str, Any] = {}
    exec(fix(before, unsafe=True), space)
    model = space["Model"]()
    model(torch.randn(3, 4)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    assert not model.eval()(torch.randn(3, 4)).requires_grad


@pytest.mark.parametrize("by_base", [False, True])
@pytest.mark.parametrize("call", ON.values(), ids=ON)
def test_gradients_on_in_call(call: str, by_base: bool) -> None:
    assert rules(program(call, by_base)) == []
