"""A norm that adds in its caller's tensors, and returns them: who takes them, and who looks there.

Run: what is fixed gives what was served, whoever calls it, and by whatever.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stand_in_kernels import fused_add_rms_norm, stand_in
from torch import nn
from verbs import findings, fix

from tests.each import in_turn
from trainify.findings import STRATEGIES, Safety

PROGRAM = """\
import functools
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from vllm import _custom_ops as ops


{function}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 0.5, 1.5]))
        {init}

    def forward(self, x, r):
        h = self.lin(x)
        {call}
        return h + r
"""

HANDED = """
    def go(self, f, a, b):
        f(a, b, self.weight)
"""

MODULE = """\
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, 1.0, 2.0, 1.0]))

    def forward(self, x, r):
        ops.fused_add_rms_norm(x, r, self.scale.data, 1e-6)
        return x, r"""

FUNCTION = """\
def add_norm(x, r, weight: torch.Tensor):
    ops.fused_add_rms_norm(x, r, weight, 1e-6)
    return x, r"""

NORM = "self.norm = Norm()"
BOUND = "functools.partial(add_norm, weight=self.weight)"

LOOKED_AT = {
    "checkpoint": (NORM, "checkpoint(self.norm, h, r, use_reentrant=False)"),
    "checkpoint, its result not read": (
        NORM,
        "y, s = checkpoint(self.norm, h, r, use_reentrant=False)",
    ),
    "checkpoint of a method": (NORM, "checkpoint(self.norm.forward, h, r, use_reentrant=False)"),
    "checkpoint of a partial": (
        NORM,
        "checkpoint(functools.partial(self.norm, h), r, use_reentrant=False)",
    ),
    "checkpoint of a lambda": (
        NORM,
        "checkpoint(lambda a, b: self.norm(a, b), h, r, use_reentrant=False)",
    ),
    "by a dict": (NORM, 'y, s = self.norm(**{"x": h, "r": r})'),
    "by a named dict": (NORM, "given = dict(x=h, r=r)\n        y, s = self.norm(**given)"),
    "by a list": (NORM, "y, s = self.norm(*[h, r])"),
    "by a named list": (NORM, "both = h, r\n        y, s = self.norm(*both)"),
    "by a part of a list": (NORM, "y, s = self.norm(h, *[r])"),
    "partial": (NORM + "; self.run = functools.partial(self.norm)", "self.run(h, r)"),
    "partial in a table": (
        NORM + "; self.table = {'n': functools.partial(self.norm)}",
        "self.table['n'](h, r)",
    ),
    "function, checkpoint": (
        "pass",
        "checkpoint(add_norm, h, r, self.weight, use_reentrant=False)",
    ),
    "function, by a dict": ("pass", "y, s = add_norm(**dict(x=h, r=r, weight=self.weight))"),
    "function, by a list": ("pass", "y, s = add_norm(*[h, r], self.weight)"),
    "function, handed on": ("pass", "self.go(add_norm, h, r)"),
    "function in a table": (
        "self.table = {'n': add_norm}",
        "self.table.get('n')(h, r, self.weight)",
    ),
    "function in a list": (
        "self.runs = [add_norm]",
        "for run in self.runs:\n            run(h, r, self.weight)",
    ),
    "function in a lambda": (
        "self.run = lambda a, b: add_norm(a, b, self.weight)",
        "self.run(h, r)",
    ),
    "function, partial in a table": (f"self.table = {{'n': {BOUND}}}", "self.table['n'](h, r)"),
}
TAKEN = {
    "itself": (NORM, "h, r = self.norm(h, r)"),
    "checkpoint": (NORM, "h, r = checkpoint(self.norm, h, r, use_reentrant=False)"),
    "by a dict": (NORM, 'h, r = self.norm(**{"x": h, "r": r})'),
    "by a list": (NORM, "h, r = self.norm(*[h, r])"),
    "partial": (NORM + "; self.run = functools.partial(self.norm)", "h, r = self.run(h, r)"),
    "function, checkpoint": (
        "pass",
        "h, r = checkpoint(add_norm, h, r, self.weight, use_reentrant=False)",
    ),
    "function, partial in a table": (
        f"self.table = {{'n': {BOUND}}}",
        "h, r = self.table['n'](h, r)",
    ),
    "beside others that are given it": (
        NORM + "; self.all = nn.Sequential(self.norm, self.lin)",
        "h, r = self.norm(h, r)",
    ),
}


def program(init: str, call: str) -> str:
    function = MODULE if "Norm()" in init else FUNCTION
    made = PROGRAM.format(function=function, init=init.replace("; ", "\n        "), call=call)
    return made + HANDED * ("self.go(" in call)


def block(monkeypatch: pytest.MonkeyPatch, text: str) -> nn.Module:
    stand_in(monkeypatch, "vllm._custom_ops", fused_add_rms_norm=fused_add_rms_norm)
    scope: dict[str, Any] = {"__name__": "relied_on"}
    exec(text, scope)
    torch.manual_seed(0)
    made: nn.Module = scope["Block"]()
    return made


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(3, 4), torch.randn(3, 4)


@pytest.mark.parametrize(("name", "strategy"), in_turn(list(LOOKED_AT), STRATEGIES))
def test_the_callers_tensors_are_written(
    monkeypatch: pytest.MonkeyPatch, name: str, strategy: str
) -> None:
    text = program(*LOOKED_AT[name])
    with torch.no_grad():
        served = block(monkeypatch, text)(*inputs())
    assert fix(text, strategy=strategy) == text
    (found,) = (f for f in findings(text, strategy=strategy) if f.rule == "TRN102")
    assert "callers read" in found.fixes[strategy].look_at
    assert ("checkpoints it" in found.fixes[strategy].look_at) == ("checkpoint" in name)
    fixed = fix(text, strategy=strategy, unsafe=True)
    torch.testing.assert_close(block(monkeypatch, fixed)(*inputs()), served)


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_returned_is_taken(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text = program(*TAKEN[name])
    with torch.no_grad():
        served = block(monkeypatch, text)(*inputs())
    fixed = fix(text)
    (found,) = (f for f in findings(text) if f.rule == "TRN102")
    assert found.fixes["flag"].safety is Safety.SAFE and ".copy_(" not in fixed
    model = block(monkeypatch, fixed)
    out = model(*inputs())
    torch.testing.assert_close(out, served)
    out.sin().sum().backward()

    x, r = inputs()
    plain = block(monkeypatch, fixed)
    h = plain.lin(x)  # type: ignore[operator]
    weight = plain.norm.scale if hasattr(plain, "norm") else plain.weight
    total = h + r
    want = F.rms_norm(total, total.shape[-1:], weight, 1e-6) + total  # type: ignore[arg-type]
    want.sin().sum().backward()
    for got, right in zip(model.parameters(), plain.parameters(), strict=True):
        assert (got.grad is None) == (right.grad is None)
        if got.grad is not None:
            torch.testing.assert_close(got.grad, right.grad)


ALIASES = {
    "two names": "h, r = self.lin(x), (s := self.lin(x))",
    "a walrus": "h = self.lin(x)\n        r = (s := h * 2)",
    "a loop": "h = self.lin(x)\n        r = h * 2\n        for s in (r,):\n            pass",
    "a comprehension": "h = self.lin(x)\n        r = h * 2\n        (s,) = [t for t in (r,)]",
    "all of them": "h = self.lin(x)\n        s = r = h * 2",
    "an attribute": "h = self.lin(x)\n        self.kept = r = h * 2\n        s = self.kept",
}


@pytest.mark.parametrize("name", ALIASES)
def test_another_name_of_what_is_written(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It is not rewritten, or both names have the new value."""
    call = f"{ALIASES[name]}\n        ops.fused_add_rms_norm(h, r, self.weight.data, 1e-6)\n        r = s"
    text = program("pass", call)
    with torch.no_grad():
        served = block(monkeypatch, text)(*inputs())
    fixed = fix(text, unsafe=True)
    torch.testing.assert_close(block(monkeypatch, fixed)(*inputs()), served)
    assert fixed != text or any("Not rewritten" in f.message for f in findings(text))


