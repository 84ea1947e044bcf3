"""The server's log: standard output belongs to the protocol."""

from __future__ import annotations

import logging


def start_logging(file: str | None, verbose: bool) -> None:
    """Log to standard error, or to a file; raises OSError where that cannot be written."""
    handler = logging.FileHandler(file, encoding="utf-8") if file else logging.StreamHandler()
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[handler],
    )
    logging.getLogger("pygls").setLevel(logging.WARNING)
