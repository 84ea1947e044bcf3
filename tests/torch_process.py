"""Python processes that have imported torch already.

A server imports it once and forks for each command: a script costs its own steps, and not the two
seconds that importing torch takes.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType


class TorchProcess:
    """``with TorchProcess() as python: python.run("script.py", "argument", cwd=folder)``."""

    def __enter__(self) -> TorchProcess:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def run(
        self, *arguments: str | Path, cwd: Path, path: Sequence[Path] = ()
    ) -> subprocess.CompletedProcess[str]:
        """As ``python *arguments`` does: a script, or ``-m`` and a module, and what it is given.

        ``path`` are more folders to import from.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            files = [os.path.join(folder, name) for name in ("stdout", "stderr")]
            request = [list(map(str, arguments)), str(cwd), list(map(str, path)), files]
            self._process.stdin.write(f"{json.dumps(request)}\n")
            self._process.stdin.flush()
            status = json.loads(self._process.stdout.readline())
            code = os.waitstatus_to_exitcode(status)
            written = [Path(file).read_text(encoding="utf-8") for file in files]
        return subprocess.CompletedProcess(arguments, code, *written)


def _run(arguments: list[str], cwd: str, path: list[str], files: list[str]) -> int:
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    module = arguments[0] == "-m"
    sys.argv = arguments[module:]
    sys.path[:0] = [cwd if module else os.path.dirname(os.path.abspath(sys.argv[0])), *path]
    try:
        if module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _serve() -> None:
    import torch  # noqa: F401  # for the processes that are forked from here

    del sys.path[0]  # this folder
    results = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = _run(*json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        results.write(f"{json.dumps(os.waitpid(child, 0)[1])}\n")
        results.flush()


if __name__ == "__main__":
    _serve()
