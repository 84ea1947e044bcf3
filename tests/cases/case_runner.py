"""Runs case files, each in a process of its own: some switch grad mode off at import.

A server that has imported torch once and forks for each path it reads, so that a case costs its
own step and not torch's start-up.  One line of JSON comes back for each line that went in.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).parent


class Runner:
    """``with Runner() as runner: runner.run(path)`` gives what the file's ``run()`` returned."""

    def __enter__(self) -> Runner:
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def run(self, path: Path) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        report = json.loads(self._process.stdout.readline())
        assert isinstance(report, dict)
        return report


def _report(path: str) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("case", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["case"] = module  # so that its functions can be found again, by inspect say
    try:
        spec.loader.exec_module(module)
        report: dict[str, Any] = module.run()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return report


def _serve() -> None:
    import _harness  # noqa: F401
    import _standins  # noqa: F401
    import torch

    torch.set_num_threads(1)
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a case that prints does not disturb the answers
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            results.write(json.dumps(_report(line.strip()), default=str) + "\n")
            results.flush()
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            results.write(json.dumps({"error": "the process died"}) + "\n")
            results.flush()


if __name__ == "__main__":
    _serve()
