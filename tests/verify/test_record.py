"""What a patch says of itself where nothing was run, and that it is true."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.proof import PAGE, compared, proven
from trainify.catalog import all_ops, lookup
from trainify.passes import all_rules
from trainify.verify import Job, verify
from trainify.verify.record import FILE, lines, recorded

LAYER = """\
import acme
import torch
from sgl_kernel import silu_and_mul
from torch import nn
from vllm import _custom_ops as ops
from vllm.model_executor.layers.activation import SiluAndMul


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.act = SiluAndMul()

    def forward(self, x):
        out = torch.empty_like(x)
        ops.rms_norm(out, x, self.weight.data, 1e-5)
        y = self.act(silu_and_mul(out))
        y = acme.norm(silu_and_mul(y), self.weight)
        with torch.no_grad():
            return y @ self.weight
"""
OWN = """\
[[tool.trainify.ops]]
names = "acme.norm"
schema = "norm(Tensor x, Tensor w) -> Tensor"
equivalent = "x * w"
"""
HEAD = """\
# This changes source text only: nothing was run on this machine.
#
# What takes the place of each op, and how that is known:
#
#   vllm._custom_ops.rms_norm: out = rms_norm_llama(input, weight, epsilon)
#       read in schema strings of _C.abi3.so, vllm 0.8.5.post1; gradcheck ok; kernel ok: vllm
#         0.8.5.post1, 0.19.1, 0.23.0 emulated on a CPU; as in vllm 0.8.5.post1, says
#         requirements.txt
"""
REST = """\
#   sgl_kernel.silu_and_mul (2 calls): silu_and_mul_fp32(input)
#       read in sgl_kernel/elementwise.py, sglang-kernel 0.4.10; gradcheck ok; no kernel ran
#   acme.norm: x * w
#       your own row says so; nobody checked it
#   vllm.model_executor.layers.activation.SiluAndMul: its own forward_native
#       the layer's source, vllm 0.5.0 and 0.33.0, says so; no gradcheck; no kernel ran; as in vllm
#         0.8.5.post1, says requirements.txt
#
# "gradcheck" and "kernel" are what a run of trainify's own proof has recorded, elsewhere: the
# equivalent's gradient against finite differences in float64, its values against a kernel that
# ran. `trainify fix --verify -o FILE` does both here, wherever a kernel can run.
#
# What else is changed, and why that is right:
#
#   TRN206 scope-before-loss: Compute it outside torch.no_grad()
#       look at: self.weight can learn too now: requires_grad_(False) is what freezes
#
# Apply it with `git apply`.
"""


def test_what_a_patch_says_of_itself(run) -> None:
    """By a Python that imports no torch for it."""
    Path("layer.py").write_text(LAYER)
    Path("pyproject.toml").write_text(OWN)
    Path("requirements.txt").write_text("vllm==0.8.5.post1\n")
    code = (
        "import sys; from trainify.cli import cli\n"
        "try: cli(['fix', '--unsafe', '-o', 'x.patch'])\n"
        "except SystemExit as error: assert error.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    head = Path("x.patch").read_text().partition("diff --git")[0]
    assert HEAD in head
    assert head.endswith(REST + "\n"), head
    subprocess.run(["git", "init", "-q", "."], check=True)
    subprocess.run(["git", "apply", "--check", "x.patch"], check=True)


def test_a_patch_without_ops(run) -> None:
    Path("a.py").write_text(all_rules()["TRN402"].before)
    assert run("fix", "--unsafe", "-o", "x.patch").exit_code == 0
    head = Path("x.patch").read_text().partition("diff --git")[0]
    assert "# What is changed:\n" in head and "gradcheck" not in head


ROWS = (
    "torch.ops.aten._add_relu.Tensor",
    "torch.ops.prims.add",
    "lmdeploy.pytorch.kernels.cuda.activation.silu_and_mul",
)


def test_the_record_is_true(run) -> None:
    """Of some rows; of all of them in the soak."""
    ops = [op for name in ROWS if (op := lookup(name)) is not None]
    assert len(ops) == len(ROWS)
    verdicts, environment = verify([Job(op.names[0], op) for op in ops])
    expected = lines(proven(verdicts, environment, ""))
    known = {line.rpartition("\t")[0]: line for line in FILE.read_text("utf-8").splitlines()}
    for line in expected:
        row, _, kernel = line.rpartition("\t")
        assert bool(known[row].rpartition("\t")[2]) == bool(kernel)
    assert len(expected) == len(ROWS)


def test_no_row_has_changed_since_it_was_recorded() -> None:
    """By its digest alone; `make proof` writes the record anew."""
    assert [op.names[0] for op in all_ops() if op.equivalent and recorded(op) is None] == []


@pytest.mark.slow
def test_all_of_the_record_is_true() -> None:
    """`make proof` writes it anew."""
    verdicts, environment = verify([Job(op.names[0], op) for op in all_ops() if op.equivalent])
    made = lines(proven(verdicts, environment, PAGE.read_text("utf-8")))
    known = FILE.read_text("utf-8").splitlines()
    without_versions = [[line.split("PyTorch")[0] for line in each] for each in (made, known)]
    assert without_versions[0] == without_versions[1]


def test_a_row_that_changed_is_not_proven() -> None:
    op = lookup("sgl_kernel.rmsnorm")
    assert op is not None and recorded(op) == ""
    assert recorded(replace(op, equivalent=f"2 * {op.equivalent}")) is None


def test_a_kernel_speaks_for_the_reference_it_was_held_against() -> None:
    page = "## Emulated\n| vllm 0.33.0 | `rms_norm` | {} | 1e-7 |\n"
    row = lookup("vllm._custom_ops.rms_norm")
    right, wrong = (compared(page.format(name)) for name in ("rms_norm", "rms_norm_llama"))
    assert row is not None and right[row] == "vllm 0.33.0 emulated on a CPU"
    assert row not in wrong
