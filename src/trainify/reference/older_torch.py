"""What newer releases of PyTorch have in one function, for projects that run on older ones.

Where the reference functions call that, these are called in a file written for a release without
it: :mod:`trainify.rewrite.older_torch` says for which.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm_in_float32(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """RMSNorm in float32, rounded once, as torch itself has it since 2.8.

    Over the last dimension.  ``F.rms_norm`` of 2.4 to 2.7 rounds ahead of the weight; before, there
    is none.
    """
    normed = x.float()
    normed = normed * torch.rsqrt(normed.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        normed = normed * weight.float()
    return normed.to(x.dtype)


def grouped_query_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention with grouped queries, as enable_gqa has it since torch 2.5.

    Over heads-first tensors [B, H, S, D]; the arguments of ``F.scaled_dot_product_attention``.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale
    )
