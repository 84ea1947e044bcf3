"""The C++ kernels, for the tests and for the processes that they start."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

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


@contextmanager
def router() -> Iterator[Any]:
    """SGLang's router for CPUs, of which a release takes a bias that no backward is known for."""
    import torch

    def kernel(hidden: Tensor, gating: Tensor, k: int, *rest: Any) -> tuple[Tensor, Tensor]:
        weights, ids = gating.softmax(-1).topk(k, -1)
        return weights, ids.int()

    library = torch.library.Library("sgl_kernel", "FRAGMENT")
    library.define(
        "topk_softmax_cpu(Tensor hidden_states, Tensor gating_output, int topk, "
        "bool renormalize, Tensor? correction_bias=None) -> (Tensor, Tensor)"
    )
    library.impl("topk_softmax_cpu", kernel, "CPU")
    try:
        yield torch.ops.sgl_kernel.topk_softmax_cpu
    finally:
        library._destroy()
