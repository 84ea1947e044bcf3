"""The gradients of a step in two ways, of which one is known to be right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .checkpoints import Way, in_sight
from .parts import parts
from .runs import Step
from .trace import Observer, Unseen

_TOLERANCE = 1e-4
"""Relative to the size of a gradient; where sums have fewer bits, some of the last."""


class Gradients:
    """The gradients of a run, by parameter, with the loss that they are of."""

    def __init__(
        self, step: Step, checkpoints: Way = in_sight, observer: Observer | None = None
    ) -> None:
        _, loss = step.run(observer or Unseen(), checkpoints=checkpoints)
        self._loss = loss.detach().double().item()
        self._tolerance = max(_TOLERANCE, 8 * step.rounding)
        with step.backward(), set_aside(step) as leaves:
            # ``autograd.grad`` is what a reentrant checkpoint refuses.
            torch.autograd.backward(loss, retain_graph=step.once)
            self.of = {name: leaves[id(p)].grad for name, p in step.parameters.items()}

    def differ(self, right: Gradients) -> list[str] | None:
        """The parameters whose gradients are others; None where the losses are."""
        if not _near(abs(self._loss - right._loss), abs(right._loss), self._tolerance):
            return None
        return [name for name, found in self.of.items() if self._differs(found, right.of[name])]

    def _differs(self, found: Tensor | None, right: Tensor | None) -> bool:
        if found is None or right is None:
            return found is not right
        found, right = parts(found.to_dense()), parts(right.to_dense())
        size = max(norm(found), norm(right))
        return not _near(norm(found - right), size, self._tolerance)


def _near(difference: float, size: float, tolerance: float) -> bool:
    return difference <= tolerance * size  # no where it is not a number


def norm(tensor: Tensor) -> float:
    """The square root of the sum of squares, in float32 at least."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    found: float = torch.linalg.vector_norm(tensor, dtype=wide).item()
    return found


@contextmanager
def set_aside(step: Step, others: Iterable[Tensor] = ()) -> Iterator[dict[int, Any]]:
    """Leaves without a gradient."""
    leaves: dict[int, Any] = {
        id(tensor): tensor
        for tensor in (*step.parameters.values(), *step.state.tensors, *others)
        if tensor.requires_grad and tensor.is_leaf
    }
    kept = [(leaf, leaf.grad) for leaf in leaves.values()]
    for leaf in leaves.values():
        leaf.grad = None
    try:
        yield leaves
    finally:
        for leaf, gradient in kept:
            leaf.grad = gradient


def arriving(leaves: Iterable[Tensor], found: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The gradients that were asked for, with those that backward itself has left in ``.grad``.

    A function may compute again in its backward, and go backward through that, as checkpoints do.
    To be called within :func:`set_aside`.
    """
    return summed(found, [leaf.grad for leaf in leaves])


def summed(
    gradients: Sequence[Tensor | None], others: Sequence[Tensor | None]
) -> Sequence[Tensor | None]:
    """Gradients that arrive one after the other."""
    return list(map(_sum, gradients, others))


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other
