"""The loss of a step, where none is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

Loss = Callable[[Any], Tensor]

_CACHES = ("past_key_values", "cache", "caches", "kv_cache", "state", "mems")
"""Outputs that are for the next call, not for a loss."""


def _nothing(output: Any) -> str:
    """What there is in place of a floating-point tensor."""
    if isinstance(output, Iterator):
        return f"an iterator ({type(output).__name__}) that nothing has gone through"
    if any(each.is_floating_point() and not each.numel() for each in outputs(output)):
        return "tensors without elements"
    return "no floating-point tensor"


def loss_of(output: Any) -> Tensor:
    """``output.loss``, the output itself where it is one number, or a projection of the outputs.

    The projection is the sum of each floating-point output times numbers that are always the same,
    so that every finite entry counts, and the derivative by none of them is the same as by another.

    Raises:
        ValueError: There is no floating-point tensor among the outputs, of real numbers.
    """
    given = given_loss(output)
    if given is not None:
        return given
    tensors = [each for each in outputs(output) if each.is_floating_point() and each.numel()]
    attached = [each for each in tensors if each.requires_grad]
    if not tensors:
        found = any(each.is_complex() for each in outputs(output))
        what = (
            "complex numbers only: give audit a real loss"
            if found
            else f"{_nothing(output)}: give audit a loss"
        )
        raise ValueError(f"the model returns {what}")
    return torch.stack([_projection(each) for each in attached or tensors]).sum()


def made_from(output: Any) -> list[Tensor]:
    """The tensors of an output that :func:`loss_of` looks at."""
    given = given_loss(output)
    return list(outputs(output)) if given is None else [given]


def given_loss(output: Any) -> Tensor | None:
    """``output.loss``, or the output itself where it is one number; None where there is none."""
    loss: Any = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    for each in (loss, output):
        if isinstance(each, Tensor) and each.numel() == 1:
            number: Tensor = each.reshape(())
            return number
    return None


def _projection(tensor: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(tensor.numel())
    weights = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
    wide = tensor if tensor.dtype == torch.float64 else tensor.float()
    wide = torch.where(wide.isinf(), 0.0, wide)  # what a mask has filled
    projected: Tensor = (wide * weights.to(wide)).sum() / tensor.numel() ** 0.5
    return projected


def outputs(output: Any) -> Iterator[Tensor]:
    """The tensors in what a module returns, but for what is for the next call."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for name, value in output.items():
            if name not in _CACHES:
                yield from outputs(value)
    elif is_dataclass(output) and not isinstance(output, type):
        for field in fields(output):
            if field.name not in _CACHES:
                yield from outputs(getattr(output, field.name))
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from outputs(value)
