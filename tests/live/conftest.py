from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import wrapped
from live_kernels import register_kernels

from tests.frozen import (
    imports_stay_frozen,  # noqa: F401
    what_earlier_tests_left_is_frozen,  # noqa: F401
)
from trainify.catalog.own import _registered


@pytest.fixture(scope="session", autouse=True)
def _kernels() -> None:
    register_kernels()
    torch.set_num_threads(1)  # tensors are small: threads would only wait for one another


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[dict[str, ModuleType]]:
    """The model of :mod:`wrapped`; what it registers is forgotten."""
    before = list(_registered)
    yield wrapped.modules(tmp_path)
    _registered[:] = before
