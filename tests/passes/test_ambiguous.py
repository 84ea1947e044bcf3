"""A callee that may be several things is named and left alone; so is a buffer that others hold."""

from __future__ import annotations

import pytest
from verbs import findings, fix, rules

OPS = "import flashinfer\nimport torch\nfrom functools import partial\n\n\n"


@pytest.mark.parametrize(
    "init",
    [
        "if gemma:\n            self.op = flashinfer.gemma_rmsnorm\n        else:\n            self.op = flashinfer.rmsnorm",
        "self.op = flashinfer.gemma_rmsnorm if gemma else flashinfer.rmsnorm",
        "self.op = partial(flashinfer.gemma_rmsnorm if gemma else flashinfer.rmsnorm, eps=1e-3)",
        "self.op = flashinfer.rmsnorm\n        if gemma:\n            self.op = flashinfer.gemma_rmsnorm",
        "self.op = flashinfer.rmsnorm if gemma else (lambda x, w: x)",
    ],
)
def test_an_attribute_with_several_values(init: str) -> None:
    text = (
        OPS
        + f"""\
class Norm(torch.nn.Module):
    def __init__(self, gemma):
        super().__init__()
        {init}

    def forward(self, x, w):
        return self.op(x, w)
"""
    )
    assert rules(text) == ["TRN103"] and fix(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "from flashinfer import rmsnorm\nif True:\n    def rmsnorm(x, w):\n        return x - w\n\n\ndef run(x, w):\n    return rmsnorm(x, w)\n",
        "import flashinfer\n\nact = flashinfer.silu_and_mul\nif not USE:\n    act = native\n\n\ndef run(x):\n    return act(x)\n",
        "from flashinfer import silu_and_mul as act\n\n\ndef setup():\n    global act\n    act = lambda g: g[:, :8]\n\n\ndef run(x):\n    return act(x)\n",
    ],
)
def test_a_name_with_several_values(text: str) -> None:
    assert rules(text) == ["TRN103"] and fix(text) == text


def test_a_local_name_is_what_it_was_last_bound_to() -> None:
    text = fix(
        """\
import flashinfer
import torch
import torch.nn.functional as F


def run(g):
    op = flashinfer.silu_and_mul
    a = op(g)
    op = flashinfer.gelu_and_mul
    return a, op(g)
""",
        strategy="replace",
    )
    assert text.index("F.silu(") < text.index("F.gelu(")


def test_an_import_that_may_fail_has_its_stand_in() -> None:
    text = "try:\n    from flashinfer import rmsnorm\nexcept ImportError:\n    def rmsnorm(x, w):\n        return x\n\n\ndef run(x, w):\n    return rmsnorm(x, w)\n"
    assert rules(text) == ["TRN101"]


def test_a_partial_keeps_the_value_that_its_name_had() -> None:
    text = fix(
        OPS + "EPS = 1e-2\nf = partial(flashinfer.rmsnorm, eps=EPS)\nEPS = 1.0\n\n\n"
        "def run(x, w):\n    return f(x, w)\n",
        strategy="replace",
    )
    assert 'F.rms_norm(x, x.shape[-1:], w, f.keywords["eps"])' in text


HEAD = "import torch\nfrom vllm import _custom_ops as ops\n\n\n"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("out = torch.empty_like(x)\n    d = {'out': out}\n    ops.rms_norm(out, x, w, 1e-6)\n    return d", "kept elsewhere"),
        ("out = torch.empty_like(x)\n    outs.append(out)\n    ops.rms_norm(out, x, w, 1e-6)\n    return outs", "kept elsewhere"),
        ("out = torch.empty_like(x)\n    self.last = out\n    ops.rms_norm(out, x, w, 1e-6)\n    return out", "kept elsewhere"),
        ("self.last = out = torch.empty_like(x)\n    ops.rms_norm(out, x, w, 1e-6)\n    return out", "kept elsewhere"),
        ("out = torch.empty_like(x)\n    f = lambda: out * 2\n    ops.rms_norm(out, x, w, 1e-6)\n    return f()", "kept elsewhere"),
        ("for h in (x * 1, r * 1):\n        ops.fused_add_rms_norm(h, r, w, 1e-6)\n    return r", "part of something else"),
        ("with hold(x) as y:\n        ops.fused_add_rms_norm(y, r, w, 1e-6)\n    return x, y, r", "part of something else"),
        ("def step():\n        ops.fused_add_rms_norm(x, r, w, 1e-6)\n    step()\n    return x, r", "belongs to a scope around"),
        ("def step():\n        nonlocal x\n        ops.fused_add_rms_norm(x, r, w, 1e-6)\n    step()\n    return x, r", "belongs to a scope around"),
    ],
)  # fmt: skip
def test_a_tensor_that_others_hold_is_not_rebound(body: str, reason: str) -> None:
    text = HEAD + f"def run(self, x, r, w, outs, hold):\n    {body}\n"
    (finding,) = findings(text)
    assert not finding.fixes and reason in finding.message


@pytest.mark.parametrize(
    "body",
    [
        "h = r if keep else r.clone()\n    ops.fused_add_rms_norm(x, h, w, 1e-6)\n    return x, r",
        "h = y = x * 2\n    ops.fused_add_rms_norm(h, r, w, 1e-6)\n    return y, r",
        "out = x if inplace else torch.empty_like(x)\n    ops.rms_norm(out, x, w, 1e-6)\n    return out + x",
        "y = (h := r)\n    ops.fused_add_rms_norm(x, h, w, 1e-6)\n    return x + y + r",
    ],
)
def test_a_name_that_may_be_the_same_tensor_is_not_left_behind(body: str) -> None:
    """Either it is refused, or a person is asked to look, or the other name is brought along."""
    text = HEAD + f"def run(x, r, w, keep, inplace):\n    {body}\n"
    (finding,) = findings(text)
    fixed = fix(text)
    followed = any(line.strip() in ("y = h", "r = h") for line in fixed.splitlines())
    assert not finding.fixes or finding.fixes["flag"].look_at or followed or ".copy_(" in fixed
