"""Starting the judging process, with nothing loaded that takes time."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

from .pipe import send

# The folder that the server was started in is no place to import from: it may be the user's code.
# An interrupt is the server's to handle; this process ends when its standard input does.
_MAIN = """\
import json, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = json.loads(sys.argv[1])
from trainify.lsp.worker import main
main()
"""

_ahead: list[subprocess.Popen[bytes]] = []


def spawn_ahead() -> None:
    """Start what :func:`spawn` will give first: it loads the passes while this process loads."""
    _ahead.append(_start())


def spawn(log_file: str | None = None, verbose: bool = False) -> subprocess.Popen[bytes]:
    """A judging process, to be talked to over its standard input and output."""
    process = _ahead.pop() if _ahead else _start()
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # that it has ended is noticed when it gives no answer
        send(process.stdin, (0, "log", (log_file, verbose)))
    return process


def _start() -> subprocess.Popen[bytes]:
    here = os.getcwd()
    path = [entry for entry in sys.path if entry and os.path.abspath(entry) != here]
    path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    command = [sys.executable, "-c", _MAIN, json.dumps(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
