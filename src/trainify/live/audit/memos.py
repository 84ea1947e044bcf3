"""What ``functools.cache`` has kept of a run: tables made with other parameters, or modes.

The next run would read them, and a step of training after the audit too.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Collection, Iterator
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor

from ..loads import codes

MEMO = type(functools.cache(len))
"""Of a function that remembers its results."""


class Memo:
    """A function that remembers its results; those of the runs of an audit are forgotten."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._misses = function.cache_info().misses

    def forget(self) -> None:
        """Forget all tensors, if there are new ones; what else is kept may be dear to make."""
        if self._function.cache_info().misses != self._misses:
            if any(map(_is_tensor, _remembered(self._function))):
                self._function.cache_clear()
            self._misses = self._function.cache_info().misses


def memos_of(names: Collection[str], there: dict[str, Any]) -> Iterator[Any]:
    """Those that names stand for, by themselves, in modules, or in functions they stand for."""
    for name in names:
        found = there.get(name)
        if isinstance(found, MEMO):
            yield found
        elif isinstance(found, ModuleType) and found.__name__.partition(".")[0] != "torch":
            held = vars(found)
            yield from (held[n] for n in held.keys() & names if isinstance(held[n], MEMO))
        elif isinstance(found, FunctionType):
            for inner in codes(found.__code__):
                held = found.__globals__
                yield from (held[n] for n in inner.co_names if isinstance(held.get(n), MEMO))


def _remembered(function: Any) -> Iterator[Any]:
    for each in gc.get_referents(function):
        yield each
        if isinstance(each, dict):
            yield from list(each.values())


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) or (
        isinstance(value, (tuple, list)) and any(isinstance(each, Tensor) for each in value)
    )
