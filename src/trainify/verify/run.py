"""The side that asks: starts the process that runs the kernels, and survives its crashes."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .verdict import Comparison, Job, Verdict
from .worker import STEPS

TIMEOUT = 600.0
"""Seconds that one step may take; kernels may be compiled in it."""


class VerifyError(Exception):
    """Why nothing can be verified here."""


@dataclass
class Environment:
    """Where the kernels ran."""

    device: str = ""
    torch: str = ""


def verify(
    jobs: Sequence[Job], checked: Iterable[str] = (), timeout: float = TIMEOUT
) -> tuple[list[Verdict], Environment]:
    """Verify each job; modules that lie under ``checked`` are not imported."""
    verdicts = [Verdict(job) for job in jobs]
    environment = Environment()
    step = 0
    while step < len(STEPS) * len(jobs):
        step = _serve(verdicts, environment, [*map(os.path.abspath, checked)], step, timeout)
    return verdicts, environment


def _serve(
    verdicts: list[Verdict], environment: Environment, checked: list[str], step: int, timeout: float
) -> int:
    """One process, from a step on; the step to go on from."""
    process = subprocess.Popen(
        [sys.executable, "-c", _BOOT, str(step), _home()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("TRAINIFY_DEBUG") else subprocess.DEVNULL,
    )
    assert process.stdin is not None and process.stdout is not None
    timer = threading.Timer(timeout, process.kill)
    try:
        try:
            process.stdin.write(pickle.dumps(([verdict.job for verdict in verdicts], checked)))
            process.stdin.close()
        except BrokenPipeError:
            pass
        timer.start()
        for line in process.stdout:
            timer.cancel()
            timer = threading.Timer(timeout, process.kill)
            timer.start()
            step = _hear(json.loads(line), verdicts, environment, step)
        code = process.wait()
    finally:
        timer.cancel()
        process.kill()
        process.wait()
    if code == 0:
        return step
    if not environment.torch:
        raise VerifyError(f"the process that verifies {_death(code, timeout)} before it began")
    return _hear(_blame(step, _death(code, timeout)), verdicts, environment, step)


# This very trainify, wherever it lies; then not the current folder, where a file could have the
# name of a library.
_BOOT = """
import sys
path = [entry for entry in sys.path if entry]
sys.path[:] = [sys.argv[2], *path]
from trainify.verify.worker import main
sys.path[:] = path
main()
"""


def _home() -> str:
    return str(Path(__file__).parents[2])


def _death(code: int, timeout: float) -> str:
    if code == -signal.SIGKILL:
        return f"was killed (it took longer than {timeout:.0f} s, or too much memory)"
    if code < 0:
        return f"crashed with {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _blame(step: int, death: str) -> dict[str, Any]:
    """What a process that died would have said of its step."""
    if STEPS[step % len(STEPS)] == "gradient":
        return {
            "step": step,
            "gradient": f"not checked: it {death}",
            "attached": "",
            "wrong": "",
        }
    return {"step": step, "forward": [], "not_run": f"the kernel {death}"}


def _hear(
    said: dict[str, Any], verdicts: list[Verdict], environment: Environment, step: int
) -> int:
    if "no_torch" in said:
        raise VerifyError(
            f"verify needs torch, which cannot be imported ({said['no_torch']}): "
            "pip install 'trainify[torch]'"
        )
    if "device" in said:
        environment.device, environment.torch = said["device"], said["torch"]
        return step
    verdict = verdicts[said["step"] // len(STEPS)]
    if "gradient" in said:
        verdict.gradient, verdict.attached = said["gradient"], said["attached"]
        verdict.wrong += filter(None, [said["wrong"]])
    else:
        verdict.forward = [Comparison(**each) for each in said["forward"]]
        verdict.not_run = said["not_run"]
        verdict.wrong += [f"{each.dtype}: {each.wrong}" for each in verdict.forward if each.wrong]
    return int(said["step"]) + 1
