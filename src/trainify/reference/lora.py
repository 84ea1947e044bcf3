"""Products with LoRA adapters of which each row picks its own (Punica).

``weights`` is [adapters, out, in], or [adapters, 1, out, in]; ``indices`` [T] are the adapters of
the rows of x [T, in or more].  Sums are float32, rounded to the dtype of ``out`` [T, out or more],
of which columns that are not written stay as they are.
Chen et al., "Punica: Multi-Tenant LoRA Serving", 2023.
"""

from __future__ import annotations

import torch


def lora_shrink(
    x: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
    indices: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Write scale * A x for the adapter of each row into the first columns of out."""
    chosen = weights.flatten(0, -3)[indices].float()
    y = chosen @ x[:, : chosen.shape[-1]].float().unsqueeze(-1)
    y = (y.squeeze(-1) * scale).to(out.dtype)
    return torch.cat((y, out[:, y.shape[-1] :]), dim=-1)


def lora_expand(
    x: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
    indices: torch.Tensor,
    offset: int,
    add: bool,
) -> torch.Tensor:
    """Write B x for the adapter of each row into the columns of out from ``offset`` on, or add it.

    A single row of x stands for all.  What is added is rounded first.
    """
    chosen = weights.flatten(0, -3)[indices].float()
    y = chosen @ x[:, : chosen.shape[-1]].float().unsqueeze(-1)
    y = y.squeeze(-1).to(out.dtype)
    end = offset + y.shape[-1]
    y = out[:, offset:end] + y if add else y
    return torch.cat((out[:, :offset], y, out[:, end:]), dim=-1)