STEP = """\
import torch
from causal_conv1d import causal_conv1d_update


def step(x, cache, weight, keep):
    y = causal_conv1d_update(x, cache, weight)
    return y, {}
"""


@pytest.mark.parametrize(
    ("given", "safe"),
    [("cache if keep else None", False), ("None if not keep else cache", False), ("cache", True)],
)
def test_a_state_that_is_handed_back_at_times(
    given: str, safe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its holder has it, who looks at what it passed."""
    text = STEP.format(given)
    (found,) = findings(text)
    assert (found.fixes["flag"].safety is Safety.SAFE) is safe
    monkeypatch.setitem(sys.modules, "causal_conv1d", ModuleType("causal_conv1d"))
    sys.modules["causal_conv1d"].causal_conv1d_update = None  # type: ignore[attr-defined]
    scope: dict[str, Any] = {}
    exec(fix(text, unsafe=True), scope)
    x, weight = torch.tensor([[3.0]]), torch.tensor([[0.5, 2.0]], requires_grad=True)
    cache = torch.tensor([[[1.0, 2.0]]])
    y, kept = scope["step"](x, cache, weight, False)
    assert y.tolist() == [[7.0]]
    assert (kept if safe else cache).tolist() == [[[2.0, 3.0]]]
    y.sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [[2.0, 3.0]]
