"""Arguments for the parts of :mod:`trainify.reference.attention` that keep no cache."""

from __future__ import annotations

import torch

from ...reference import attention, older_torch
from .draw import Draw, Values, draws_for


def options(draw: Draw, q_heads: int = 1) -> Values:
    left, right = draw.pick("bounds", (-1, -1), (2, -1), (1, 0), (1, 1))
    return {
        "scale": draw.pick("scale", None, 0.3),
        "causal": draw.pick("causal", False, True),
        "window": draw.pick("window", (-1, -1), (left, right), None),
        "left": left,
        "right": right,
        "window_left": left,
        "window_right": right,
        "softcap": draw.pick("softcap", 0.0, 5.0),
        "sinks": draw.pick("sinks", None, draw.tensor(q_heads, dtype=draw.wide)),
    }


def heads(draw: Draw) -> tuple[int, int]:
    """Of queries, and of keys."""
    return draw.pick("heads", (2, 2), (4, 2), (4, 1))  # type: ignore[no-any-return]


@draws_for(attention.attention, attention.attention_fwd)
def dense(draw: Draw) -> Values:
    (q_heads, kv_heads), dim, batch = heads(draw), draw.head_dim, draw.size(1, 2)
    q_len, k_len = draw.pick("lengths", (3, 3), (2, 4), (3, 2))
    q = draw.tensor(batch, q_len, q_heads, dim)
    k, v = (draw.tensor(batch, k_len, kv_heads, dim) for _ in range(2))
    return {"q": q, "k": k, "v": v, **options(draw, q_heads)}


@draws_for(attention.attention_bhsd, older_torch.grouped_query_attention)
def heads_first(draw: Draw) -> Values:
    """As many queries as keys; a mask, or the causal one."""
    (q_heads, kv_heads), steps = heads(draw), draw.size(1, 4)
    q = draw.tensor(2, q_heads, steps, draw.head_dim)
    k, v = (draw.tensor(2, kv_heads, steps, draw.head_dim) for _ in range(2))
    causal = draw.pick("causal", False, True)
    mask = torch.ones(steps, steps, dtype=torch.bool, device=draw.device).tril()
    return {
        **options(draw),
        "q": q,
        "k": k,
        "v": v,
        **dict.fromkeys(("mask", "attn_mask"), None if causal else draw.maybe("mask", mask)),
        **dict.fromkeys(("causal", "is_causal"), causal),
        "softcap": 0.0 if causal else draw.pick("softcap", 0.0, 5.0),
    }


@draws_for(attention.attention_with_sink_bhsd)
def heads_first_with_sinks(draw: Draw) -> Values:
    values = heads_first(draw)
    return {**values, "sinks": draw.tensor(values["q"].shape[1], dtype=draw.wide)}


@draws_for(attention.attention_in_layout)
def in_layout(draw: Draw) -> Values:
    layout, (q_heads, kv_heads) = draw.pick("layout", "HND", "NHD"), heads(draw)
    steps, dim = draw.size(1, 4), draw.head_dim
    q, k, v = (
        draw.tensor(2, *((n, steps) if layout == "HND" else (steps, n)), dim)
        for n in (q_heads, kv_heads, kv_heads)
    )
    return {**options(draw), "q": q, "k": k, "v": v, "layout": layout}


@draws_for(attention.varlen_attention)
def varlen(draw: Draw) -> Values:
    (q_heads, kv_heads), dim = heads(draw), draw.head_dim
    q_lens, k_lens = draw.pick(
        "lengths", ([3, 2], [3, 2]), ([2, 2], [3, 3]), ([1, 3], [4, 3]), ([3, 1, 2], [4, 1, 3])
    )
    k, v = (draw.tensor(sum(k_lens), kv_heads, dim) for _ in range(2))
    return {
        "q": draw.tensor(sum(q_lens), q_heads, dim),
        "k": k,
        "v": v,
        "cu_seqlens_q": draw.starts(q_lens),
        "cu_seqlens_k": draw.starts(k_lens),
        **options(draw, q_heads),
    }


@draws_for(attention.prefill_attention)
def packed(draw: Draw) -> Values:
    draw.fixed["lengths"] = ([3, 5], [3, 5])
    values = varlen(draw)
    del draw.fixed["lengths"]
    return {**values, "b_seq_len": draw.whole([3, 5])}


@draws_for(attention.single_prefill)
def single(draw: Draw) -> Values:
    (q_heads, kv_heads), dim = heads(draw), draw.head_dim
    q_len, k_len = draw.pick("lengths", (5, 5), (2, 6), (3, 2))
    k, v = (draw.tensor(k_len, kv_heads, dim) for _ in range(2))
    layout = draw.pick("kv_layout", "NHD", "HND")
    if layout == "HND":
        k, v = (t.transpose(0, 1).contiguous() for t in (k, v))
    return {
        "q": draw.tensor(q_len, q_heads, dim),
        "k": k,
        "v": v,
        "kv_layout": layout,
        "scale": draw.pick("scale", None, 0.3),
        "causal": draw.pick("causal", False, True),
        "window_left": draw.pick("window_left", -1, 2),
        "softcap": draw.pick("softcap", None, 5.0),
    }


