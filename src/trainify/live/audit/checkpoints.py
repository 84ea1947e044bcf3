"""Checkpoints, and whether they compute again for backward what they have computed in the forward.

A checkpoint puts back torch's generators of random numbers, unless it is told not to, and nothing
else: not Python's, not NumPy's, no generator of one's own, no counter.  What is computed then is
another step's, and so is its gradient; torch compares shapes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from .places import Places
from .trace import Call, Trace, Tracer

Way = Callable[[], AbstractContextManager[None]]
"""What becomes of checkpoints while a model runs."""


@contextmanager
def as_they_are() -> Iterator[None]:
    """Both kinds as the model has them."""
    yield


@contextmanager
def in_sight() -> Iterator[None]:
    """Reentrant checkpoints as the other kind: the same step, with a graph that can be seen.

    One to which no input brings a gradient stays what it is, and passes none on.
    """
    module: Any = torch.utils.checkpoint
    cls = module.CheckpointFunction

    def apply(cls: Any, function: Any, preserve: bool, *args: Any) -> Any:
        if _is_wanted(args):
            with module.set_checkpoint_early_stop(False):  # it computes all again, too
                return module.checkpoint(
                    function, *args, use_reentrant=False, preserve_rng_state=preserve
                )
        return super(cls, cls).apply(function, preserve, *args)

    with _applied(cls, apply):
        yield


@contextmanager
def gone() -> Iterator[None]:
    """What is in checkpoints is computed once."""
    cls = torch.utils.checkpoint.CheckpointFunction

    def apply(cls: Any, function: Any, preserve: bool, *args: Any) -> Any:
        if _is_wanted(args):
            return function(*args)
        return super(cls, cls).apply(function, preserve, *args)

    def plain(function: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        yield  # here ``checkpoint`` runs the function

    with _applied(cls, apply), _generated_by(plain):
        yield


def _is_wanted(args: Any) -> bool:
    given = any(isinstance(each, Tensor) and each.requires_grad for each in args)
    return given and torch.is_grad_enabled()


@contextmanager
def _applied(cls: Any, apply: Any) -> Iterator[None]:
    cls.apply = classmethod(apply)
    try:
        yield
    finally:
        del cls.apply


@contextmanager
def _generated_by(generator: Any) -> Iterator[None]:
    """What makes checkpoints that are not reentrant is another function."""
    module: Any = torch.utils.checkpoint
    original = module._checkpoint_without_reentrant_generator
    module._checkpoint_without_reentrant_generator = generator
    try:
        yield
    finally:
        module._checkpoint_without_reentrant_generator = original


class Repeats:
    """What checkpoints compute again in backward, held against what they did in the forward."""

    def __init__(
        self, modules: Mapping[int, str], places: Places, trace: Trace, around: Way
    ) -> None:
        """``modules`` are the model's, names by id; ``around`` is what the forward runs in."""
        self._modules, self._places, self._trace = modules, places, trace
        self._around = around
        self._pairs: list[_Pair] = []
        self._running = True

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around the forward; backward comes after it."""
        original: Any = torch.utils.checkpoint._checkpoint_without_reentrant_generator

        def generator(function: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
            first = len(self._trace.calls)

            def again(*inputs: Any, **keywords: Any) -> Any:
                if self._running:  # a backward within the forward, or another checkpoint's
                    return function(*inputs, **keywords)
                return self._again(first, last, function, inputs, keywords)

            yield from original(again, *args, **kwargs)
            last = len(self._trace.calls)

        with _generated_by(generator):
            yield
        self._running = False

    def _again(self, first: int, last: int, function: Any, inputs: Any, keywords: Any) -> Any:
        self._running = True
        try:
            with self._around(), Tracer(self._modules, self._places) as tracer:
                pair = _Pair(self._trace.calls[first:last], tracer.trace)
                self._pairs.append(pair)
                out = function(*inputs, **keywords)
                pair.whole = True
                return out
        finally:
            self._running = False

    def differing(self) -> list[Call]:
        """The first call of each checkpoint that gives something else when it is made again."""
        bits = self._trace.digests.read()
        found: dict[Any, Call] = {}
        for pair in self._pairs:
            call = pair.differing(bits)
            if call is not None:
                found.setdefault(call.place, call)
        return list(found.values())


class _Pair:
    """The calls of a checkpoint the first time, and the trace of the second."""

    def __init__(self, calls: list[Call], trace: Trace) -> None:
        self._calls, self._trace = calls, trace
        self.whole = False
        """Whether it got to the end, the second time."""

    def differing(self, bits: Sequence[int]) -> Call | None:
        """The first call that is another, or has another result; ``bits`` are the first time's."""
        others = self._trace.digests.read()
        before = [call for call in self._calls if call.outs]
        after = [call for call in self._trace.calls if call.outs]
        for call, twin in zip(before, after, strict=False):
            if call.key[:3] != twin.key[:3] or any(
                out.attached and bits[out.digest] != others[same.digest]
                for out, same in zip(call.outs, twin.outs, strict=False)
            ):
                return call
        if len(after) > len(before):
            return before[-1] if before else None
        return before[len(after)] if self.whole and len(after) < len(before) else None
