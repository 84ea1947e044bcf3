"""A residual that a layer updates in its caller's tensor, run: values and gradients are right."""

from __future__ import annotations

import linecache
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from verbs import findings, fix

from tests.each import in_turn
from trainify.findings import STRATEGIES, Safety

NORM = "ops.fused_add_rms_norm({}, res, self.{}, 1e-6)"
FIRST, SECOND = NORM.format("x", "first"), NORM.format("h", "second")
HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn
from vllm import _custom_ops as ops


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.tensor([1.0, 2.0, 0.5, 1.5]))
        self.second = nn.Parameter(torch.tensor([0.5, 1.0, 2.0, 1.0]))
        self.mix = nn.Linear(4, 4)

    def forward(self, x, res):
"""
TAIL = """

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x, res):
        for layer in self.layers:
            x = layer(x, res)
        return x + res
"""
ONE = (FIRST, "h = self.mix(x)")
TWO = (*ONE, SECOND)
KEPT = {
    "not read": (*ONE, "return h"),
    "only looked at": (*ONE, "str(res)", "return h"),
    "under another name": (*ONE, "size = res.shape", "print(end=str(size)[:0])", "return h"),
    "a new value": (*ONE, "str(res)", "res = h * 2.0", "return h + 0 * res"),
    "another branch": (
        *("if x.dim() > 1:", f"    {FIRST}", "    h = self.mix(x)", "    str(res)", "    return h"),
        "return x + res",
    ),
    "seen through a view": (
        "flat = res.view(-1, 4)",
        FIRST.replace("res", "flat"),
        *("h = self.mix(x)", "str(res)", "return h"),
    ),
    "twice": (*TWO, "return self.mix(h)"),
    "twice, and looked at": (*TWO, "str(res)", "return self.mix(h)"),
    "twice, one returned": (*ONE, "h = h + res", SECOND, "return self.mix(h)"),
}
RETURNED = {
    "itself": (FIRST, "return self.mix(x), res"),
    "twice": (*TWO, "return self.mix(h), res"),
    "in a sum": (*ONE, "return h + res"),
    "through names": (*ONE, "y = res * 2", "if y.dim() > 1:", "    h = h + y", "return h"),
    "through a kernel": (
        *ONE,
        "out = torch.empty_like(res)",
        "ops.rms_norm(out, res, self.second, 1e-6)",
        "return h + out",
    ),
    "collected": (*ONE, "kept = [h]", "kept.append(res)", "return kept"),
}


def _program(body: tuple[str, ...]) -> str:
    return HEAD + "".join(f"        {line}\n" for line in body) + TAIL


def _rms(x: Any, weight: Any, eps: float) -> Any:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def _raw(x: Any, res: Any, weight: Any, eps: float) -> None:
    res.data.add_(x.data)
    x.data.copy_(_rms(res.data, weight.data, eps))


def _plain(x: Any, res: Any, weight: Any, eps: float) -> None:
    """The same, seen by autograd."""
    total = x + res
    x.copy_(_rms(total, weight, eps))
    res.copy_(total)


def _run(monkeypatch: pytest.MonkeyPatch, text: str, kernel: Any, grad: bool = True) -> list[Any]:
    ops = ModuleType("vllm._custom_ops")
    ops.fused_add_rms_norm = kernel  # type: ignore[attr-defined]
    vllm = ModuleType("vllm")
    vllm._custom_ops = ops  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm._custom_ops", ops)
    scope: dict[str, Any] = {"__name__": "handed_back"}
    linecache.cache["handed_back"] = (len(text), None, text.splitlines(True), "handed_back")
    exec(compile(text, "handed_back", "exec"), scope)
    torch.manual_seed(0)
    model: nn.Module = scope["Model"]()
    x = torch.randn(3, 4, requires_grad=True)
    res = torch.randn(3, 4, requires_grad=True)
    with torch.set_grad_enabled(grad):
        out = model(
            (x * 1.0).detach() if not grad else x * 1.0,
            res.detach().clone() if not grad else res * 1.0,
        )
    if not grad:
        return [out]
    out.sum().backward()
    return [out.detach(), x.grad, res.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize(("name", "strategy"), in_turn(list(KEPT), STRATEGIES))
def test_the_callers_residual_is_updated(
    monkeypatch: pytest.MonkeyPatch, name: str, strategy: str
) -> None:
    text = _program(KEPT[name])
    wanted = _run(monkeypatch, text, _plain)
    (before,) = _run(monkeypatch, text, _raw, grad=False)
    assert fix(text, strategy=strategy) == text
    found = [f for f in findings(text, strategy=strategy) if f.rule == "TRN102"]
    assert found
    assert all("is not returned" in f.fixes[strategy].look_at for f in found)
    fixed = fix(text, strategy=strategy, unsafe=True)
    assert fixed.count("res.copy_(") + fixed.count("flat.copy_(") == len(found)
    for a, b in zip(_run(monkeypatch, fixed, _raw), wanted, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.allclose(a, b, atol=1e-5)
    (served,) = _run(monkeypatch, fixed, _raw, grad=False)
    assert torch.allclose(served, before, atol=1e-5)
    assert fix(fixed, strategy=strategy, unsafe=True) == fixed


@pytest.mark.parametrize("name", RETURNED)
def test_what_is_returned_is_computed_anew(name: str) -> None:
    text = _program(RETURNED[name]).partition("\n\nclass Model")[0]
    found = [f for f in findings(text) if f.rule == "TRN102"]
    assert found and all(f.fixes["flag"].safety is Safety.SAFE for f in found)
    assert ".copy_(" not in fix(text)
