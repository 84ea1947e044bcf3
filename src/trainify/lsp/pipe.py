"""What the server and its judging process send each other: one pickle after the other."""

from __future__ import annotations

import pickle
from typing import IO, Any


def send(file: IO[bytes], message: object) -> None:
    pickle.dump(message, file, pickle.HIGHEST_PROTOCOL)
    file.flush()


def receive(file: IO[bytes]) -> Any:
    """The next message; raises EOFError where there will be none."""
    return pickle.load(file)
