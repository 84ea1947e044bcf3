"""The process that runs kernels: reads what to do, writes what came of each step.

A step is the forward or the gradient of one job.  The parent starts at any step, so that after a
crash it goes on behind the step that crashed.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import sys
from dataclasses import asdict
from typing import Any

from ..catalog.layers import FusedLayer

STEPS = ("gradient", "forward")


def main() -> None:
    """Serve the steps from ``argv[1]`` on; results go to what was standard output."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print where they like

    def tell(**what: Any) -> None:
        out.write(json.dumps(what) + "\n")
        out.flush()

    jobs, checked = pickle.load(sys.stdin.buffer)
    try:
        import torch
    except ImportError as error:
        tell(no_torch=str(error))
        return
    from . import checks, twins
    from .kernels import Libraries

    cuda = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if cuda else f"CPU ({platform.machine()})"
    tell(device=name, torch=str(torch.__version__))
    torch.set_num_threads(1 if not cuda else torch.get_num_threads())
    libraries = Libraries(checked)
    for step in range(int(sys.argv[1]), len(STEPS) * len(jobs)):
        job = jobs[step // len(STEPS)]
        how = twins if isinstance(job.op, FusedLayer) else checks
        if STEPS[step % len(STEPS)] == "gradient":
            said, attached, wrong = how.gradient(job, libraries)
            tell(step=step, gradient=said, attached=attached, wrong=wrong)
            continue
        comparisons, not_run, spoiled = how.forward(job, libraries, cuda)
        tell(step=step, forward=[asdict(each) for each in comparisons], not_run=not_run)
        if spoiled:  # after an illegal access a CUDA context is of no more use
            return
