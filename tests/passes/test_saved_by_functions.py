"""TRN403 where a function of the project made the result and saved it, which is then overwritten.

Each program is run: what is reported raises, or has a wrong gradient; fixed, it has the right one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from verbs import fix, rules

from tests.each import in_turn
from trainify.engine import check_paths

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn


class Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.sigmoid(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        return grad * out * (1 - out)


class KeepInput(Keep):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.sigmoid())
        return torch.sigmoid(x)


class KeepSilently(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.sigmoid(x)
        ctx.out = out
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.out * (1 - ctx.out)


class KeepLater(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        return grad * out * (1 - out)


class Gate(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x)


class Doubled(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * 2.0


def gate(x):
    return torch.sigmoid(x)


def attend(x):
    out = F.scaled_dot_product_attention(*[x[None, None]] * 3)
    return out.transpose(1, 2)


def kept(x):
    return Keep.apply(x)


def doubled(x):
    h = torch.sigmoid(x)
    return h * 2.0


def one_of_two(x, often=True):
    if often:
        return x * 2.0
    return torch.sigmoid(x)


def again(x, n):
    return again(torch.sigmoid(x), n - 1) if n else x * 1.0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.gate = Gate()
        self.doubled = Doubled()

    def own(self, x):
        return self.proj(x).exp()

    def forward(self, x):
        x = self.proj(x)
        h = {}
        h.mul_(3.0)
        return h
"""
HARMED = {
    "Function": "Keep.apply(x)",
    "Function, by setup_context": "KeepLater.apply(x)",
    "Function, in silence": "KeepSilently.apply(x)",
    "module": "self.gate(x)",
    "function": "gate(x)",
    "attention": "attend(x)",
    "function of a Function": "kept(x)",
    "method": "self.own(x)",
}
RIGHT = {
    "Function that keeps its input": "KeepInput.apply(x)",
    "module": "self.doubled(x)",
    "function": "doubled(x)",
    "one of two returns": "one_of_two(x)",
    "a function that calls itself": "again(x, 2)",
    "a copy": "gate(x).clone()",
    "a table": "gate(torch.ones(3, 4, dtype=x.dtype)) * x",
}


def gradient(text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of the input, and the same by finite differences."""
    scope: dict[str, Any] = {}
    exec(compile(text, "net", "exec"), scope)
    torch.manual_seed(0)
    net = scope["Net"]().double()
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(net(x).sum(), x)
    step = torch.randn_like(x) * 1e-6
    with torch.no_grad():
        change = net(x + step).sum() - net(x - step).sum()
    return (found * step).sum() * 2, change


@pytest.mark.parametrize(("made", "strategy"), in_turn(HARMED, ["flag", "replace"]))
def test_harm_is_found_and_fixed(made: str, strategy: str) -> None:
    text = HEAD.format(made)
    if "Silently" in made:
        assert not torch.allclose(*gradient(text), rtol=1e-6)
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradient(text)
    assert rules(text) == ["TRN403"]
    fixed = fix(text, strategy=strategy)
    assert rules(fixed) == []
    assert torch.allclose(*gradient(fixed), rtol=1e-6)


@pytest.mark.parametrize("made", RIGHT.values(), ids=RIGHT)
def test_what_saved_nothing_may_be_overwritten(made: str) -> None:
    text = HEAD.format(made)
    assert torch.allclose(*gradient(text), rtol=1e-6)
    assert rules(text) == []


def test_a_function_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "gates.py").write_text(HEAD[: HEAD.index("class Net")])
    net = "from .gates import Keep\nfrom torch import nn\n\n\n" + HEAD[HEAD.index("class Net") :]
    net = net.replace("        self.gate = Gate()\n        self.doubled = Doubled()\n", "")
    (tmp_path / "net.py").write_text(net.format("Keep.apply(x)"))
    found = [f.rule for r in check_paths([str(tmp_path)]) for f in r.findings]
    assert found == ["TRN403"]
