"""The Triton kernels, in a process of their own: TRITON_INTERPRET must be set before the import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent

pytest.importorskip("triton")


def run(*args, **env):
    environ = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | env
    return subprocess.run(
        [sys.executable, *args], env=environ, capture_output=True, text=True, timeout=300
    )


def test_in_the_interpreter():
    result = run(str(HERE / "triton_checks.py"), TRITON_INTERPRET="1")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_the_gpu():
    result = run(str(HERE / "triton_checks.py"))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_without_a_gpu_the_import_says_what_to_set():
    result = run(
        "-c", "import triton_kernels", PYTHONPATH=str(HERE.parents[1] / "fixtures/kernels")
    )
    assert result.returncode != 0
    assert result.stderr.strip().splitlines()[-1].startswith("ImportError: Triton has no GPU here")
    assert "TRITON_INTERPRET=1" in result.stderr
