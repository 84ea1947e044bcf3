"""Backwards that are wrong by little: by a percent, or for some of the elements.

That takes float64 throughout, also where a function rounds to fewer bits on its way.  So nothing is
said of one that goes on rounding, whose backward is not linear, or whose differences have no limit.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .parts import parts
from .trace import tensors_in
from .widen import Widening

if TYPE_CHECKING:
    from .local import Trial

_STEPS = (1e-6, 3e-7)
"""Relative to the size of the input."""
_ASIDE = 3e-2
"""How far it is gone from the input first, in which many elements may lie in a kink, at zero."""
_SMALLEST = 1 / 30
"""Below which share of the usual size elements of a gradient count as that much."""
_SAME = 1e-3
"""The share by which differences may be others with another step."""
_TOLERANCE = 4e-3
"""The share by which a gradient may be another: an approximation is that by less."""
TIMES = 1.3

_WHOLE = {"round", "floor", "ceil", "trunc", "fix", "long", "int", "short", "char", "byte"}


def from_near(trial: Trial, inputs: Sequence[int]) -> dict[int, bool]:
    """Of a call's inputs, whether their gradient is the derivative; without those unsure of."""
    try:
        with _Exact() as exact:
            trial = _aside(trial, inputs)
            gradients = trial.gradients()
            if exact.rounds or not _is_linear(trial, gradients, inputs):
                return {}
            found = {i: _is_right(trial, i, gradients[i]) for i in inputs}
            return {} if exact.rounds else {i: r for i, r in found.items() if r is not None}
    except Exception:  # it does not take these values
        return {}


class _Exact(Widening):
    """Computes in float64, and sees what is rounded all the same."""

    def __init__(self) -> None:
        super().__init__(torch.float64)
        self.rounds = False

    def __enter__(self) -> _Exact:
        super().__enter__()
        return self

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = super().__torch_function__(func, types, args, kwargs)
        name = getattr(func, "__name__", "").rstrip("_")
        self.rounds |= name in _WHOLE or "quantize" in name or any(map(_is_coarse, _made(out)))
        return out


def _made(out: Any) -> Iterator[Tensor]:
    return tensors_in((out,)) if isinstance(out, (Tensor, tuple, list)) else iter(())


def _is_coarse(tensor: Tensor) -> bool:
    """Whether it holds numbers of fewer bits than float64 has."""
    dtype = tensor.dtype
    if dtype.is_complex:
        return dtype != torch.complex128
    if dtype.is_floating_point:
        return dtype != torch.float64
    return dtype in (torch.int8, torch.uint8, torch.int16)


def _aside(trial: Trial, inputs: Sequence[int]) -> Trial:
    generator = torch.Generator().manual_seed(2)
    other = copy.copy(trial)
    other.values = list(trial.values)
    for i in inputs:
        value = trial.values[i]
        noise = torch.randn(parts(value).shape, generator=generator, dtype=torch.float64)
        other.values[i] = _plus(value, noise.to(value.device), _ASIDE * trial.size(i))
    return other


def _plus(value: Tensor, numbers: Tensor, times: float) -> Tensor:
    moved = value.clone()
    parts(moved).add_(numbers, alpha=times)
    return moved


def _is_linear(trial: Trial, gradients: dict[int, Tensor | None], inputs: Sequence[int]) -> bool:
    """Whether backward gives so much more for what is so much more, and always the same."""
    others = trial.gradients(TIMES, seed=0)
    for i in inputs:
        one, other = gradients[i], others[i]
        if one is None or other is None:
            return False
        if not (other - TIMES * one).norm() <= 1e-9 * other.norm():
            return False
    return True


def _is_right(trial: Trial, i: int, gradient: Tensor | None) -> bool | None:
    """Whether it is the derivative along a direction in which each element has its part."""
    assert gradient is not None
    told = parts(gradient.detach())
    usual = told.square().mean().sqrt()
    if not usual > 0:
        return None
    signs = told.sign()
    if (told == 0).any():  # what an element of no gradient does to that of the result
        signs = torch.where(told == 0, _signs(trial, told), signs)
    direction = signs / told.abs().clamp(min=usual * _SMALLEST)
    direction /= direction.square().mean().sqrt()
    along = (told * direction).sum().item()
    if gradient.is_complex():
        direction = torch.view_as_complex(direction)
    wide, narrow = (trial.slope(i, direction, trial.size(i) * step) for step in _STEPS)
    if not abs(wide - narrow) <= _SAME * along or abs(narrow) <= _SAME * along:
        return None
    return abs(along - narrow) <= _TOLERANCE * along


def _signs(trial: Trial, like: Tensor) -> Tensor:
    """The signs of the projection, where each element has one of its own."""
    first = parts(trial.weights[0])
    return first.sign() if first.shape == like.shape else torch.ones_like(like)
