"""Wrappers that write into the caller's tensor: what they copy there can be trained through."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from verbs import fix

from trainify.engine import Options, check_paths
from trainify.findings import Fix, Safety

HEAD = "import torch\nfrom vllm import _custom_ops as ops\n\n\n"
NORM = "def norm_(x: torch.Tensor, w: torch.Tensor):\n    ops.rms_norm(x, x, w, 1e-6)\n"
PART = "def norm_(qkv: torch.Tensor, w: torch.Tensor):\n    x = qkv[:, :4]\n    ops.rms_norm(x, x, w, 1e-6)\n"
ASSIGNED = "def norm_(qkv: torch.Tensor, w: torch.Tensor):\n    ops.rms_norm(qkv[:, :4], qkv[:, :4], w, 1e-6)\n"


@pytest.mark.parametrize("strategy", ["flag", "attach"])
@pytest.mark.parametrize("wrapper", [NORM, PART, ASSIGNED], ids=["whole", "part", "assigned"])
def test_the_gradient_is_right(wrapper: str, strategy: str) -> None:
    """Autograd saves what is normed, which the copy then overwrites."""
    text = fix(HEAD + wrapper, unsafe=True, strategy=strategy)
    x = torch.randn(2, 4, requires_grad=True)
    w = torch.randn(4, requires_grad=True)
    kernel = "class ops:\n    def rms_norm(out, x, w, eps):\n        out.copy_(torch.nn.functional.rms_norm(x, x.shape[-1:], w, eps))\n"
    namespace: dict[str, object] = {}
    exec(text.replace("from vllm import _custom_ops as ops\n", kernel), namespace)
    y = x * 2
    namespace["norm_"](y, w)  # type: ignore[operator]
    given = torch.autograd.grad(y.square().sum(), (x, w))
    right = torch.autograd.grad(F.rms_norm(x * 2, (4,), w, 1e-6).square().sum(), (x, w))
    torch.testing.assert_close(given, right)


def test_a_rotation_saves_nothing() -> None:
    wrapper = "def rope_(pos, q: torch.Tensor, k: torch.Tensor, table):\n    ops.rotary_embedding(pos, q, k, 64, table, True)\n"
    text = fix(HEAD + wrapper, unsafe=True)
    assert "clone()" not in text and "q.copy_(q_new)" in text


WRAPPERS = f"""\
{NORM}

def norm_into(out, x, w: torch.Tensor):
    ops.rms_norm(out, x, w, 1e-6)
"""
CALLER = """\
import torch
from torch import nn
from .kernels import norm_, norm_into


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x):
{}
        return y
"""


def wrapper_fix(folder: Path, lines: str, wrapper: int) -> Fix:
    (folder / "__init__.py").write_text("")
    (folder / "kernels.py").write_text(HEAD + WRAPPERS)
    body = "".join(f"        {line}\n" for line in lines.split("; "))
    (folder / "model.py").write_text(CALLER.format(body.rstrip("\n")))
    found = [f for r in check_paths([str(folder)], Options()) for f in r.findings]
    return [f.fixes["flag"] for f in found if f.path.endswith("kernels.py")][wrapper]


@pytest.mark.parametrize(
    ("lines", "wrapper", "told"),
    [
        ("y = torch.sigmoid(self.l(x)); norm_(y, self.w)", 0, "`y`, which `torch.sigmoid` saved"),
        ("y = self.l(x); z = y * y; norm_(y, self.w)", 0, "`y`, which `y * y` saved"),
        ("y = torch.sigmoid(self.l(x)); norm_into(y, x, self.w)", 1, "`y`, which `torch.sigmoid`"),
        ("y = self.l(x); norm_into(y, y, self.w)", 1, "also reads `y`, which it passes"),
    ],
)
def test_the_caller_that_would_raise_is_named(
    tmp_path: Path, lines: str, wrapper: int, told: str
) -> None:
    found = wrapper_fix(tmp_path, lines, wrapper)
    assert found.safety is Safety.UNSAFE
    assert told in found.look_at and f"model.py:{13 + lines.count('; ')}" in found.look_at
    assert found.look_at.endswith(": pass a clone, and go on with that")


@pytest.mark.parametrize(
    ("lines", "wrapper"),
    [
        ("y = self.l(x); norm_(y, self.w)", 0),
        ("y = torch.empty_like(x); norm_into(y, x, self.w)", 1),
        ("y = torch.sigmoid(x); y = torch.empty_like(y); norm_into(y, x, self.w)", 1),
    ],
)
def test_callers_that_do_not_raise(tmp_path: Path, lines: str, wrapper: int) -> None:
    found = wrapper_fix(tmp_path, lines, wrapper)
    assert "model.py" not in found.look_at and "clone" not in found.look_at
    assert (found.safety is Safety.SAFE) == (wrapper == 1)


ADD_NORM = """\
import torch
from torch import nn
from vllm import _custom_ops as ops


class AddNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x, residual):
        ops.fused_add_rms_norm(x, residual, self.weight, 1e-6)
        return x, residual
"""
HOLDERS = {
    "list": "        self.norms = nn.ModuleList([AddNorm(d) for _ in range(2)])\n\n"
    "    def forward(self, x, r):\n        for norm in self.norms:\n            norm(x, r)\n",
    "table": "        self.norm = {'add': AddNorm}['add'](d)\n\n"
    "    def forward(self, x, r):\n        self.norm(x, r)\n",
    "default": "        self.norm = cls(d)\n\n    def forward(self, x, r):\n        self.norm(x, r)\n",
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS.keys())
def test_callers_that_hold_the_module_in_something(tmp_path: Path, holder: str) -> None:
    """They ignore what it gives, and read what it has written."""
    block = f"""\
from torch import nn
from norms import AddNorm


class Block(nn.Module):
    def __init__(self, d, cls=AddNorm):
        super().__init__()
{holder}        return x + r
"""
    (tmp_path / "norms.py").write_text(ADD_NORM)
    (tmp_path / "block.py").write_text(block)
    reports = {Path(r.path).stem: r for r in check_paths([str(tmp_path)])}
    (finding,) = reports["norms"].findings
    assert finding.fixes["flag"].safety is Safety.UNSAFE
    assert "copy_()" in finding.fixes["flag"].look_at


METHODS = {
    "of a base elsewhere": "import unittest\n\n\nclass Check(unittest.TestCase):\n",
    "of a base here": "class Base:\n    def assertTrue(self, found, message):\n"
    "        assert found, message\n\n\nclass Check(Base):\n",
}


@pytest.mark.parametrize("head", METHODS.values(), ids=METHODS.keys())
def test_inherited_methods_are_no_modules(tmp_path: Path, head: str) -> None:
    test = f"""\
from norms import AddNorm
{head}    def test_norm(self):
        x, r = AddNorm(4)(*pair())
        self.assertTrue(x.isfinite().all(), r)
"""
    (tmp_path / "norms.py").write_text(ADD_NORM)
    (tmp_path / "test_norms.py").write_text(test)
    reports = {Path(r.path).stem: r for r in check_paths([str(tmp_path)])}
    (finding,) = reports["norms"].findings
    assert "copy_" not in finding.fixes["flag"].edits[-1].text
    assert finding.fixes["flag"].safety is Safety.SAFE


def test_a_module_that_a_base_elsewhere_keeps(tmp_path: Path) -> None:
    (tmp_path / "norms.py").write_text(ADD_NORM)
    (tmp_path / "base.py").write_text(
        "from torch import nn\nfrom norms import AddNorm\n\n\nclass Base(nn.Module):\n"
        "    def __init__(self, d):\n        super().__init__()\n        self.norm = AddNorm(d)\n"
    )
    (tmp_path / "block.py").write_text(
        "from base import Base  # with an AddNorm\n\n\nclass Block(Base):\n"
        "    def forward(self, x, r):\n        self.norm(x, r)\n        return x + r\n"
    )
    reports = {Path(r.path).stem: r for r in check_paths([str(tmp_path)])}
    (finding,) = reports["norms"].findings
    assert finding.fixes["flag"].safety is Safety.UNSAFE
