"""One name for two kernels, of two libraries or for two devices, that compute the same."""

from __future__ import annotations

import pytest
from verbs import becomes, findings

TEXT = """\
import torch
import torch.nn.functional as F
from sgl_kernel import {imported}

from runtime import on_cpu

if on_cpu:
    kernel = {other}
else:
    kernel = {imported}


def f(x, r, w: torch.Tensor):
    {call}
"""
CPU = "torch.ops.sgl_kernel."


def text(imported: str, other: str, call: str) -> str:
    return TEXT.format(imported=imported, other=other, call=call)


def test_they_become_what_each_of_them_becomes() -> None:
    before = text("rmsnorm", CPU + "rmsnorm_cpu", "return kernel(x, w, 1e-6)")
    after = before.replace("kernel(x, w, 1e-6)", "F.rms_norm(x, x.shape[-1:], w, 1e-6)")
    becomes(before, after, strategy="replace")


def test_so_do_those_that_write() -> None:
    call = "kernel(x, r, w, 1e-6)\n    return x, r"
    before = text("gemma_fused_add_rmsnorm", CPU + "gemma_fused_add_rmsnorm_cpu", call)
    (finding,) = findings(before)
    assert finding.rule == "TRN102" and finding.fixes


def test_what_they_take_may_go_by_other_names() -> None:
    other = "sglang.kernels.ops.activation.activation.silu_and_mul"
    before = text("silu_and_mul", "other", "return kernel(x)")
    package, _, name = other.rpartition(".")
    before = before.replace("from runtime", f"from {package} import {name} as other\nfrom runtime")
    (finding,) = findings(before)
    assert finding.rule == "TRN101" and finding.fixes


@pytest.mark.parametrize(
    ("imported", "other", "call"),
    [
        ("rmsnorm", CPU + "l2norm_cpu", "return kernel(x, 1e-6)"),  # one does not take the call
        ("rmsnorm", CPU + "gemma_rmsnorm_cpu", "return kernel(x, w, 1e-6)"),
        ("rmsnorm", CPU + "rmsnorm_cpu", "return kernel(x, w, 1e-6, r)"),  # where to write
        ("rmsnorm", CPU + "rmsnorm", "return kernel(x, w, r, 1e-6)"),  # the output is the first
        ("silu_and_mul", CPU + "gelu_and_mul_cpu", "return kernel(x)"),
        ("topk_softmax", CPU + "topk_softmax_cpu", "return kernel(x, r, 2, True)"),
    ],
)
def test_what_differs_is_left_open(imported: str, other: str, call: str) -> None:
    (finding,) = findings(text(imported, other, call))
    assert finding.rule == "TRN103" and not finding.fixes
    assert "it may be" in finding.message
