"""Starting the judging process, with nothing loaded that takes time."""

from __future__ import annotations

import json
import os
import subprocess
import sys

# The folder that the server was started in is no place to import from: it may be the user's code.
_MAIN = """\
import json, sys
path, log_file, verbose = json.loads(sys.argv[1])
sys.path[:] = path
from trainify.lsp.worker import main
main(log_file, verbose)
"""


def spawn(log_file: str | None = None, verbose: bool = False) -> subprocess.Popen[bytes]:
    """A judging process, to be talked to over its standard input and output."""
    here = os.getcwd()
    path = [entry for entry in sys.path if entry and os.path.abspath(entry) != here]
    path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    command = [sys.executable, "-c", _MAIN, json.dumps([path, log_file, verbose])]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
