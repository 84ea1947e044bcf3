"""The Triton kernels, in a process of their own: TRITON_INTERPRET must be set before the import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent

pytest.importorskip("triton")


def checked(**env):
    environ = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | env
    command = [sys.executable, HERE / "triton_checks.py"]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)


def test_in_the_interpreter():
    result = checked(TRITON_INTERPRET="1")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_the_gpu():
    result = checked()
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_without_a_gpu_the_import_says_what_to_set(torch_process):
    path = [HERE.parents[1] / "fixtures/kernels"]
    result = torch_process.run("-c", "import triton_kernels", cwd=HERE, path=path)
    assert result.returncode != 0
    assert result.stderr.strip().splitlines()[-1].startswith("ImportError: Triton has no GPU here")
    assert "TRITON_INTERPRET=1" in result.stderr
