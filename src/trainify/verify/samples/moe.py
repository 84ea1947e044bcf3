"""Arguments for :mod:`trainify.reference.moe`, LoRA adapters and embeddings."""

from __future__ import annotations

import torch

from ...reference import embedding, lora, moe
from .draw import Draw, Values, draws_for


def gating(draw: Draw, experts: int) -> torch.Tensor:
    """Scores that lie apart, so that small steps change no choice."""
    order = draw.chosen(draw.count, experts, experts)
    return (order * 0.5 + draw.tensor(draw.count, experts, scale=0.02)).to(draw.dtype)


@draws_for(
    moe.softmax_topk,
    moe.softmax_topk_rows,
    moe.sigmoid_topk,
    moe.sigmoid_topk_rows,
    moe.grouped_topk,
    moe.grouped_topk_of_scores,
)
def router(draw: Draw) -> Values:
    experts = 8
    logits = gating(draw, experts)
    scores = torch.sigmoid(logits)
    bias = draw.tensor(experts, scale=0.001, dtype=draw.wide)
    return {
        "gating": logits,
        "scores": scores,
        "biased": scores + draw.tensor(experts, scale=0.001),
        "k": 3,
        "renormalize": draw.pick("renormalize", False, True),
        "dtype": draw.dtype,
        "bias": draw.maybe("bias", bias),
        "scale": draw.pick("scale", 1.0, 2.5),
        "groups": 4,
        "kept": 2,
        "scoring": draw.pick("scoring", "softmax", "sigmoid", "none"),
        "best": draw.pick("best", None, 2),
    }


@draws_for(moe.moe_experts, moe.fused_moe)
def experts(draw: Draw) -> Values:
    return {
        "x": draw.tensor(draw.count, 2),
        "w1": draw.tensor(4, 6, 2),
        "w2": draw.tensor(4, 2, 3),
        "weights": draw.tensor(draw.count, 2, dtype=draw.wide),
        "ids": draw.chosen(draw.count, 4, 2),
        "gating": gating(draw, 4),
        "k": 2,
        "renormalize": draw.pick("renormalize", False, True),
    }


@draws_for(moe.grouped_linear)
def grouped(draw: Draw) -> Values:
    lengths = [draw.size(0, 2), draw.size(1, 3)]
    return {
        "x": draw.tensor(sum(lengths), 3),
        "weights": draw.tensor(2, 4, 3),
        "starts": draw.starts(lengths),
        "dtype": draw.dtype,
    }


def adapters(draw: Draw) -> Values:
    """Three adapters from four features to two, and the one that each of five rows has."""
    weights = draw.tensor(3, 2, 4)
    return {
        "x": draw.tensor(5, 4 + draw.size(0, 1)),
        "weights": draw.pick("stacked", weights, weights.unsqueeze(1)),
        "out": draw.tensor(5, 4),
        "indices": draw.integers(3, 5),
    }


@draws_for(lora.lora_shrink)
def shrink(draw: Draw) -> Values:
    return {**adapters(draw), "scale": draw.pick("scale", 0.5, 1.5)}


@draws_for(lora.lora_expand)
def expand(draw: Draw) -> Values:
    values = adapters(draw)
    return {
        **values,
        "x": draw.pick("rows", values["x"], values["x"][:1]),
        "offset": draw.pick("offset", 1, 0, 2),
        "add": draw.pick("add", True, False),
    }


@draws_for(embedding.embedding_shard)
def shard(draw: Draw) -> Values:
    return {"ids": draw.integers(9, 6), "weight": draw.tensor(4, 3), "start": 2, "end": 6}


@draws_for(embedding.vocab_parallel_embedding)
def two_shards(draw: Draw) -> Values:
    """Four rows of the vocabulary, one of padding, three of added tokens."""
    return {
        "ids": draw.integers(14, 9),
        "weight": draw.tensor(8, 3),
        "org_start": 2,
        "org_end": 6,
        "org_padding": 1,
        "added_start": 10,
        "added_end": 13,
    }


@draws_for(embedding.timestep_embedding)
def timesteps(draw: Draw) -> Values:
    return {
        "t": draw.tensor(draw.size(), scale=9),
        "dim": draw.pick("dim", 4, 7),
        "flip_sin_to_cos": draw.pick("flip_sin_to_cos", False, True),
        "downscale_freq_shift": draw.pick("downscale_freq_shift", 0.0, 1.0),
        "scale": draw.pick("scale", 1.0, 0.7),
        "max_period": draw.pick("max_period", 100),
        "dtype": draw.dtype,
    }
