"""Kernels that a function gives: ``get_ops().rms_norm(...)``, ``self.op = Ops.silu()``."""

from __future__ import annotations

from pathlib import Path

import pytest
from verbs import findings, fix, rules, stays

from trainify.engine import Options, check_paths, fix_paths

NORM = """\
import torch
from torch import nn

{getter}

def norm(x, weight: torch.Tensor, eps):
    {before}
    out = torch.empty_like(x)
    {callee}(out, x, weight, eps)
    return out
"""
GETTER = """\

def get_ops():
    from vllm import _custom_ops as ops

    return ops

"""
OF_CLASS = """\

class Ops:
    @staticmethod
    def norm():
        return torch.ops._C.rms_norm.default

"""


@pytest.mark.parametrize(
    ("getter", "before", "callee"),
    [
        (GETTER, "pass", "get_ops().rms_norm"),
        (GETTER, "ops = get_ops()", "ops.rms_norm"),
        (GETTER.replace("def", "@functools.cache\ndef"), "pass", "get_ops().rms_norm"),
        (GETTER.replace("return ops", "return ops.rms_norm"), "kernel = get_ops()", "kernel"),
        (OF_CLASS, "pass", "Ops.norm()"),
        (OF_CLASS, "kernel = Ops.norm()", "kernel"),
    ],
)
def test_a_function_of_the_file(getter: str, before: str, callee: str) -> None:
    text = NORM.format(getter=getter, before=before, callee=callee)
    assert rules(text) == ["TRN101"]
    fixed = fix(text)
    assert "out = F.rms_norm(x, x.shape[-1:], weight, eps)" in fixed
    assert f"        {callee}(out, x, weight, eps)\n" in fixed
    assert "RMSNorm.apply(" in fix(text, strategy="attach")


@pytest.mark.parametrize(
    ("getter", "before", "callee"),
    [
        (GETTER.replace("def", "@patched\ndef"), "pass", "get_ops().rms_norm"),
        (GETTER.replace("def", "async def"), "pass", "get_ops().rms_norm"),
        (
            GETTER.replace("return", "if new:\n        return other\n    return"),
            "pass",
            "get_ops().rms_norm",
        ),
        (GETTER, "ops = get_ops() if new else other", "ops.rms_norm"),
        (GETTER, "ops = get_ops()\n    ops = other", "ops.rms_norm"),
        (GETTER, "pass", "get_ops.rms_norm"),
        (GETTER, "pass", "get_ops().other"),
        (OF_CLASS, "pass", "Ops().norm"),
    ],
)
def test_what_is_left_open(getter: str, before: str, callee: str) -> None:
    stays(NORM.format(getter=getter, before=before, callee=callee))


LAYER = """\
import torch
from torch import nn

from .backend import Ops, get_ops


class Base(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.act = Ops.silu()
        self.ops = get_ops()
        self.weight = nn.Parameter(torch.ones(n))


class Layer(Base):
    def forward(self, x):
        out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
        self.act(out, x)
        normed = torch.empty_like(out)
        self.ops.rms_norm(normed, out, self.weight, 1e-6)
        return normed
"""
BACKEND = f"""\
import torch

{GETTER}
class Ops:
    @staticmethod
    def silu():
        return torch.ops._C.silu_and_mul.default
"""


def test_a_function_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    for name, text in {"__init__": "", "backend": BACKEND, "layer": LAYER}.items():
        (tmp_path / "pkg" / f"{name}.py").write_text(text)
    folder = str(tmp_path / "pkg")
    found = [f for report in check_paths([folder], Options()) for f in report.findings]
    assert [(f.rule, f.line) for f in found] == [("TRN101", 18), ("TRN101", 20)]
    (fixed,) = [r.text for r in fix_paths([folder], Options()) if r.change is not None]
    assert "gate, up = x.chunk(2, dim=-1)" in fixed
    assert "normed = F.rms_norm(out, out.shape[-1:], self.weight, 1e-6)" in fixed
    (tmp_path / "pkg/backend.py").write_text(BACKEND.replace("_C.silu", "mine.silu"))
    (one,) = [f for report in check_paths([folder], Options()) for f in report.findings]
    assert one.line == 20


@pytest.mark.parametrize("name", ["fused_mla_dual_rms_norm", "fused_mla_dual_rms_norm.default"])
def test_an_overload_of_an_unverified_op(name: str) -> None:
    text = f"""\
    import torch


    def norm(x, weight, eps):
        return torch.ops.vllm.{name}(x, weight, eps)
    """
    (found,) = findings(text)
    assert found.rule == "TRN108"
