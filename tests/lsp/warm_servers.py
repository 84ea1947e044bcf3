"""Language servers that are forked from a process which has imported all that they need.

To start one takes a second of imports, for itself and for its judging process: here once for all.
From then on it is as any: a process of its own, that speaks over its standard input and output.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from types import SimpleNamespace, TracebackType

_PATH = "import sys; sys.path[:] = {path!r}; from warm_servers import serve; serve()"
_FUSED = "from vllm import _custom_ops as ops\ndef f(x, y, w):\n    ops.rms_norm(x, y, w, 1e-6)\n"


class WarmServers:
    """``with WarmServers() as servers: await servers.start(client)``."""

    def __enter__(self) -> WarmServers:
        self._control, theirs = socket.socketpair()
        with theirs:
            # Not by its name, so that no folder comes before the others.
            path = [entry for entry in sys.path if entry]
            command = [sys.executable, "-c", _PATH.format(path=path)]
            # Its output is a pipe because theirs will be.
            self._process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._control.close()
        self._process.communicate()

    async def start(self, client, *arguments: str) -> None:
        """As ``client.start_io("trainify", "lsp", *arguments)`` does."""
        from pygls.io_ import run_async

        stdin, to_server = os.pipe()
        from_server, stdout = os.pipe()
        socket.send_fds(self._control, [json.dumps(arguments).encode()], [stdin, stdout])
        pid = int(self._control.recv(20))
        os.close(stdin)
        os.close(stdout)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await loop.connect_read_pipe(lambda: protocol, os.fdopen(from_server, "rb", 0))
        writer, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(to_server, "wb", 0))
        client.protocol.set_writer(writer)
        talk = run_async(
            client._stop_event,
            reader,
            client.protocol,
            logging.getLogger(__name__),
            client.report_server_error,
        )
        talking = asyncio.create_task(talk)
        client._server = _Server(pid, talking, writer)
        client._async_tasks += [talking, asyncio.create_task(client._server_exit())]


class _Server:
    """Of a process what a client asks for."""

    def __init__(
        self, pid: int, talking: asyncio.Task[None], stdin: asyncio.WriteTransport
    ) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stderr = None
        self._talking = talking
        self._stdin = stdin

    async def wait(self) -> None:
        """What it says ends, and it does when nothing more is said to it."""
        await asyncio.wait([self._talking])
        self._stdin.close()
        self.returncode = 0

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)


def serve() -> None:
    """Fork for each request: its arguments, and what becomes its standard input and output."""
    from trainify.lsp.quick_types import import_types

    import_types()
    import trainify.cli
    import trainify.lsp.command
    import trainify.lsp.desk
    import trainify.lsp.server
    import trainify.lsp.worker  # noqa: F401
    from trainify.engine import check_text

    assert check_text(_FUSED, "fused.py")  # which imports what the first finding needs
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # they are not waited for
    with socket.socket(fileno=0) as control:
        while True:
            told, files, _, _ = socket.recv_fds(control, 10_000, 2)
            if not told:
                return
            pid = os.fork()
            if pid == 0:
                control.detach()
                _become_server(json.loads(told), *files)
            for file in files:
                os.close(file)
            control.send(str(pid).encode())


def _become_server(arguments: list[str], stdin: int, stdout: int) -> None:
    from trainify.cli import cli
    from trainify.lsp import spawn

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _standard(stdin, stdout)
    spawn._ahead.append(_forked_judge())  # type: ignore[arg-type]  # any later one is started
    cli(["lsp", *arguments], prog_name="trainify")


def _forked_judge() -> SimpleNamespace:
    """What ``spawn`` starts, with of ``subprocess.Popen`` what the server needs."""
    from trainify.lsp.worker import main

    theirs_in, ours_in = os.pipe()
    ours_out, theirs_out = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.close(ours_in)
        os.close(ours_out)
        _standard(theirs_in, theirs_out)
        main()
        os._exit(0)
    os.close(theirs_in)
    os.close(theirs_out)
    return SimpleNamespace(
        pid=pid,
        stdin=open(ours_in, "wb"),
        stdout=open(ours_out, "rb"),
        kill=lambda: os.kill(pid, signal.SIGKILL),
        wait=lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]),
    )


def _standard(stdin: int, stdout: int) -> None:
    """Let these be what is read and written."""
    os.dup2(stdin, 0)
    os.dup2(stdout, 1)
    os.close(stdin)
    os.close(stdout)
