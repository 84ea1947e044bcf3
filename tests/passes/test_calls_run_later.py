"""A call that runs after its statement asks for a gradient where it runs, not where it is made."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from verbs import becomes, findings, fix

HEAD = "import torch\nimport torch.nn.functional as F\nfrom flashinfer import rmsnorm\n\n"
NORM = "F.rms_norm(x, x.shape[-1:], w, 1e-6)"
ASKED = "torch.is_grad_enabled() and (x.requires_grad or w.requires_grad)"


def test_a_lambda_of_the_module() -> None:
    becomes(
        HEAD + "norm = lambda x, w: rmsnorm(x, w, 1e-6)\n",
        HEAD
        + f"norm = lambda x, w: (\n    {NORM}\n    if {ASKED}\n    else rmsnorm(x, w, 1e-6)\n)\n",
    )


def test_a_lambda_of_a_class() -> None:
    becomes(
        HEAD + "class A:\n    act = staticmethod(lambda x, w: rmsnorm(x, w, 1e-6))\n",
        HEAD
        + f"class A:\n    act = staticmethod(lambda x, w: (\n        {NORM}\n        if {ASKED}\n"
        "        else rmsnorm(x, w, 1e-6)\n    ))\n",
    )


LAYER = HEAD + (
    "class A(torch.nn.Module):\n"
    "    def __init__(self, w):\n"
    "        super().__init__()\n"
    "        self.w = w\n"
    "        self.norm = lambda x: rmsnorm(x, self.w)\n"
)


def test_the_flag_of_a_layer_is_read_when_the_lambda_runs() -> None:
    line = (
        "lambda x: (\n            F.rms_norm(x, x.shape[-1:], self.w, 1e-6)\n"
        "            if self.training\n            else rmsnorm(x, self.w)\n        )\n"
    )
    becomes(LAYER, LAYER.replace("lambda x: rmsnorm(x, self.w)\n", line), flag="training")


@pytest.mark.parametrize(
    "text",
    [
        "norm = lambda xs, w: [rmsnorm(x, w, 1e-6) for x in xs]\n",
        "def f(xs, w):\n    return (rmsnorm(x, w, 1e-6) for x in xs)\n",
        "def f(xs, w):\n    def g(x=lambda x: rmsnorm(x, w, 1e-6)):\n        pass\n    return g\n",
        "def f(x, w):\n    return [rmsnorm(x, w, 1e-6), lambda x: rmsnorm(x, w, 1e-6)]\n",
    ],
)
def test_each_call_asks_for_itself(text: str) -> None:
    fixed = fix(HEAD + text)
    assert fixed.count("rms_norm(") == fixed.count(f"if {ASKED}") == text.count("rmsnorm(")
    assert "if torch.is_grad_enabled():" not in fixed
    assert fix(fixed) == fixed
    assert NORM in fix(HEAD + text, strategy="replace")


def test_a_generator_that_is_used_up_at_once_is_no_function() -> None:
    fixed = fix(
        HEAD + "def f(xs, w):\n    a, b = (rmsnorm(x, w, 1e-6) for x in xs)\n    return a\n"
    )
    assert "    if torch.is_grad_enabled():\n        a, b = (F." in fixed


@pytest.mark.parametrize(
    "text",
    [
        "f = lambda x, w, out: rmsnorm(x, w, 1e-6, out=out)\n",
        "def g(w, out):\n    return lambda x: rmsnorm(x, w, out=out)\n",
        "def g(x, w):\n    out = torch.empty_like(x)\n    return lambda x: rmsnorm(x, w, out=out)\n",
    ],
)
def test_what_is_no_expression_stays(text: str) -> None:
    assert [finding.fixes.get("flag") for finding in findings(HEAD + text)] == [None]
    assert fix(HEAD + text) == HEAD + text


def test_a_lambda_made_without_gradients_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("flashinfer")
    library.rmsnorm = lambda x, w, eps=1e-6: torch.rms_norm(x, x.shape[-1:], w, eps).detach()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    scope: dict[str, object] = {}
    with torch.no_grad():
        exec(fix(LAYER), scope)
        norm = scope["A"](torch.ones(4, requires_grad=True)).norm  # type: ignore[operator]
    x = torch.randn(2, 4, requires_grad=True)
    norm(x).square().sum().backward()
    assert x.grad is not None
    with torch.no_grad():
        assert not norm(x).requires_grad
