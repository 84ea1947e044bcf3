"""Statements that share a line get lines of their own where the new form of one needs them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from verbs import becomes, fix

HEAD = """\
import torch
import torch.nn.functional as F
from sgl_kernel import silu_and_mul
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x, c):
        a = self.proj(x)
"""
SWIGLU = """\
{0}if torch.is_grad_enabled() and x.requires_grad:
{0}    gate, up = x.float().chunk(2, dim=-1)
{0}    y = (F.silu(gate) * up).to(x.dtype)
{0}else:
{0}    y = silu_and_mul(x){1}
"""


def in_function(body: str) -> str:
    return f"{HEAD}{body}        return y\n"


@pytest.mark.parametrize(
    ("line", "before", "behind"),
    [
        ("x = x + 1; y = silu_and_mul(x)  # so", "        x = x + 1\n", ""),
        ("y = silu_and_mul(x); y = y * 2  # so", "", "        y = y * 2  # so\n"),
        ("x = -x; y = silu_and_mul(x); a = y; c = a", "        x = -x\n", "        a = y; c = a\n"),
    ],
)
def test_between_others(line: str, before: str, behind: str) -> None:
    comment = "" if behind or "#" not in line else "  # so"
    after = f"{before}{SWIGLU.format(' ' * 8, comment)}{behind}"
    becomes(in_function(f"        {line}\n"), in_function(after))


@pytest.mark.parametrize("head", ["if c:", "for _ in range(2):", "with torch.autocast('cpu'):"])
def test_behind_a_colon(head: str) -> None:
    line = f"        {head} x = -x; y = silu_and_mul(x); a = y\n"
    after = f"            x = -x\n{SWIGLU.format(' ' * 12, '')}            a = y\n"
    becomes(in_function(line), in_function(f"        {head}\n{after}"))


def test_a_function_on_one_line() -> None:
    head = f"{HEAD}        return a\n\n\n"
    after = "def f(x):\n    x = -x\n" + SWIGLU.format("    ", "").replace("y = ", "return ")
    after = after.replace("    else:\n        return", "    return")
    becomes(f"{head}def f(x): x = -x; return silu_and_mul(x)\n", f"{head}{after}")


def test_in_their_place() -> None:
    """What is replaced stays on the line, as long as that is no longer than others."""
    before = in_function("        x = -x; y = silu_and_mul(x)  # so\n")
    text = "gate, up = x.float().chunk(2, dim=-1){}y = (F.silu(gate) * up).to(x.dtype)  # so\n"
    for ruler, apart in (("", "\n        "), (f"# {'-' * 98}\n", "; ")):
        after = in_function(f"        x = -x{apart}{text.format(apart)}")
        after = after.replace("from sgl_kernel import silu_and_mul\n", "")
        becomes(ruler + before, ruler + after, strategy="replace")


def test_a_buffer_on_the_line() -> None:
    """An allocation that is not needed any more goes, with its semicolon."""
    imports = "from sgl_kernel import silu_and_mul\n"
    line = "y = torch.empty_like(x); torch.ops._C.{}; y = y * 2"
    for call, after in (
        ("rms_norm(y, x, c, 1e-6)", "y = F.rms_norm(x, x.shape[-1:], c, 1e-6); y = y * 2"),
        (
            "gelu_new(y, x)",
            "t = torch.tanh(0.79788456 * (x + 0.044715 * (x * x * x)))\n"
            "        y = 0.5 * x * (1.0 + t)\n"
            "        y = y * 2",
        ),
    ):
        before = in_function(f"        {line.format(call)}\n").replace(imports, "")
        fixed = in_function(f"        {after}\n").replace(imports, "")
        becomes(before, fixed, strategy="replace")


PLAIN = HEAD.replace("from sgl_kernel import silu_and_mul\n", "")


@pytest.mark.parametrize(
    "line", ["y = torch.empty_like(x); n = 1", "n = 1; y = torch.empty_like(x)"]
)
def test_a_buffer_on_another_line(line: str) -> None:
    """What shares the line with an allocation that goes stays there, whichever comes first."""
    kernel = "        torch.ops._C.rms_norm(y, x, c, 1e-6)\n"
    after = "        n = 1\n        y = F.rms_norm(x, x.shape[-1:], c, 1e-6)\n"
    before = f"{PLAIN}        {line}\n{kernel}        return y * n\n"
    becomes(before, f"{PLAIN}{after}        return y * n\n", strategy="replace")


@pytest.mark.parametrize("strategy", ["flag", "replace"])
@pytest.mark.parametrize(
    ("lines", "loss"),
    [
        (["a.div_(2)", "torch.tanh(a, out=a)", "a.mul_(c)"], "a"),
        (["v = a.pow(2).mean()", "a.mul_(torch.rsqrt(v))", "a = a + v"], "a"),
        (["b = a.exp()", "b.mul_(c)", "b.add_(a)"], "b"),
    ],
)
def test_gradients_are_those_of_statements_apart(
    lines: list[str], loss: str, strategy: str
) -> None:
    apart = "".join(f"        {line}\n" for line in lines)
    results = []
    for body in (apart, f"        {'; '.join(lines)}\n"):
        fixed = fix(f"{PLAIN}{body}        return {loss}.square().sum()\n", strategy=strategy)
        space: dict[str, type[nn.Module]] = {}
        exec(fixed, space)
        torch.manual_seed(0)
        model = space["Model"]()
        x, c = torch.randn(3, 8), torch.rand(8)
        model(x, c).backward()
        gradient = model.get_parameter("proj.weight").grad
        assert gradient is not None and gradient.abs().sum() > 0
        results.append(gradient)
    assert torch.equal(*results)
