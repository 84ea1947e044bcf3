"""What stands behind a colon gets a block of its own where its new form needs lines."""

from __future__ import annotations

import pytest
from verbs import becomes, findings, fix, stays

HEAD = """\
import torch
import torch.nn.functional as F
from sgl_kernel import rmsnorm, silu_and_mul
"""

BEFORE = """\


def norm(x, w): return rmsnorm(x, w)  # as in the paper


class Norm(torch.nn.Module):
    def forward(self, x): return rmsnorm(
        x,
        self.weight,
    )


def branches(x, a, b):
    if a: y = silu_and_mul(x)
    elif b: y = silu_and_mul(x)  # twice
    else: y = x
    for _ in range(2): y = rmsnorm(y, x)
    with torch.autocast("cuda"): z = silu_and_mul(x)
    return y, z
"""
AFTER = """\


def norm(x, w):
    if torch.is_grad_enabled() and (x.requires_grad or w.requires_grad):
        return F.rms_norm(x, x.shape[-1:], w, 1e-6)
    return rmsnorm(x, w)  # as in the paper


class Norm(torch.nn.Module):
    def forward(self, x):
        if torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad):
            return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)
        return rmsnorm(
            x,
            self.weight,
        )


def branches(x, a, b):
    if a:
        if torch.is_grad_enabled() and x.requires_grad:
            gate, up = x.float().chunk(2, dim=-1)
            y = (F.silu(gate) * up).to(x.dtype)
        else:
            y = silu_and_mul(x)
    elif b:
        if torch.is_grad_enabled() and x.requires_grad:
            gate, up = x.float().chunk(2, dim=-1)
            y = (F.silu(gate) * up).to(x.dtype)
        else:
            y = silu_and_mul(x)  # twice
    else: y = x
    for _ in range(2):
        if torch.is_grad_enabled() and (y.requires_grad or x.requires_grad):
            y = F.rms_norm(y, y.shape[-1:], x, 1e-6)
        else:
            y = rmsnorm(y, x)
    with torch.autocast("cuda"):
        if torch.is_grad_enabled() and x.requires_grad:
            gate, up = x.float().chunk(2, dim=-1)
            z = (F.silu(gate) * up).to(x.dtype)
        else:
            z = silu_and_mul(x)
    return y, z
"""
REPLACED = """\


def norm(x, w): return F.rms_norm(x, x.shape[-1:], w, 1e-6)  # as in the paper


class Norm(torch.nn.Module):
    def forward(self, x): return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)


def branches(x, a, b):
    if a:
        gate, up = x.float().chunk(2, dim=-1)
        y = (F.silu(gate) * up).to(x.dtype)
    elif b:
        gate, up = x.float().chunk(2, dim=-1)
        y = (F.silu(gate) * up).to(x.dtype)  # twice
    else: y = x
    for _ in range(2): y = F.rms_norm(y, y.shape[-1:], x, 1e-6)
    with torch.autocast("cuda"):
        gate, up = x.float().chunk(2, dim=-1)
        z = (F.silu(gate) * up).to(x.dtype)
    return y, z
"""


def test_under_a_condition() -> None:
    becomes(HEAD + BEFORE, HEAD + AFTER)


def test_in_their_place() -> None:
    imports = "import torch\nimport torch.nn.functional as F\n"
    becomes(HEAD + BEFORE, imports + REPLACED, strategy="replace")


def test_with_a_backward() -> None:
    text = fix(HEAD + BEFORE, strategy="attach")
    assert "\ndef norm(x, w):\n    if torch.is_grad_enabled() and (x." in text
    assert (
        "        return RMSNorm.apply(x, w)\n    return rmsnorm(x, w)  # as in the paper\n" in text
    )
    stays(text, strategy="attach")


def test_carriage_returns_stay() -> None:
    text = fix((HEAD + BEFORE).replace("\n", "\r\n"))
    assert text == (HEAD + AFTER).replace("\n", "\r\n")


def test_a_string_over_lines_keeps_its_text() -> None:
    text = HEAD + "\n\ndef f(x): return silu_and_mul(x), '''a\n  b'''\n"
    assert fix(text).endswith("    return silu_and_mul(x), '''a\n  b'''\n")
    inner = "\n\ndef f(x, a):\n    if a: y = silu_and_mul(x), '''a\n  b''', (\n        x)\n    return y\n"
    inner = fix(HEAD + inner)
    assert "            y = silu_and_mul(x), '''a\n  b''', (\n                x)\n" in inner


def test_in_place_operations() -> None:
    head = "import torch\nfrom torch import nn\n\n\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    head += "        self.l = nn.Linear(3, 3)\n\n    def forward(self, x, flag):\n"
    head += "        y = torch.sigmoid(self.l(x))\n"
    before = f"{head}        if flag: y += 1  # shift\n        return y\n"
    after = f"{head}        if flag: y = y + 1  # shift\n        return y\n"
    becomes(before, after, strategy="replace")


def test_a_layer_with_a_twin() -> None:
    head = "import torch\nfrom vllm.model_executor.custom_op import CustomOp\n\n\nclass Act(CustomOp):\n"
    twin = "    def forward_native(self, x): return torch.relu(x)\n\n"
    call = "return torch.ops.vllm.fused_mla_dual_rms_norm(x, x, 1e-5)"
    before = f"{head}{twin}    def forward_cuda(self, x): {call}"
    becomes(
        f"{before}  # so\n",
        f"{head}{twin}    def forward_cuda(self, x):\n        if torch.is_grad_enabled():\n"
        f"            return self.forward_native(x)\n        {call}  # so\n",
    )
    always = f"{head}{twin}    def forward_cuda(self, x): return self.forward_native(x)\n"
    becomes(f"{before}\n", always, strategy="replace")


@pytest.mark.parametrize(
    "line",
    [
        "    if a: y = silu_and_mul(x);",
        "    if a: \\\n        y = silu_and_mul(x)",
        "    y = silu_and_mul(x); \\\n    x = y",
        "    x = a; \\\n    y = silu_and_mul(x)",
        "    if a: z = (\n        a); y = silu_and_mul(x)",
        "    y = silu_and_mul(\n        x); z = y",
    ],
)
def test_lines_that_go_on_are_left_alone(line: str) -> None:
    text = f"{HEAD}\n\ndef f(x, a):\n{line}\n    return y\n"
    (found,) = findings(text)
    assert found.message.endswith("Not rewritten: it shares its line with other code.")
