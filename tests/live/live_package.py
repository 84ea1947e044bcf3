"""Packages written to disk and imported, for what reads the source of live modules."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap
from pathlib import Path
from types import ModuleType

_numbers = itertools.count()
_roots: list[str] = []
"""The folder of the test that runs now.  Those of all others are not searched any more."""


def package(root: Path, **files: str) -> dict[str, ModuleType]:
    """A package of these files, which import torch and ``nn``; its modules by name."""
    name = f"live_package_{next(_numbers)}"
    folder = root / name
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    for file, text in files.items():
        head = "import torch\nfrom torch import nn\n"
        (folder / f"{file}.py").write_text(head + textwrap.dedent(text))
    if str(root) not in _roots:
        sys.path[:] = [path for path in sys.path if path not in _roots]
        _roots[:] = [str(root)]
        sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    return {file: importlib.import_module(f"{name}.{file}") for file in files}
