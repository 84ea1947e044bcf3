"""Arguments by name for the equivalents, so that each one can be run.

A row's arguments are looked up first under the reference function its equivalent calls, then in
``COMMON``; what is in neither is passed as its default.
"""

from __future__ import annotations

from typing import Any

import torch

T, H, HEADS, KV_HEADS, D, PAGE = 6, 16, 4, 2, 4, 2


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _family(**values: Any) -> dict[str, Any]:
    return values


def qkv() -> dict[str, Any]:
    return _family(
        qkv=_x(T, 4 * D), num_heads_q=2, num_heads_k=1, num_heads_v=1, head_dim=D,
        q_weight=_x(D), k_weight=_x(D), position_ids=torch.arange(T),
    )  # fmt: skip


def common() -> dict[str, Any]:
    weight = _x(H)
    rows = {name: _x(T, H) for name in ("input", "x", "x1", "x2", "y", "z", "residual", "out")}
    angles = _x(16, D // 2)
    return {
        **rows,
        **dict.fromkeys(("output", "result", "residual_out", "hidden_states"), _x(T, H)),
        **dict.fromkeys(("weight", "gamma", "w"), weight),
        **dict.fromkeys(("bias", "beta", "b"), _x(H)),
        **dict.fromkeys(("eps", "epsilon", "variance_epsilon"), 1e-5),
        "x_residual": _x(T, H),
        "residual_in": _x(T, H),
        "head_size": D,
        "cos_sin_cache": torch.cat((angles.cos(), angles.sin()), -1),
        "cos_sin_cache_offsets": torch.zeros(T, dtype=torch.long),
        "positions": torch.arange(T),
        "pos_ids": torch.arange(T),
        "indptr": torch.tensor([0, 2, T]),
        "offsets": torch.tensor([3, 0]),
        "is_neox": True,
        "rot_dim": D,
        "threshold": 0.1,
        "limit": 2.0,
        "alpha": 1.5,
        "linear_beta": -1.0,
        "multiplier": 0.5,
        "soft_cap_temp": 3.0,
        "std_multiplier": 0.1,
        "logits": _x(T, 9),
        "enable_pdl": False,
        "W": weight,
        "X": _x(T, H),
        "a": _x(T, H),
        "g": _x(T, H),
        "gate_up": _x(T, H),
        "self": _x(T, H),
        "full_logits": _x(T, H),
        "final_logit_softcapping": 3.0,
        "scale": 3.0,
        "add_back": False,
        "x0": _x(T, H),
    }


def rope() -> dict[str, Any]:
    query, key = _x(T, HEADS, D), _x(T, KV_HEADS, D)
    return _family(query=query, key=key, q=query, k=key)


def dense() -> dict[str, Any]:
    q, k, v = _x(2, 3, HEADS, D), _x(2, 5, KV_HEADS, D), _x(2, 5, KV_HEADS, D)
    return _family(q=q, k=k, v=v, query=q, key=k, value=v)


def varlen() -> dict[str, Any]:
    q, k, v = _x(T, HEADS, D), _x(T, KV_HEADS, D), _x(T, KV_HEADS, D)
    lengths = torch.tensor([0, 2, T], dtype=torch.int32)
    return _family(
        q=q, k=k, v=v, query=q, key=k, value=v, out=_x(T, HEADS, D), o=_x(T, HEADS, D),
        cu_seqlens_q=lengths, cu_seqlens_k=lengths, max_seqlen_q=4, max_seqlen_k=4,
        causal=True, window_size=(2, -1), softcap=5.0,
        qo_segment_offsets=lengths, kv_segment_offsets=lengths,
    )  # fmt: skip


def cached() -> dict[str, Any]:
    cache = _x(2, 8, KV_HEADS, D)
    return _family(
        q=_x(2, 1, HEADS, D), k_cache=cache, v_cache=cache + 1,
        cache_seqlens=torch.tensor([3, 8], dtype=torch.int32), causal=True,
    )  # fmt: skip


def paged() -> dict[str, Any]:
    tables, lengths = torch.tensor([[0, 2], [1, 3]]), torch.tensor([2, 3])
    return _family(
        out=_x(2, HEADS, D), query=_x(2, HEADS, D), num_kv_heads=KV_HEADS, scale=0.5,
        key_cache=_x(4, KV_HEADS, D // 2, PAGE, 2), value_cache=_x(4, KV_HEADS, D, PAGE),
        block_tables=tables, seq_lens=lengths, context_lens=lengths, block_size=PAGE,
        max_seq_len=4, max_context_len=4, alibi_slopes=None, kv_cache_dtype="auto",
        k_scale=torch.ones(1), v_scale=torch.ones(1),
        exp_sum=_x(1), exp_sums=_x(1), max_logits=_x(1), tmp_out=_x(1),
    )  # fmt: skip


def single() -> dict[str, Any]:
    return _family(q=_x(3, HEADS, D), k=_x(5, KV_HEADS, D), v=_x(5, KV_HEADS, D))


def tables() -> dict[str, Any]:
    angles = _x(T, D // 2)
    return {**rope(), "cos": angles.cos(), "sin": angles.sin()}


def full_tables() -> dict[str, Any]:
    angles = _x(1, T, D // 2).repeat(1, 1, 2)
    q, k = _x(1, HEADS, T, D), _x(1, KV_HEADS, T, D)
    return _family(q=q, k=k, query=q, key=k, cos=angles.cos(), sin=angles.sin())


def two_halves() -> dict[str, Any]:
    half = (T, HEADS, D // 2)
    return _family(
        x1=_x(*half), x2=_x(*half), out1=_x(*half), out2=_x(*half),
        cos=_x(T, 1, D // 2), sin=_x(T, 1, D // 2), conj=False,
    )  # fmt: skip


def prefill() -> dict[str, Any]:
    return {**varlen(), "b_seq_len": torch.tensor([2, 4]), "b_start_loc": None, "max_input_len": 4}


def pooled() -> dict[str, Any]:
    return _family(
        q=_x(2, HEADS, D), k=_x(9, KV_HEADS, D), v=_x(9, KV_HEADS, D), o=_x(2, HEADS, D),
        req_to_tokens=torch.arange(8).view(2, 4), b_req_idx=torch.tensor([1, 0]),
        b_seq_len=torch.tensor([4, 2]),
    )  # fmt: skip


def merged() -> dict[str, Any]:
    v, s = _x(T, HEADS, D), _x(T, HEADS)
    return _family(
        v_a=v, s_a=s, v_b=-v, s_b=-s, v=v, s=s, v_other=-v, s_other=-s, output=v,
        prefix_output=v, prefix_lse=s.mT, suffix_output=-v, suffix_lse=-s.mT,
    )  # fmt: skip


def conv_step() -> dict[str, Any]:
    return _family(
        x=_x(2, D), conv_state=_x(2, D, 3), weight=_x(D, 3), bias=_x(D), activation="silu",
    )  # fmt: skip


def state_step() -> dict[str, Any]:
    return _family(
        state=_x(2, D, 3), x=_x(2, D), dt=_x(2, D), A=-_x(D, 3).abs(), B=_x(2, 3), C=_x(2, 3),
        D=_x(D), z=_x(2, D), dt_bias=_x(D), dt_softplus=True,
    )  # fmt: skip


FAMILIES = {
    "causal_conv1d_update": conv_step,
    "selective_state_update": state_step,
    "rms_norm_maybe_add": lambda: {"residual": None},
    "apply_rotary": lambda: {"x": _x(2, 3, HEADS, D), "cos": _x(8, D // 2), "sin": _x(8, D // 2)},
    "apply_rotary_pos_emb": full_tables,
    "rotate_query_key": tables,
    "rotate_query_key_fp32": full_tables,
    "rotate_two_halves": two_halves,
    "rope_ragged": rope,
    "llama31_rope_ragged": rope,
    "fused_qk_norm_rope": qkv,
    "head_layer_norm": lambda: {"X": _x(T, HEADS, D), "W": _x(HEADS, D)},
    "attention_fwd": dense,
    "varlen_attention_fwd": varlen,
    "prefill_attention": prefill,
    "pooled_attention": pooled,
    "merge_state": merged,
    "merge_states": lambda: {"v": _x(T, 2, HEADS, D), "s": _x(T, 2, HEADS)},
    "merge_attn_states": merged,
    "clamped_swiglu": lambda: {"beta": 0.5},
    "situ_and_mul": lambda: {"beta": 1.5},
    "rotary_embedding": rope,
    "rotary_embedding_rounded": rope,
    "rope_at": rope,
    "llama31_rope_at": rope,
    "attention": dense,
    "varlen_attention": varlen,
    "cached_attention": cached,
    "paged_attention": paged,
    "single_prefill": single,
    "single_decode": lambda: {**single(), "q": _x(HEADS, D)},
}
