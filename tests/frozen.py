"""What tests/conftest.py has put away from the garbage collector, a million objects."""

from __future__ import annotations

import gc
from contextlib import nullcontext

import pytest

from trainify.live import symbol
from trainify.live.audit import run


@pytest.fixture(autouse=True)
def imports_stay_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No audit asks whether they are frozen, and no search goes through them: each takes long."""
    monkeypatch.setattr(run, "_collected_sparingly", nullcontext)
    monkeypatch.setattr(symbol, "_nothing_frozen", nullcontext)


@pytest.fixture(autouse=True, scope="module")
def what_earlier_tests_left_is_frozen() -> None:
    """It stays: each search for who holds a kernel would go through it, and each collection."""
    gc.collect()
    gc.freeze()
