"""Many small cases in one test, where a test for each would cost more than the case itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(name: object) -> Iterator[None]:
    """What fails in here says in which case it did."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {name}")
        raise
