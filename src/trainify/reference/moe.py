"""Mixtures of experts: the router's choice, and the experts' products.

``gating`` [T, E] scores E experts for each token.  Which experts are chosen has no derivative, the
weights they are given have.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def softmax_topk(
    gating: torch.Tensor, k: int, renormalize: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest of the softmax over the experts; returns (weights [T, k], ids), float32.

    Renormalized, the weights of a token sum to 1.
    """
    weights, ids = torch.softmax(gating.float(), dim=-1).topk(k, dim=-1)
    return (weights / weights.sum(-1, keepdim=True) if renormalize else weights), ids.int()


def softmax_topk_rows(
    gating: torch.Tensor, k: int, renormalize: bool = False, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As softmax_topk; returns (weights, ids, rows), where choice j of token t is row j T + t.

    The weights are rounded to ``dtype``.
    """
    weights, ids = softmax_topk(gating, k, renormalize)
    rows = torch.arange(ids.numel(), device=ids.device).view(k, -1).t()
    return weights.to(dtype), ids, rows.int()


def sigmoid_topk(
    gating: torch.Tensor, k: int, renormalize: bool = False, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k experts of the largest sigmoid; returns (weights [T, k], ids), float32.

    A bias [E] is added for the choice, not to the weights.  Renormalized, the weights of a token
    sum to 1.
    """
    scores = torch.sigmoid(gating.float())
    ids = (scores if bias is None else scores + bias).topk(k, dim=-1).indices
    weights = scores.gather(-1, ids)
    return (weights / weights.sum(-1, keepdim=True) if renormalize else weights), ids.int()


def sigmoid_topk_rows(
    gating: torch.Tensor,
    k: int,
    renormalize: bool = False,
    bias: torch.Tensor | None = None,
    scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As sigmoid_topk, with the weights scaled; returns (weights, ids, rows).

    Choice j of token t is row j T + t.
    """
    weights, ids = sigmoid_topk(gating, k, renormalize, bias)
    rows = torch.arange(ids.numel(), device=ids.device).view(k, -1).t()
    return weights * scale, ids, rows.int()


def grouped_topk(
    gating: torch.Tensor,
    k: int,
    renormalize: bool,
    groups: int,
    kept: int,
    scoring: str = "softmax",
    scale: float = 1.0,
    bias: torch.Tensor | None = None,
    best: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k top experts of the ``kept`` top ones of all groups; returns (weights, ids).

    A group is as good as the sum of its ``best`` experts: one by default, or two with a bias [E],
    which is added for the choice only.  ``scoring`` is softmax, sigmoid, or anything else for
    ``gating`` as it is.  DeepSeek-V3's router.
    """
    if scoring == "softmax":
        scores = torch.softmax(gating.float(), dim=-1)
    else:
        scores = torch.sigmoid(gating.float()) if scoring == "sigmoid" else gating.float()
    choice = scores if bias is None else scores + bias.float()
    grouped = choice.unflatten(-1, (groups, -1))
    best = best or (1 if bias is None else 2)
    good = grouped.topk(best, dim=-1).values.sum(-1)
    chosen = torch.zeros_like(good).scatter(-1, good.topk(kept, dim=-1).indices, 1.0) > 0
    ids = grouped.masked_fill(~chosen.unsqueeze(-1), -torch.inf).flatten(-2).topk(k, -1).indices
    weights = scores.gather(-1, ids)
    shares = weights / weights.sum(-1, keepdim=True) if renormalize else weights
    return shares * scale, ids.int()


def grouped_topk_of_scores(
    scores: torch.Tensor,
    biased: torch.Tensor,
    k: int,
    renormalize: bool,
    groups: int,
    kept: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As grouped_topk with a bias, of scores [T, E] and of the same with the bias added.

    Renormalized, 1e-20 is added to the sum.  The weights have the dtype of ``biased``.
    """
    grouped = biased.float().unflatten(-1, (groups, -1))
    good = grouped.topk(2, dim=-1).values.sum(-1)
    chosen = torch.zeros_like(good).scatter(-1, good.topk(kept, dim=-1).indices, 1.0) > 0
    ids = grouped.masked_fill(~chosen.unsqueeze(-1), -torch.inf).flatten(-2).topk(k, -1).indices
    weights = scores.float().gather(-1, ids)
    shares = weights / (weights.sum(-1, keepdim=True) + 1e-20) if renormalize else weights
    return (shares * scale).to(biased.dtype), ids.int()


def moe_experts(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
) -> torch.Tensor:
    """Weighted sum over each token's experts of w2 (silu(gate) * up), where (gate, up) = w1 x.

    ``x`` is [T, H], ``w1`` [E, 2 I, H], ``w2`` [E, H, I], ``weights`` and ``ids`` [T, k].  The
    activation is rounded before the product; the sum is float32, rounded once.
    """
    out = torch.zeros_like(x, dtype=torch.float32)
    for expert in ids.unique().tolist():
        rows, slots = torch.where(ids == expert)
        gate, up = F.linear(x[rows], w1[expert]).chunk(2, dim=-1)
        y = F.linear(F.silu(gate) * up, w2[expert]).float()
        out = out.index_add(0, rows, y * weights[rows, slots].unsqueeze(-1).float())
    return out.to(x.dtype)


def grouped_linear(
    x: torch.Tensor, weights: torch.Tensor, starts: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Rows starts[e]:starts[e + 1] of x [T, K] times weights[e] [N, K], transposed, as a dtype."""
    rows = x.split(starts.diff().tolist())
    products = [F.linear(own, weight) for own, weight in zip(rows, weights, strict=True)]
    return torch.cat(products).to(dtype)


def fused_moe(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    gating: torch.Tensor,
    k: int,
    renormalize: bool,
) -> torch.Tensor:
    """Route x [T, H] by softmax to k experts each, and sum what they give; see moe_experts."""
    weights, ids = softmax_topk(gating, k, renormalize)
    return moe_experts(x, w1, w2, weights, ids)
