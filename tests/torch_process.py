"""Python processes that have imported torch already, and what the command line loads.

A server imports it once and forks for each command: a script costs its own steps, and not the two
seconds that importing torch takes; ``-m trainify`` saves another.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType


def look_for_less_garbage() -> None:
    """What is there by now stays, and is not looked through for garbage or referrers.

    Nor is what is made later each time that some hundred objects are new: a syntax tree or a graph
    is thousands of them, and goes by itself.
    """
    gc.freeze()
    gc.set_threshold(50_000)


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
        """As ``python *arguments`` does: a script, ``-c`` and code, or ``-m`` and a module.

        ``path`` are more folders to import from.
        """
        with tempfile.TemporaryDirectory() as folder:
            files = ["/dev/null", *(os.path.join(folder, name) for name in ("stdout", "stderr"))]
            self.start(list(map(str, arguments)), str(cwd), list(map(str, path)), files)
            code = self.wait()
            written = [Path(file).read_text(encoding="utf-8") for file in files[1:]]
        return subprocess.CompletedProcess(arguments, code, *written)

    def start(self, arguments: list[str], cwd: str, path: list[str], files: list[str]) -> int:
        """Its process id; ``files`` become its input, output and error output."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps([arguments, cwd, path, files])}\n")
        self._process.stdin.flush()
        return int(self._answer())

    def wait(self) -> int:
        """The exit code of what was started last."""
        return os.waitstatus_to_exitcode(int(self._answer()))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


class Popen:
    """Of ``subprocess.Popen`` what a caller needs that talks to ``python -c`` over pipes."""

    def __init__(self, python: TorchProcess, command: list[str], path: Sequence[str] = ()) -> None:
        self._python = python
        self._code: int | None = None
        with tempfile.TemporaryDirectory() as folder:
            pipes = [os.path.join(folder, name) for name in ("stdin", "stdout")]
            for pipe in pipes:
                os.mkfifo(pipe)
            self.pid = python.start(command[1:], os.getcwd(), list(path), [*pipes, "/dev/null"])
            self.stdin = open(pipes[0], "wb")  # noqa: SIM115  # wait() closes it
            self.stdout = open(pipes[1], "rb")  # noqa: SIM115

    def wait(self) -> int:
        if self._code is None:
            self._code = self._python.wait()
            self.stdin.close()
            self.stdout.close()
        return self._code

    def kill(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)


def _run(arguments: list[str], cwd: str, path: list[str], files: list[str]) -> int:
    for number, file in enumerate(files):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY), number)
    os.chdir(cwd)
    kind = arguments[0] if arguments[0] in ("-c", "-m") else ""
    sys.argv = arguments[1:] if kind == "-m" else arguments
    own = {"": os.path.dirname(os.path.abspath(arguments[0])), "-c": "", "-m": cwd}[kind]
    sys.path[:0] = [own, *path]
    try:
        if kind == "-c":
            sys.argv = ["-c", *arguments[2:]]
            exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
        elif kind == "-m":
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
    # For the processes that are forked from here; torch imports the latter, with sympy, when they
    # differentiate, checkpoint or define an op.
    del sys.path[0]  # this folder
    gc.disable()  # what is imported is no garbage
    import libcst.metadata  # noqa: F401
    import torch
    import torch._dynamo  # noqa: F401

    import trainify.cli  # noqa: F401
    from trainify.engine import Options, passes_for

    passes_for(b"", Options())
    look_for_less_garbage()
    gc.enable()
    results = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = _run(*json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        results.write(f"{child}\n")
        results.flush()
        results.write(f"{os.waitpid(child, 0)[1]}\n")
        results.flush()


if __name__ == "__main__":
    _serve()
