from __future__ import annotations

import pytest
import torch
from live_kernels import register_kernels

from tests.frozen import imports_stay_frozen  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def _kernels() -> None:
    register_kernels()
    torch.set_num_threads(1)  # tensors are small: threads would only wait for one another


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
