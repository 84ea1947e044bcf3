from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from tests.frozen import imports_stay_frozen  # noqa: F401

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


def register_kernels() -> None:
    """What importing the library that owns the C++ kernels does."""
    name = "_trainify_fixtures_kernels"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, FIXTURES / "kernels" / "__init__.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
        module.library()


@pytest.fixture(scope="session", autouse=True)
def _kernels() -> None:
    register_kernels()
    torch.set_num_threads(1)  # tensors are small: threads would only wait for one another


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
