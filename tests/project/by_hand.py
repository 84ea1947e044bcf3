"""The training step of fixtures/chat_serving written by hand, for training, from its description.

It shares no line with the package: one function over a dict of weights.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def rotate(x: Tensor) -> Tensor:
    """Pairs (i, i + d/2) turned by position * 10000^(-2i/d); x is (tokens, heads, d)."""
    tokens, _, d = x.shape
    angle = torch.arange(tokens)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
    turned = torch.view_as_complex(torch.stack(x.chunk(2, -1), -1).contiguous())
    turned = turned * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat((turned.real, turned.imag), -1)


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, weight: Tensor) -> Tensor:
        scale = weight.abs().max() / 127
        return torch.round(weight / scale) * scale

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad


def logits(w: dict[str, Tensor], ids: Tensor, layers: int, heads: int) -> Tensor:
    x = w["embed.weight"][ids]
    tokens, width = x.shape
    mask = torch.full((tokens, tokens), -math.inf).triu(1)
    for i in range(layers):
        p = {name.removeprefix(f"blocks.{i}."): t for name, t in w.items()}
        h = norm(x, p["attn_norm.weight"])
        q, k, v = ((h @ p[f"attn.{name}_proj.weight"].T).view(tokens, heads, -1) for name in "qkv")
        scores = torch.einsum("qhd,khd->hqk", rotate(q), rotate(k)) / math.sqrt(width // heads)
        y = torch.einsum("hqk,khd->qhd", (scores + mask).softmax(-1), v).reshape(tokens, width)
        x = x + y @ p["attn.o_proj.weight"].T
        h = norm(x, p["mlp_norm.weight"]) @ StraightThrough.apply(p["up.weight"]).T + p["up.bias"]
        x = x + (h * h.sigmoid()) @ p["down.weight"].T + p["down.bias"]
    return norm(x, w["norm.weight"]) @ w["head.weight"].T


def loss_and_gradients(
    weights: dict[str, Tensor], ids: Tensor, layers: int = 2, heads: int = 4
) -> tuple[float, dict[str, Tensor]]:
    """Next token, plus half of the distance to the teacher, which is the model before training."""
    student = {name: t.clone().requires_grad_() for name, t in weights.items()}
    log_p = logits(student, ids, layers, heads)[:-1].log_softmax(-1)
    taught = logits(weights, ids, layers, heads)[:-1].softmax(-1)
    loss = F.nll_loss(log_p, ids[1:]) - 0.5 * (taught * log_p).sum(-1).mean()
    gradients = torch.autograd.grad(loss, list(student.values()))
    return loss.item(), dict(zip(student, gradients, strict=True))
