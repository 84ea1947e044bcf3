"""Served models under DDP and FSDP2: the steps that Hugging Face's take without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from families import FAMILIES
from packages import FIXTURES, PACKAGES
from torch.nn.parallel import DistributedDataParallel
from two_processes import fsdp, load, losses

import trainify

SCRIPT = Path(__file__).with_name("two_processes.py")
WRAPS = (DistributedDataParallel, fsdp)


@pytest.fixture
def process_group(tmp_path):
    meeting = f"file://{tmp_path / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("wrap", WRAPS)
def test_in_this_process(wrap, process_group, checkpoint_of):
    training, oracle = load("llama_serving", checkpoint_of["llama"].parent)
    for ours, theirs in zip(losses(wrap(training), 2), losses(oracle, 2), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    trainify.restore(training)


@pytest.mark.slow
def test_thirty_steps_in_two_processes(tmp_path, checkpoint_of):
    names = [*PACKAGES, *FAMILIES]
    checkpoints = checkpoint_of["llama"].parent
    path = [str(FIXTURES), str(FIXTURES / "standins"), os.environ.get("PYTHONPATH", "")]
    processes = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(rank), tmp_path / "meeting", checkpoints, *names],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        told = [process.communicate(timeout=900) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], told[0][1] + told[1][1]
    done = [f"{name} {wrap.__name__}" for name in names for wrap in WRAPS]
    assert told[0][0].splitlines() == done
