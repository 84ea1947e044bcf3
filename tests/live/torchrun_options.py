"""The options of Python by which a script runs in two processes that know of each other."""

from __future__ import annotations

import os


def torchrun() -> list[str]:
    port = 29500 + os.getpid() % 1000  # several tests may do this at once
    return ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}"]
