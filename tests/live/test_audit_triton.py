"""Raw Triton launches, which no dispatcher sees, in a process where Triton is interpreted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "fixtures" / "kernels" / "triton_kernels.py"


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(HERE / "triton_audit.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr
    reports: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return reports


@pytest.mark.parametrize(
    ("model", "launch", "function", "cause", "kind"),
    [
        ("Normed", "_rms_norm_kernel[", "rms_norm", "kernel without backward", "missing"),
        ("Rotated", "_rope_kernel[", "apply_rope_", "in-place write", "wrong"),
    ],
)
def test_launch_is_named(
    found: dict[str, Any], model: str, launch: str, function: str, cause: str, kind: str
) -> None:
    (line,) = [
        number
        for number, text in enumerate(KERNELS.read_text().splitlines(), 1)
        if text.strip().startswith(launch)
    ]
    (cut,) = found[model]["cuts"]
    assert (Path(cut["path"]), cut["line"], cut["function"]) == (KERNELS, line, function)
    assert (cut["cause"], cut["kind"]) == (cause, kind)
    assert cut["op"].endswith(launch.rstrip("["))
    assert set(cut["parameters"]) >= {"0.weight", "1.fc.weight"}


def test_what_a_grid_is_made_of_is_no_kernel(found: dict[str, Any]) -> None:
    (cut,) = found["OnOneLine"]["cuts"]
    assert cut["op"].endswith("_square")


def test_what_the_interpreter_calls_is_no_cut(found: dict[str, Any]) -> None:
    ops = {cut["op"].rpartition(".")[2] for cut in found["Served"]["cuts"]}
    assert "_rms_norm_kernel" in ops and "set_" not in ops
