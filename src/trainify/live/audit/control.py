"""Control flow that torch has operators for (``torch.cond``, ``scan``), as Python.

Run without a graph these compile their branches, to know which parameters those use.  Where nothing
is compiled they would know of none, and here it is the branches that are to be looked into.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

_OPERATORS = {
    "cond": "cond_op",
    "scan": "scan_op",
    "map": "map_impl",
    "while_loop": "while_loop_op",
    "associative_scan": "associative_scan_op",
}
"""By their modules in torch."""

_PYTHON = torch._C.DispatchKey.CompositeExplicitAutograd
"""For what their Python is registered."""


@contextmanager
def control_flow_as_python() -> Iterator[None]:
    """The operators run the branch, or the steps of a loop, one by one."""
    with ExitStack() as undo:
        utils: Any = importlib.import_module("torch._higher_order_ops.utils")
        compiling = getattr(utils, "_hop_compile_and_call", None)
        if compiling is not None:
            utils._hop_compile_and_call = _call
            undo.callback(setattr, utils, "_hop_compile_and_call", compiling)
        for operator in _operators():
            cls = type(operator)
            undo.callback(setattr, cls, "__call__", cls.__call__)
            cls.__call__ = _calling(operator.py_kernels[_PYTHON])
        yield


def _call(function: Any, args: Any, kwargs: Any = None) -> Any:
    return function(*args, **(kwargs or {}))


def _calling(kernel: Any) -> Any:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        return kernel(*args, **kwargs)

    return __call__


def _operators() -> Iterator[Any]:
    for module, name in _OPERATORS.items():
        try:
            operator = getattr(importlib.import_module(f"torch._higher_order_ops.{module}"), name)
        except (ImportError, AttributeError):  # another release
            continue
        own = "__call__" in vars(type(operator))
        if own and _PYTHON in getattr(operator, "py_kernels", ()):
            yield operator
