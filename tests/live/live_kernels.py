"""The C++ kernels, for the tests and for the processes that they start."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

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
