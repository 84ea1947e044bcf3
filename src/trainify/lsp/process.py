"""The server's end of the judging process."""

from __future__ import annotations

import asyncio
import itertools
import logging
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from ..engine import EngineError
from .pipe import receive, send

log = logging.getLogger(__name__)


class Died(EngineError):
    """The judging process ended while it judged."""


class JudgingProcess:
    """Takes a process from ``spawn`` at once, and another whenever one died."""

    def __init__(self, spawn: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._spawn = spawn
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._stopped = False
        self._start()

    def _start(self) -> None:
        self._process = self._spawn()
        self._reading = False

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, method: str, *arguments: object) -> Any:
        """The result of a method of :class:`~.desk.Desk`; cancelling this cancels that.

        Raises what the method raised, and :class:`Died`.
        """
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._send(number, method, arguments)
        try:
            return await future
        except asyncio.CancelledError:
            self._send(number, "", ())
            raise
        finally:
            self._waiting.pop(number, None)

    def tell(self, method: str, *arguments: object) -> None:
        """Have a method called that gives no result."""
        self._send(next(self._numbers), method, arguments)

    def _send(self, number: int, method: str, arguments: tuple[object, ...]) -> None:
        if self._stopped:
            return
        if not self._reading:
            self._reading = True
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._read, args=(self._process, loop), daemon=True).start()
        assert self._process.stdin is not None
        try:
            send(self._process.stdin, (number, method, arguments))
        except OSError:  # it died, which the reading thread is about to notice
            log.warning("the judging process takes no requests")

    def _read(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        assert process.stdout is not None
        try:
            while True:
                answer = receive(process.stdout)
                loop.call_soon_threadsafe(self._answered, *answer)
        except Exception as error:  # the end of the stream, or half of a message
            if not self._stopped:
                loop.call_soon_threadsafe(self._died, error)

    def _answered(self, number: int, result: Any, error: BaseException | None) -> None:
        future = self._waiting.get(number)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def _died(self, error: Exception) -> None:
        if self._stopped:
            return
        self._process.kill()
        code = self._process.wait()
        log.error("the judging process ended with %s: %s; starting another", code, error)
        self._start()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Died(f"the judging process ended with {code}"))

    def stop(self) -> None:
        self._stopped = True
        self._process.kill()
        self._process.wait()
