"""Softmax over the last dimension, accumulated in float32."""

from __future__ import annotations

import torch


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension, in float32, rounded once."""
    return torch.softmax(x, dim=-1)


def softmax_backward(grad: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The gradient of softmax over the last dimension by its result, in float32, rounded once."""
    weighted = grad.float() * out.float()
    return (weighted - out.float() * weighted.sum(-1, keepdim=True)).to(out.dtype)


def softmax_temperature(
    logits: torch.Tensor, temperature: torch.Tensor | float | None = None
) -> torch.Tensor:
    """Softmax of logits [B, V], in float32 and left there.

    They are divided by ``temperature``, which is one number, or a tensor [B] of one per row; None
    means 1.
    """
    if temperature is None:
        return torch.softmax(logits.float(), dim=-1)
    if isinstance(temperature, torch.Tensor):
        temperature = temperature.unsqueeze(-1)
    return torch.softmax(logits.float() / temperature, dim=-1)
