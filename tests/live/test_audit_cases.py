"""What people reported, audited: right versions are found right, most wrong ones wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

STOPPED_ON_PURPOSE = {
    "dqn-td-target-detach",
    "glimpse-crop-detach-numpy",
    "mtp-detached-shared-lm-head",
    "rqvae-codebook-loss-on-ste-output",
    "simsiam-stop-gradient",
}
"""Losses with a stop-gradient in them; whether that is meant only `allow` or a comment says."""

FOUND = {
    "backward-overwrites-grad-output": "backward",
    "checkpoint-wrapper-caches-first-layer-flag": "backward",
    "conv-step-state-copy-roll": "saved tensor overwritten",
    "flash-attn-custom-op-no-autograd": "kernel without backward",
    "fp8-scaled-mm-lora": "kernel without backward",
    "frozen-llm-under-no-grad-blocks-projector": "grad mode",
    "kv-cache-update-no-grad": "grad mode",
    "linear-attention-state-inplace-add": "saved tensor overwritten",
    "loss-requires-grad-true-hack": "host round trip",
    "norm-out-variant-weight-data": "kernel without backward",
    "out-variant-workspace-matmul": "in-place write",
    "reentrant-checkpoint-element-0": "backward",
    "reentrant-checkpoint-lora-not-trained": "backward",
    "rmsnorm-backward-returns-none-for-weight": "backward",
    "rmsnorm-function-without-backward": "backward",
    "rope-inplace-slice-version-error": "saved tensor overwritten",
    "rope-stop-gradient-on-result": "detach",
    "sdpa-double-backward": "backward",
    "silu-and-mul-warn-not-implemented": "kernel without backward",
    "stack-logits-dot-data": "data",
    "transformer-forward-inference-mode-decorator": "grad mode",
}


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str], Any]:
    script = Path(__file__).parent / "audit_cases.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    return {(each["case"], each["file"]): each for each in reports}


def test_right_versions_are_right(found: dict[tuple[str, str], Any]) -> None:
    wrong = {case for (case, file), each in found.items() if file == "after" and not each["ok"]}
    assert wrong <= STOPPED_ON_PURPOSE | {"silent-noop-training-loop"}  # which has steps in it
    assert len(found) > 100


@pytest.mark.parametrize(("case", "cause"), FOUND.items())
def test_wrong_versions_are_wrong(found: dict[tuple[str, str], Any], case: str, cause: str) -> None:
    assert cause in found[case, "before"]["causes"]