@draws_for(attention.single_decode)
def single_decode(draw: Draw) -> Values:
    values = single(draw)
    return {**values, "q": values["q"][0].contiguous()}


@draws_for(attention.biased_attention, attention.biased_attention_results)
def biased(draw: Draw) -> Values:
    steps, keys = draw.pick("lengths", (3, 3), (2, 4), (3, 2))
    q, k, v = (draw.tensor(2, 2, n, draw.head_dim) for n in (steps, keys, keys))
    return {
        **options(draw),
        "q": q,
        "k": k,
        "v": v,
        "bias": draw.maybe("bias", draw.tensor(1, 2, steps, keys)),
    }


@draws_for(attention.quantized_attention, attention.quantized_attention_results)
def quantized(draw: Draw) -> Values:
    """Codes as floats: their values count, not how many bits they have."""
    q_heads, kv_heads = draw.pick("heads", (2, 2), (4, 2), (3, 1))
    steps, dim = draw.size(1, 4), draw.head_dim
    q, k, v = (draw.tensor(2, n, steps, dim) for n in (q_heads, kv_heads, kv_heads))
    scales = {f"{name}_descale": draw.tensor(2, kv_heads).abs() for name in "qkv"}
    return {
        **options(draw),
        "q": q,
        "k": k,
        "v": v,
        **{name: draw.maybe(name, scale) for name, scale in scales.items()},
    }


@draws_for(attention.quantized_flash_attention)
def quantized_steps_first(draw: Draw) -> Values:
    values = quantized(draw)
    return {**values, **{name: values[name].transpose(1, 2).contiguous() for name in "qkv"}}


@draws_for(attention.attention_with_sinks)
def sinks(draw: Draw) -> Values:
    queries, keys, groups, dim = 2, 3, draw.size(1, 2), draw.head_dim
    k, v = (draw.tensor(2, keys, 2, dim) for _ in range(2))
    return {
        "q": draw.tensor(2, queries, 2, groups, dim),
        "k": k,
        "v": v,
        "sinks": draw.tensor(2 * groups),
        "scale": 0.5,
        "bandwidth": draw.pick("bandwidth", None, 0, 2),
        "start_q": draw.whole([1]),
    }


@draws_for(
    attention.merge_state,
    attention.merge_states,
    attention.merge_attn_states,
    attention.merge_natural,
    attention.combine,
)
def states(draw: Draw) -> Values:
    """Results over two sets of keys, and their log-sum-exps: apart, and stacked."""
    tokens, count = draw.size(1, 4), draw.size(1, 3)
    v_a, v_b = (draw.tensor(tokens, count, draw.head_dim) for _ in range(2))
    s_a, s_b = (draw.tensor(tokens, count, scale=3, dtype=draw.wide) for _ in range(2))
    return {
        "v_a": v_a,
        "s_a": s_a,
        "v_b": v_b,
        "s_b": s_b,
        "v": torch.stack((v_a, v_b), 1),
        "s": torch.stack((s_a, s_b), 1),
        "prefix_output": v_a,
        "prefix_lse": s_a.mT.contiguous(),
        "suffix_output": v_b,
        "suffix_lse": s_b.mT.contiguous(),
        "out_partial": torch.stack((v_a, v_b)),
        "lse_partial": torch.stack((s_a, s_b)),
    }


@draws_for(attention.split_and_scale)
def split(draw: Draw) -> Values:
    return {"qkv": draw.tensor(2, draw.size(1, 3), 12), "bias": draw.tensor(12), "heads": 2}


@draws_for(
    attention.self_attention,
    attention.multi_head_attention,
    attention.transformer_encoder_layer,
)
def projected(draw: Draw) -> Values:
    """The arguments of PyTorch's layers, of four features in two heads."""
    steps = draw.size(1, 3)
    matrices = {
        "qkv_weight": (12, 4),
        "qkv_bias": (12,),
        "proj_weight": (4, 4),
        "proj_bias": (4,),
        "ffn_weight_1": (6, 4),
        "ffn_bias_1": (6,),
        "ffn_weight_2": (4, 6),
        "ffn_bias_2": (4,),
    }
    norms = ("norm_weight_1", "norm_bias_1", "norm_weight_2", "norm_bias_2")
    x = draw.tensor(2, steps, 4)
    keys = draw.pick("keys", steps, 2)
    key, value = (draw.tensor(2, keys, 4) for _ in range(2))
    return {
        "x": x,
        "src": x,
        "query": x,
        "key": key,
        "value": value,
        "heads": 2,
        "eps": 1e-5,
        **{name: draw.tensor(*shape, scale=0.5) for name, shape in matrices.items()},
        **{name: draw.tensor(4) for name in norms},
        "need_weights": draw.pick("need_weights", True, False),
        "average": draw.pick("average", True, False),
        "use_gelu": draw.pick("use_gelu", True, False),
        "norm_first": draw.pick("norm_first", False, True),
    }
