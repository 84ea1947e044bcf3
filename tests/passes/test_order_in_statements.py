"""Kernels beside each other in one statement, and beside what has to run before them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from verbs import findings, fix

from tests.each import in_turn
from trainify.catalog.own import own_op
from trainify.findings import STRATEGIES, Safety

HEAD = """\
import torch
from sgl_kernel import gelu_and_mul, silu_and_mul
from torch import nn
from vllm import _custom_ops as ops


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(4, 8)
        self.c = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 0.5, 1.5]))
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
"""
BODIES = {
    "two": "return silu_and_mul(self.a(x)) + gelu_and_mul(self.b(x))",
    "the same, twice": "return silu_and_mul(self.a(x)) * silu_and_mul(self.b(x))",
    "in a dict": """return sum({"a": silu_and_mul(self.a(x)), "b": gelu_and_mul(self.b(x))}.values())""",
    "within another": "return silu_and_mul(self.a(gelu_and_mul(self.b(x))))",
    "dropout": "return self.drop(self.c(x)) + silu_and_mul(self.drop(self.a(x)))",
    "random numbers": "return torch.rand_like(x) * silu_and_mul(self.a(x) * torch.rand(1))",
    "an iterator": """\
it = iter(x.split(1))
return torch.cat([next(it), silu_and_mul(self.a(next(it))), next(it)])
""",
    "a list": "xs = list(x.split(1))\nreturn xs.pop() + silu_and_mul(self.b(xs.pop()))",
    "a walrus": "return (y := self.c(x)) + silu_and_mul(self.a(y))",
    "to the left": "return silu_and_mul(self.drop(self.a(x))) + self.drop(self.c(x))",
    "in an argument": "return torch.add(self.drop(x), silu_and_mul(self.drop(self.a(x))), alpha=2.0)",
    "in a sum in place": "y = self.c(x)\ny += silu_and_mul(self.b(x))\nreturn y",
}


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_and_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate) * up


def fused_add_rms_norm(x: Any, residual: Any, weight: Any, eps: float) -> None:
    residual.data.add_(x.data)
    x.data.copy_(F.rms_norm(residual.data, residual.shape[-1:], weight.data, eps))


def result(monkeypatch: pytest.MonkeyPatch, text: str, differentiable: bool) -> list[torch.Tensor]:
    """The value that a program gives, and all gradients; of the same random numbers each time."""
    sgl, ops, vllm = (ModuleType(n) for n in ("sgl_kernel", "vllm._custom_ops", "vllm"))
    for function in (silu_and_mul, gelu_and_mul):
        kernel = function if differentiable else torch.no_grad()(function)
        setattr(sgl, function.__name__, kernel)
    ops.fused_add_rms_norm = fused_add_rms_norm  # type: ignore[attr-defined]
    vllm._custom_ops = ops  # type: ignore[attr-defined]
    for module in (sgl, ops, vllm):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    scope: dict[str, Any] = {"__name__": "statements"}
    exec(text, scope)
    torch.manual_seed(0)
    model: nn.Module = scope["Model"]()
    x = torch.randn(3, 4, requires_grad=True)
    out = model(x)
    out.sin().sum().backward()
    return [out.detach(), *(p.grad for p in (x, *model.parameters()) if p.grad is not None)]


def program(body: str) -> str:
    return HEAD + "".join(f"        {line}\n" for line in body.splitlines())


@pytest.mark.parametrize(("name", "strategy"), in_turn(list(BODIES), STRATEGIES))
def test_values_and_gradients(monkeypatch: pytest.MonkeyPatch, name: str, strategy: str) -> None:
    text = program(BODIES[name])
    fixed = fix(text, strategy=strategy, unsafe=True)
    assert fixed != text and fix(fixed, strategy=strategy, unsafe=True) == fixed
    got, want = result(monkeypatch, fixed, False), result(monkeypatch, text, True)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("strategy", ["flag", "replace"])
def test_what_may_run_in_any_order_is_written_out(strategy: str) -> None:
    assert "def gelu_and_mul" not in fix(program(BODIES["two"]), strategy=strategy)
    assert "def silu_and_mul" in fix(program(BODIES["dropout"]), strategy=strategy)


RETURNING = """\
from xformers.ops import rms_norm_add


def f(x, y, w):
    return {} + rms_norm_add(x, y, w)
