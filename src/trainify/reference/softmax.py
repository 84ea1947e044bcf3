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


def softmax_packed(
    logits: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Softmax of logits [heads, N] over each stretch starts[i]:starts[i] + lengths[i] of a row.

    In float32, rounded once; what lies in no stretch becomes 0.
    """
    columns = torch.arange(logits.shape[-1], device=logits.device)
    starts, ends = starts.unsqueeze(-1), (starts + lengths).unsqueeze(-1)
    inside = (columns >= starts) & (columns < ends)
    rows = logits.float().unsqueeze(1).masked_fill(~inside, -torch.inf)
    return torch.softmax(rows, dim=-1).sum(1).to(logits.dtype)
