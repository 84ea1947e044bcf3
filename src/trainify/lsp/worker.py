"""The judging process: reads requests from standard input, and answers on standard output.

Judging apart from the protocol keeps the server ready for the client while a text is judged, halves
the time until it is, and loses no more than one judgement to whatever may go wrong in one.
"""

from __future__ import annotations

import gc
import pickle
import queue
import sys
import threading
from typing import IO, Any

from ..engine import EngineError
from .log import start_logging
from .pipe import receive, send

Request = tuple[int, str, tuple[Any, ...]]
"""Number, method of :class:`~.desk.Desk`, arguments.  Without a method it cancels that request.

The first one, whose number is 0, holds the arguments of :func:`~.log.start_logging`.
"""

_PAUSE = 0.3
"""Seconds without a request after which there is time to look for garbage."""

_MOST_OBJECTS = 3_000_000
"""New objects after which there has to be, pause or not."""


class _Requests:
    """Requests in order; a thread takes them in, so that they can be cancelled while one runs."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._waiting: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._cancelled: set[int] = set()
        self._current = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                number, method, arguments = receive(self._file)
                if method:
                    self._waiting.put((number, method, arguments))
                elif number >= self._current:  # else it is done
                    self._cancelled.add(number)
        except (EOFError, OSError, pickle.UnpicklingError):
            self._cancelled.add(self._current)
            self._waiting.put(None)

    def next(self, seconds: float | None) -> Request | None:
        """The next request; None when the server is gone.  Raises queue.Empty after a while."""
        while True:
            request = self._waiting.get(timeout=seconds)
            if request is None:
                return None
            past, self._current = self._current, request[0]
            # Those before it are done, also where one was cancelled after its answer.
            self._cancelled.difference_update(range(past, self._current))
            if not self.cancelled():
                return request

    def cancelled(self) -> bool:
        """Whether nobody waits any more for what is being done."""
        return self._current in self._cancelled


def main() -> None:
    """Answer until standard input ends; the first request says where to log, and how much."""
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # nothing else may write there
    # Modules and syntax trees are a lot of objects that refer to each other: looking for garbage
    # while they are made takes long and finds nothing.
    gc.disable()
    requests = _Requests(stdin)
    desk = _desk(requests)
    first = requests.next(None)
    if first is None:  # there is no server after all
        return
    start_logging(*first[2])
    clean = True
    while True:
        try:
            request = requests.next(None if clean else _PAUSE)
        except queue.Empty:
            gc.collect()
            clean = True
            continue
        if request is None:
            return
        clean = False
        number, method, arguments = request
        try:
            send(stdout, (number, getattr(desk, method)(*arguments), None))
        except BrokenPipeError:
            return
        except Exception as error:
            send(stdout, (number, None, _plain(error)))
        if gc.get_count()[0] > _MOST_OBJECTS:
            gc.collect()


def _desk(requests: _Requests) -> Any:
    """Everything that a first judgement needs, loaded while the client is still starting."""
    from ..engine import Options, passes_for
    from .desk import Desk

    passes_for(b"", Options())
    gc.freeze()
    return Desk(requests.cancelled)


def _plain(error: Exception) -> Exception:
    """An exception that can be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return EngineError(f"{type(error).__name__}: {error}")
    return error
