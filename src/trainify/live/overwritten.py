"""What backward needs of a kernel's call, where a later kernel writes over it.

The norms of a decoder add to one residual, each in place, and the gradient of each needs the sum
that it made.  Autograd notices that it is gone, and raises.  But where the writer is a kernel that
has been given a backward as well, it is known before it writes.  Then what is still needed is
copied, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import torch
from torch import Tensor


def saves_unchecked() -> bool:
    """Whether what autograd saves goes through hooks, as it does in a checkpoint.

    Of that it does not see, as it else does, that it was written into since; so what is saved has
    to be nobody else's.
    """
    if torch.compiler.is_compiling():
        return False
    hooks = _hooks_around()
    return hooks is not None and not getattr(hooks[0], "only_looks", False)


def keeping() -> AbstractContextManager[Any]:
    """What autograd saves in here is copied before a kernel writes over it."""
    if torch.compiler.is_compiling() or saves_unchecked():
        return nullcontext()
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
        return nullcontext()
    hooks = _hooks_around()
    return torch.autograd.graph.saved_tensors_hooks(lambda saved: _Kept(saved, hooks), _Kept.value)


def about_to_write(targets: Iterable[Any]) -> None:
    """Have what backward needs of these tensors, and of all in the same memory, copied."""
    if torch.compiler.is_compiling() or not _kept:
        return
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for target in targets:
            if isinstance(target, Tensor):
                for kept in list(_kept.pop(_memory(target), ())):
                    kept.copy()


class _Kept:
    """A tensor that autograd has saved.

    Hooks around that only look get what they would get, and keep it.
    """

    def __init__(self, tensor: Tensor, hooks: tuple[Any, Any] | None) -> None:
        self._hooks = hooks
        self._keep(tensor)
        self._in_same_memory = _kept.setdefault(_memory(tensor), WeakSet())
        self._in_same_memory.add(self)

    def _keep(self, tensor: Tensor) -> None:
        # A result that is kept with its history would keep that, which keeps it.
        self._saved = self._hooks[0](tensor) if self._hooks else tensor.detach()
        self._version = tensor._version

    def value(self) -> Tensor:
        """What was saved; raises where it was written over by what is not known here."""
        if self._hooks:
            tensor: Tensor = self._hooks[1](self._saved)
            return tensor
        if self._saved._version != self._version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: it is at version {self._saved._version}; expected version "
                f"{self._version} instead"
            )
        return self._saved

    def copy(self) -> None:
        """Keep a copy, unless it is too late, or hooks keep nothing as no backward follows."""
        if self._saved is not None and (self._hooks or self._saved._version == self._version):
            self._keep(self.value().clone())


_kept: WeakValueDictionary[int, WeakSet[_Kept]] = WeakValueDictionary()
"""What kernels' calls have saved and not copied yet, by the memory that it lies in."""


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _hooks_around() -> tuple[Any, Any] | None:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)
