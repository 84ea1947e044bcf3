"""Many cases: in one test, where a test for each would cost more than the case; or in the soak."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def case(name: object) -> Iterator[None]:
    """What fails in here says in which case it did."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {name}")
        raise


def some(chosen: Collection[Any], of: Iterable[Any]) -> list[Any]:
    """Parameters, of which all but the ``chosen`` are slow; a tuple is one of several arguments."""
    every = list(of)
    assert set(chosen) <= set(every)
    return [
        each
        if each in chosen
        else pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.slow)
        for each in every
    ]


def in_turn(cases: Mapping[str, Any] | Iterable[Any], ways: Sequence[Any]) -> list[Any]:
    """Every case in every way; all are slow but one for each case, which has the ways in turn.

    So each case is tested, and each way.
    """
    named = cases if isinstance(cases, Mapping) else {str(each): each for each in cases}
    assert len(named) >= len(ways)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            way,
            id=f"{name}-{way}",
            marks=() if number % len(ways) == turn else pytest.mark.slow,
        )
        for number, (name, case) in enumerate(named.items())
        for turn, way in enumerate(ways)
    ]
