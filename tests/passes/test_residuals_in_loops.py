"""A residual that one turn of a loop takes from what the next turns make anew.

Run: what is fixed gives what was served, and the gradients of the same in plain torch.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stand_in_kernels import fused_add_rms_norm, stand_in
from torch import nn
from verbs import findings, fix

from tests.each import case
from trainify.findings import STRATEGIES

PROGRAM = """\
import torch
import torch.nn.functional as F
from torch import nn
from vllm import _custom_ops as ops


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 0.5, 1.5]))

    def norm(self, x):
        return F.rms_norm(x, (4,), self.weight, 1e-6)

    def forward(self, h):
BODY


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.block = nn.Linear(4, 4), Block()

    def forward(self, x):
        CALL
"""
TAKEN = "return self.block(self.first(x)).sin()"
KERNEL = "ops.fused_add_rms_norm(h, r, self.weight, 1e-6)"
PLAIN = "r = h + r; h = F.rms_norm(r, (4,), self.weight, 1e-6)"

APART = {
    "the first turn": """\
r = None
for layer in self.layers:
    if r is None:
        r = h
        h = self.norm(h)
    else:
        KERNEL
    h = layer(h)
return h + r
""",
    "made anew behind the branch": """\
r = None
for layer in self.layers:
    if r is None:
        r = h
    else:
        KERNEL
    h = layer(h)
return h * r
""",
    "swapped": """\
r, h = h, self.norm(h)
for layer in self.layers:
    h = layer(h)
    KERNEL
    h, r = r, h
return h * 2 + r
""",
    "at the end of a turn": """\
r, i = h, 0
h = self.norm(h)
while i < 3:
    h = self.layers[i](h)
    KERNEL
    r = h
    i += 1
return r
""",
}


def program(body: str, call: str = TAKEN) -> str:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return PROGRAM.replace("BODY\n", lines).replace("CALL", call)


def model(monkeypatch: pytest.MonkeyPatch, text: str) -> nn.Module:
    stand_in(monkeypatch, "vllm._custom_ops", fused_add_rms_norm=fused_add_rms_norm)
    scope: dict[str, Any] = {"__name__": "loops"}
    exec(text, scope)
    torch.manual_seed(0)
    made: nn.Module = scope["Model"]()
    return made


def gradients(made: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor | None]:
    made(x).square().sum().backward()
    return {name: parameter.grad for name, parameter in made.named_parameters()}


@pytest.mark.parametrize("name", APART)
def test_in_another_turn_it_is_another_tensor(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text, x = program(APART[name].replace("KERNEL", KERNEL)), torch.randn(3, 4)
    with torch.no_grad():
        served = model(monkeypatch, text)(x)
    right = gradients(model(monkeypatch, program(APART[name].replace("KERNEL", PLAIN))), x)
    for strategy in STRATEGIES:
        with case(strategy):
            fixed = fix(text, strategy=strategy)
            assert not findings(fixed, strategy=strategy)
            made = model(monkeypatch, fixed)
            torch.testing.assert_close(made(x), served)
            torch.testing.assert_close(gradients(made, x), right, rtol=1e-4, atol=1e-5)


SHARED = {
    "a view of it": """\
r = None
for layer in self.layers:
    if r is None:
        r = h
        h = h.view(3, 4)
    else:
        KERNEL
return h + r
""",
    "made anew at times": """\
r = None
for layer in self.layers:
    if r is None:
        r = h
        if h.sum() > 0:
            h = self.norm(h)
    else:
        KERNEL
return h + r
""",
    "a turn that ends before": """\
r = None
for layer in self.layers:
    if r is None:
        r = h
        if h.sum() > 0:
            continue
        h = self.norm(h)
    else:
        KERNEL
return h + r
""",
    "made anew for the loop that is left": """\
r = h
for layer in self.layers:
    r = h
    if h.sum() > 0:
        break
    h = layer(h)
KERNEL
return h + r
""",
}


@pytest.mark.parametrize("name", SHARED)
def test_what_may_be_one_tensor_stays(name: str) -> None:
    text = program(SHARED[name].replace("KERNEL", KERNEL))
    (found,) = findings(text)
    assert found.rule == "TRN102" and "shares storage" in found.message and fix(text) == text


STRAIGHT = """\
r = h
h = self.layers[0](self.norm(h))
KERNEL
return h
"""


def test_a_residual_that_the_caller_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the argument stands for another tensor by then."""
    body, x = STRAIGHT.replace("KERNEL", KERNEL), torch.randn(3, 4)
    assert fix(program(body)) != program(body)
    text = program(body, "h = self.first(x); y = self.block(h); return y + h")
    (found,) = findings(text)
    for strategy in STRATEGIES:
        with case(strategy):
            assert "callers read `h`" in found.fixes[strategy].look_at
            assert fix(text, strategy=strategy) == text
            with torch.no_grad():
                served = model(monkeypatch, text)(x)
            fixed = fix(text, strategy=strategy, unsafe=True)
            torch.testing.assert_close(model(monkeypatch, fixed)(x), served)