"""


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("left", "rewritten"), [("x * 2", False), ("y * 2", True), ("y", True)])
def test_what_is_read_before_it_is_overwritten(left: str, rewritten: bool, strategy: str) -> None:
    (finding,) = findings(RETURNING.format(left), strategy=strategy)
    assert (strategy in finding.fixes) is rewritten
    assert rewritten or "Not rewritten: it writes in place inside" in finding.message


def test_several_results_that_are_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    body = "x, r = self.c(x), self.c(x) * 1.0\nops.fused_add_rms_norm({}, self.weight, 1e-6)\n"
    body = body.format("x[:, 1:], r[:, 1:]").replace("self.weight,", "self.weight[1:],")
    text = program(body + "return x + r")
    fixed = fix(text, strategy="attach", unsafe=True)
    assert fixed != text
    out, *grads = result(monkeypatch, fixed, False)

    plain = program(
        "x, r = self.c(x), self.c(x) * 1.0\ntotal = x[:, 1:] + r[:, 1:]\n"
        "normed = torch.nn.functional.rms_norm(total, (3,), self.weight[1:], 1e-6)\n"
        "return torch.cat([(x + r)[:, :1], normed + total], -1)"
    )
    for a, b in zip([out, *grads], result(monkeypatch, plain, True), strict=True):
        torch.testing.assert_close(a, b)


KERN = """\
from kern import rsub


class Model:
    def tick(self, x):
        self.calls += 1
        return x * self.calls

    def forward(self, a, b):
        return rsub({})
"""


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("given", "same"),
    [
        ("a, b", STRATEGIES),
        ("self.tick(a), b", STRATEGIES),
        ("self.tick(a), self.tick(b)", ("attach",)),
        ("b=self.tick(b), a=self.tick(a)", ("flag", "replace")),
        ("a * 2, a.mul_(2)", ("attach",)),
    ],
)
def test_what_arguments_do_is_done_in_their_order(
    given: str, same: tuple[str, ...], strategy: str
) -> None:
    """An equivalent may read its arguments in another order than the call gives them."""
    row = own_op(
        {
            "names": ["kern.rsub"],
            "schema": "rsub(Tensor a, Tensor b) -> Tensor",
            "equivalent": "b * 2 - a",
        }
    )
    (finding,) = (f for f in findings(KERN.format(given), ops=(row,)) if f.rule == "TRN101")
    assert (strategy in finding.fixes) is (strategy in same)


def test_an_argument_that_is_left_out() -> None:
    schema = "first(Tensor a, Tensor b) -> Tensor"
    row = own_op({"names": ["kern.rsub"], "schema": schema, "equivalent": "a * 3"})
    for given, safety in (("a, b * 2", Safety.SAFE), ("a, self.tick(b)", Safety.UNSAFE)):
        (finding,) = (f for f in findings(KERN.format(given), ops=(row,)) if f.rule == "TRN101")
        assert finding.fixes["flag"].safety is safety


def test_nothing_runs_ahead_of_what_stands_left_of_it() -> None:
    row = own_op(
        {"names": ["kern.rsub"], "schema": "square(Tensor x) -> Tensor", "equivalent": "x * x"}
    )
    text = KERN.format("{}").replace("return rsub", "return {} + rsub")
    ways = (
        ("a", "b * 2", True),
        ("a", "self.tick(b)", True),
        ("self.calls", "self.tick(b)", False),
        ("self.tick(a)", "b * 2", False),
    )
    for left, given, rewritten in ways:
        found = [f for f in findings(text.format(left, given), ops=(row,)) if f.rule == "TRN101"]
        assert ("flag" in found[0].fixes) is rewritten


DROPPED = """\
import torch
from sgl_kernel import rmsnorm
from vllm import _custom_ops as ops


def has_pdl():
    return torch.cuda.is_available()


def norm(x, weight: torch.Tensor, it):
    {}
"""


@pytest.mark.parametrize(
    ("given", "safe"),
    [
        ("True", True),
        ("has_pdl()", True),
        ("torch.version.cuda is not None", True),
        ("next(it)", False),
        ("bool(it.pop())", False),
        ("it.count()", False),
    ],
)
def test_what_an_argument_does_that_the_new_form_does_not_take(given: str, safe: bool) -> None:
    text = DROPPED.format(f"return rmsnorm(x, weight, 1e-6, enable_pdl={given})")
    (finding,) = findings(text)
    for fix_ in finding.fixes.values():
        assert (fix_.safety is Safety.SAFE) == safe
        assert safe or f"`{given}`, which" in fix_.look_at


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_makes_a_buffer_runs_where_it_takes_something(strategy: str) -> None:
    body = "out = torch.empty_like({})\n    ops.rms_norm(out, x, weight, 1e-6)\n    return out"
    kept = fix(DROPPED.format(body.format("next(it)")), strategy=strategy)
    assert "\n    out = torch.empty_like(next(it))\n" in kept
    plain = fix(DROPPED.format(body.format("x")), strategy=strategy)
    assert "\n    out = torch.empty_like(x)\n" not in plain
