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


def _words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int64).int()


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
        "mat_a": _x(T, H),
        "mat_b": _x(H, 3),
        "hidden_states": _x(T, H),
        "router_weights": _x(3, H),
        "out_dtype": torch.float32,
        "output_dtype": torch.float32,
        "quant_dtype": torch.float8_e4m3fn,
        "mat2": torch.randint(-9, 9, (3, H), dtype=torch.int8),
        "scales": _x(3),
        "mat1": _x(T, 3),
        "other": _x(T, H),
        "ORI_W": _x(3, H),
        "MKL_W": _x(3, H),
        "B": _x(3),
        "batch_size": 1,
        "normalized_shape": (H,),
        "num_groups": 2,
        "input_x": _x(T, H),
        "swiglu_limit": 2.0,
    }


def rope() -> dict[str, Any]:
    query, key = _x(T, HEADS, D), _x(T, KV_HEADS, D)
    return _family(query=query, key=key, q=query, k=key)


def dense() -> dict[str, Any]:
    q, k, v = _x(2, 3, HEADS, D), _x(2, 5, KV_HEADS, D), _x(2, 5, KV_HEADS, D)
    return _family(q=q, k=k, v=v, query=q, key=k, value=v)


def biased() -> dict[str, Any]:
    q, k = _x(2, HEADS, 3, D), _x(2, HEADS, 5, D)
    bias = _x(1, HEADS, 3, 5)
    return _family(
        query=q, key=k, value=-k, attn_mask=bias, attn_bias=bias, compute_log_sumexp=True,
    )  # fmt: skip


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
        v_a=v, s_a=s, v_b=-v, s_b=-s, v=v, s=s, v_other=-v, s_other=-s, output=v, v_merged=v, s_merged=s,
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


def awq() -> dict[str, Any]:
    qweight = torch.randint(-(2**31), 2**31, (H, 1), dtype=torch.int64).int()
    qzeros = torch.randint(-(2**31), 2**31, (2, 1), dtype=torch.int64).int()
    scales = _x(2, 8)
    x = _x(T, H)
    return {
        **dict.fromkeys(("input", "x", "in_feats", "_in_feats"), x),
        **dict.fromkeys(("qweight", "kernel", "_kernel"), qweight),
        **dict.fromkeys(("scales", "scaling_factors", "_scaling_factors"), scales),
        **dict.fromkeys(("qzeros", "zeros", "_zeros"), qzeros),
        "split_k_iters": 8,
    }


def bnb() -> dict[str, Any]:
    return _family(
        A=_x(T, 8), B=torch.randint(256, (12, 1)).to(torch.uint8), shapeB=(3, 8), absmax=_x(6),
        code=_x(16), blocksize=4,
    )  # fmt: skip


def scaled() -> dict[str, Any]:
    a, b, rows, columns = _x(T, H), _x(H, 3), _x(T, 1), _x(1, 3)
    return _family(
        a=a, b=b, mat_a=a, mat_b=b, self=a, mat2=b, scale_a=rows, scale_b=columns, scales_a=rows,
        scales_b=columns, bias=_x(3), a_data=a, b_data=b, a_scale=rows, b_scale=columns,
        XQ=a, WQ=b.t(), x_scale=rows, w_scale=columns, dtype=torch.float32,
    )  # fmt: skip


def quantized() -> dict[str, Any]:
    q, k, v = _x(2, HEADS, HEADS, D), _x(2, HEADS, HEADS, D), _x(2, HEADS, HEADS, D)
    scales = {f"{name}_descale": _x(2, HEADS) for name in "qkv"}
    lengths = {"max_q": HEADS, "max_k": HEADS, "return_debug_mask": False, "dropout_p": 0.0}
    return _family(query=q, key=k, value=v, is_causal=True, **scales, **lengths)


def blocks() -> dict[str, Any]:
    values = _family(A=_x(T, 4), B=_x(6, 4), As=_x(T, 2), Bs=_x(3, 2), block_size=(2, 2))
    return {
        **values,
        "XQ": _x(T, 4),
        "WQ": _x(6, 4),
        "x_scale": _x(T, 1),
        "w_scale": _x(1, 1),
        "dtype": torch.float32,
    }


def experts() -> dict[str, Any]:
    return _family(
        hidden_states=_x(T, 4), w1=_x(5, 6, 4), w2=_x(5, 4, 3), topk_weights=_x(T, 2),
        topk_ids=torch.stack([torch.randperm(5)[:2] for _ in range(T)]), gating_output=_x(T, 5),
        topk=2, renormalize=True,
    )  # fmt: skip


def gating() -> dict[str, Any]:
    ids = torch.zeros(T, 2, dtype=torch.int32)
    return _family(
        gating_output=_x(T, 6), topk_weights=_x(T, 2), topk_ids=ids, topk_indices=ids,
        token_expert_indices=ids, topk=2, renormalize=False, renorm=False, num_expert_group=3,
        topk_group=2, scoring_func="softmax", correction_bias=None, e_score_correction_bias=None,
    )  # fmt: skip


def shard() -> dict[str, Any]:
    ids = torch.tensor([0, 2, 5, 7, 11])
    return _family(
        input_ids=ids, input_=ids, weight=_x(9, 4), org_vocab_start_index=2,
        org_vocab_end_index=6, num_org_vocab_padding=1, added_vocab_start_index=10,
        added_vocab_end_index=13, vob_start_id=2, vob_end_id=8,
    )  # fmt: skip


def natural() -> dict[str, Any]:
    v, s = _x(T, HEADS, D), _x(T, HEADS)
    return _family(
        v_a=v, s_a=s, v_b=-v, s_b=-s, v_merged=v, s_merged=s,
        prefix_output=v, prefix_lse=s, suffix_output=-v, suffix_lse=-s,
    )  # fmt: skip


def paged_varlen() -> dict[str, Any]:
    cache = _x(5, PAGE, KV_HEADS, D)
    return _family(
        q=_x(3, HEADS, D), k=cache, v=cache + 1, cu_seqlens_q=torch.tensor([0, 1, 3]),
        seqused_k=torch.tensor([3, 4]), block_table=torch.tensor([[0, 2], [1, 3]]),
        softmax_scale=0.5, causal=True, window_size=(2, -1), softcap=5.0,
    )  # fmt: skip


def latent() -> dict[str, Any]:
    return _family(
        out=_x(2, HEADS, 3), workspace=_x(1), num_kv_splits=1,
        q_nope=_x(2, HEADS, 3), q_pe=_x(2, HEADS, 2), kv_c_and_k_pe_cache=_x(5, PAGE, 5),
        seq_lens=torch.tensor([3, 4]), page_table=torch.tensor([[0, 2], [1, 3]]), sm_scale=0.5,
    )  # fmt: skip


def sinks() -> dict[str, Any]:
    return _family(
        q=_x(2, 2, 2, 2, 3), k=_x(2, 3, 2, 3), v=_x(2, 3, 2, 3), sinks=_x(4), sm_scale=0.5,
        bandwidth=2, start_q=torch.tensor([1]),
    )  # fmt: skip


def styled() -> dict[str, Any]:
    x, angles = _x(3, 2, HEADS, 6), _x(5, 1, 1, 2)
    values = dict.fromkeys(("input", "input_x", "input_y", "output", "output_x", "output_y"), x)
    return {
        **values, "freqs": angles[:3], "rotate_style": 1, "reuse_freqs_front_part": True,
        "nope_first": True,
    }  # fmt: skip


def styled_tables() -> dict[str, Any]:
    return {**styled(), "cos": styled()["freqs"].cos(), "sin": styled()["freqs"].sin()}


def styled_positions() -> dict[str, Any]:
    at = torch.tensor([[0, 1], [1, 0], [0, 0]])
    return {**styled_tables(), "positions": at, "offsets": at}


def conv() -> dict[str, Any]:
    return _family(
        x=_x(2, D, 5), weight=_x(D, 3), bias=_x(D), activation="silu", silu_activation=True
    )


def delta() -> dict[str, Any]:
    return _family(
        q=_x(1, 3, 1, D), k=_x(1, 3, 1, D), v=_x(1, 3, 2, 3), g=-_x(1, 3, 2).abs(),
        beta=_x(1, 3, 2).sigmoid(), initial_state=_x(1, 2, D, 3), output_final_state=True,
    )  # fmt: skip


def flat_layer() -> dict[str, Any]:
    return _family(input=_x(2, 4, 3), weight=_x(4), bias=_x(4))


def styled_packed() -> dict[str, Any]:
    x = _x(5, HEADS, 6)
    return {**styled(), "input": x, "output": x, "cu_seqlens": torch.tensor([0, 2, 5])}


def styled_image() -> dict[str, Any]:
    x, rows, columns = _x(2, 6, HEADS, 8), _x(1, 3, 1, 2), _x(1, 4, 1, 2)
    return {
        **styled(), "input": x, "output": x, "cos_h": rows.cos(), "sin_h": rows.sin(),
        "cos_w": columns.cos(), "sin_w": columns.sin(), "img_height": 2, "img_width": 3,
    }  # fmt: skip


def yarn() -> dict[str, Any]:
    return {
        **qkv(), "base": 100.0, "factor": 4.0, "low": 0.0, "high": 1.0, "attention_factor": 1.2,
        "rotary_dim": D,
    }  # fmt: skip


def tail() -> dict[str, Any]:
    q = _x(T, HEADS, D)
    return _family(q_input=q, q_output=q, freqs_cis=_x(9, 2), positions=torch.arange(T))


def block_sum() -> dict[str, Any]:
    return _family(
        hidden_state=_x(T, H), residual=_x(T, H), attn_output=_x(T, H), attn_bias=_x(H),
        final_bias=_x(H), mp_size=2, mlp_after_attn=False, add_attn_bias=True,
        pre_attn_norm=False,
    )  # fmt: skip


def exllama_heads() -> dict[str, Any]:
    x = _x(2, 3, HEADS, D)
    return _family(x=x, y=x, w=_x(HEADS, D), b=_x(HEADS, D))


def exllama_rope() -> dict[str, Any]:
    angles = _x(1, 1, 9, D)
    return _family(
        x=_x(2, 3, HEADS * D), sin=angles.sin(), cos=angles.cos(), past_len=2, num_heads=HEADS,
        head_dim=D, offsets=torch.tensor([0, 1]), neox_style=False,
    )  # fmt: skip


def interleaved() -> dict[str, Any]:
    angles = _x(2, 1, 3, D // 2).repeat(1, 1, 1, 2)
    return _family(x=_x(2, HEADS, 3, D), cos=angles.cos(), sin=angles.sin())


def adapters() -> dict[str, Any]:
    x, weights, out, ids = _x(T, H), _x(3, 2, H), _x(T, 4), torch.randint(3, (T,))
    lengths = torch.tensor([2, 1, 3])
    return _family(
        input=x, inputs=x, lora_weights=weights, lora_a_weights=weights, lora_b_weights=weights,
        output=out, output_tensor=out, token_lora_mapping=ids, scaling=0.5, add_inputs=True,
        b_seq_start_loc=lengths.cumsum(0) - lengths, seq_len_tensor=lengths,
        lora_indices_tensor=torch.tensor([2, 0, 1]), batches=3, max_seq_length=3,
        slice_offset=1, slice_size=2,
    )  # fmt: skip


def scored() -> dict[str, Any]:
    scores = _x(T, 6).sigmoid()
    return _family(scores=scores, scores_with_bias=scores + _x(6) / 99, n_group=3, topk_group=2,
                   topk=2, routed_scaling_factor=2.5)  # fmt: skip


def gemv() -> dict[str, Any]:
    return _family(
        in_feats=_x(T, H), kernel=_words(3, H // 8), scaling_factors=_x(3, 8),
        zeros=_words(3, 1), group_size=8, split_k_iters=8,
    )  # fmt: skip


def int4() -> dict[str, Any]:
    x, packed, scales, zeros = _x(T, H), _words(H // 8, 8), _x(2, 8), _words(2, 1)
    return _family(
        x=x, qweight=packed, scales=scales, qzeros=zeros, group_size=H // 2,
        a=x, b=packed, b_scale=scales.detach(), b_zero_point=zeros,
    )  # fmt: skip


def bnb_linear() -> dict[str, Any]:
    return {**bnb(), "quant_type": "nf4", "bias": _x(3)}


def projections() -> dict[str, Any]:
    x = _x(2, 3, 4)
    return _family(
        qkv=_x(2, 3, 12), query=x, key=x + 1, value=x - 1, src=x, embed_dim=4, num_head=2,
        num_heads=2, qkv_weight=_x(12, 4), qkv_bias=_x(12), proj_weight=_x(4, 4), proj_bias=_x(4),
        use_gelu=True, norm_first=False, norm_weight_1=_x(4), norm_bias_1=_x(4),
        norm_weight_2=_x(4), norm_bias_2=_x(4), ffn_weight_1=_x(6, 4), ffn_bias_1=_x(6),
        ffn_weight_2=_x(4, 6), ffn_bias_2=_x(4),
    )  # fmt: skip


def pooled_prefill() -> dict[str, Any]:
    lengths = torch.tensor([4, 3])
    return {
        **pooled(), "q": _x(4, HEADS, D), "o": _x(4, HEADS, D), "b_seq_len": lengths,
        "b_prompt_cache_len": torch.tensor([2, 1]), "b_start_loc": torch.tensor([0, 2]),
        "max_input_len": 2, "req_to_token_indexs": torch.arange(8).view(2, 4),
    }  # fmt: skip


def indexed() -> dict[str, Any]:
    pool = _x(9, KV_HEADS, D)
    fresh = _x(3, KV_HEADS, D)
    return _family(
        q=_x(2, HEADS, D), k_buffer=pool, v_buffer=pool + 1, o=_x(2, HEADS, D),
        kv_indptr=torch.tensor([0, 3, 5]), kv_indices=torch.tensor([4, 2, 7, 1, 8]),
        qo_indptr=torch.tensor([0, 1, 3]), sm_scale=0.5, k_scale=None, v_scale=None,
        attn_logits=_x(1), attn_lse=_x(1), num_kv_splits=torch.ones(2), max_kv_splits=1,
        q_extend=_x(3, HEADS, D), k_extend=fresh, v_extend=fresh + 1, o_extend=_x(3, HEADS, D),
        custom_mask=None, is_causal=True, mask_indptr=None, max_len_extend=2,
    )  # fmt: skip


def decode_lse() -> dict[str, Any]:
    return {
        **indexed(), "lse": _x(2, HEADS), "req_to_token": torch.arange(8).view(2, 4),
        "b_seq_len": torch.tensor([4, 2]), "num_kv_splits": 1,
    }  # fmt: skip


def token_pool() -> dict[str, Any]:
    table, ids = torch.arange(8).view(2, 4), torch.tensor([1, 0])
    starts, lengths = torch.tensor([0, 4]), torch.tensor([4, 2])
    return _family(
        q=_x(2, HEADS, D), k=_x(9, KV_HEADS, D), v=_x(9, KV_HEADS, D), att_out=_x(HEADS, 7),
        prob=_x(HEADS, 6), logics=_x(HEADS, 6), out=_x(2, HEADS, D), o=_x(2, HEADS, D),
        Req_to_tokens=table, B_req_idx=ids, B_Start_Loc=starts, B_Seqlen=lengths,
        req_to_tokens=table, b_req_idx=ids, b_start_loc=starts, b_seq_len=lengths,
        max_len_in_batch=4, mid_out=_x(2, HEADS, 2, D), mid_out_logexpsum=_x(2, HEADS, 2),
        O=_x(2, HEADS, D), block_seq=2,
    )  # fmt: skip


def conv_slots() -> dict[str, Any]:
    return {
        **conv_step(), "conv_state": _x(4, D, 3), "bias_": _x(D), "silu_activation": True,
        "conv_state_indices": torch.tensor([2, 0]), "conv_state_indices_": torch.tensor([2, 0]),
        "pad_slot_id": -1, "out": _x(2, D), "cache_seqlens": None, "cache_seqlens_": None,
    }  # fmt: skip


def state_slots() -> dict[str, Any]:
    return {
        **state_step(), "state": _x(4, D, 3), "out": _x(2, D), "pad_slot_id": -1,
        "state_batch_indices": torch.tensor([2, 1]), "null_block_id": 0,
    }  # fmt: skip


FAMILIES = {
    "pooled_prefill": pooled_prefill,
    "indexed_decode": indexed,
    "extended_attention": indexed,
    "pooled_attention_lse": decode_lse,
    "token_scores": token_pool,
    "token_values": token_pool,
    "join_blocks": token_pool,
    "causal_conv1d_slots": conv_slots,
    "causal_conv1d_step": conv_slots,
    "selective_state_slots": state_slots,
    "selective_state_step": state_slots,
    "awq_gemv_matmul": gemv,
    "int4_matmul": int4,
    "bnb_4bit_linear": bnb_linear,
    "scaled_mm_add": lambda: {
        "a": _x(T, H),
        "b": _x(3, H),
        "rms_scale": _x(T, 1),
        "linear_scale": _x(3),
        "residual": _x(T, 3),
        "bias": _x(3),
        "output_dtype": torch.float32,
    },
    "split_and_scale": projections,
    "self_attention": projections,
    "multi_head_attention": projections,
    "transformer_encoder_layer": projections,
    "lora_shrink": adapters,
    "lora_expand": adapters,
    "grouped_topk_of_scores": scored,
    "sigmoid_topk_rows": gating,
    "grouped_linear": lambda: {"b": _x(2, 5, H), "m_indptr": torch.tensor([0, 2, T])},
    "timestep_embedding": lambda: {
        "t": _x(T),
        "input": _x(T),
        "dim": 5,
        "dtype": torch.float32,
        "output": _x(T, 5),
        "flip_sin_to_cos": False,
        "downscale_freq_shift": 0.0,
        "max_period": 100,
    },
    "softmax_packed": lambda: {
        "Logics": _x(2, T),
        "B_Start_Loc": torch.tensor([0, 2]),
        "max_input_len": 4,
        "B_Seqlen": torch.tensor([2, T - 2]),
        "Prob_Out": _x(2, T),
    },
    "rotate_packed": styled_packed,
    "rotate_image": styled_image,
    "yarn_qk_norm_rope": yarn,
    "norm_and_rotate_tail": tail,
    "residual_add_bias": block_sum,
    "head_layer_norm_clamped": exllama_heads,
    "rotate_fp16": exllama_rope,
    "rotate_interleaved_to_halves": interleaved,
    "dual_residual_rms_norm": lambda: {"weight1": _x(H), "weight2": _x(H)},
    "layer_norm_of_sum": lambda: {"input_bias": _x(H)},
    "awq_matmul": awq,
    "bnb_4bit_matmul": bnb,
    "scaled_mm": scaled,
    "scaled_grouped_mm": lambda: {
        **_family(self=_x(T, H), mat2=_x(2, H, 3), scale_a=_x(T), scale_b=_x(2, 3)),
        **_family(offs=torch.tensor([2, T], dtype=torch.int32), out_dtype=torch.float32),
    },
    "quantized_attention_results": quantized,
    "quantized_flash_attention": quantized,
    "block_scaled_mm": blocks,
    "moe_experts": experts,
    "fused_moe": experts,
    "softmax_topk": gating,
    "softmax_topk_rows": gating,
    "sigmoid_topk": gating,
    "grouped_topk": gating,
    "embedding_shard": shard,
    "vocab_parallel_embedding": shard,
    "merge_natural": natural,
    "combine": lambda: {"out_partial": _x(2, T, HEADS, D), "lse_partial": _x(2, T, HEADS)},
    "attention_in_layout": lambda: {name: _x(2, HEADS, 3, D) for name in "qkv"},
    "paged_varlen_attention": paged_varlen,
    "mla_decode": latent,
    "attention_with_sinks": sinks,
    "rotate_by_style": styled_tables,
    "rotate_both_by_style": styled_tables,
    "rotate_by_angles": styled,
    "rotate_both_by_angles": styled,
    "rotate_at_positions": styled_positions,
    "rotate_both_at_positions": styled_positions,
    "causal_conv1d": conv,
    "gated_delta_rule": delta,
    "group_norm": flat_layer,
    "rms_norm_fp8": lambda: {"scale": torch.ones(1)},
    "fused_add_rms_norm_fp8": lambda: {"scale": torch.ones(1)},
    "fused_add_rms_norm_fp32_fp8": lambda: {"scale": torch.ones(1)},
    "causal_conv1d_update": conv_step,
    "selective_state_update": state_step,
    "rms_norm_maybe_add": lambda: {"residual": None},
    "apply_rotary": lambda: {"x": _x(2, 3, HEADS, D), "cos": _x(8, D // 2), "sin": _x(8, D // 2)},
    "apply_rotary_pos_emb": full_tables,
    "rotate_query_key": tables,
    "rotate_query_key_or_pairs": lambda: {**tables(), "cos": _x(T, D), "sin": _x(T, D)},
    "rotate_query_key_fp32": full_tables,
    "rotate_two_halves": two_halves,
    "rope_ragged": rope,
    "llama31_rope_ragged": rope,
    "fused_qk_norm_rope": qkv,
    "head_layer_norm": lambda: {"X": _x(T, HEADS, D), "W": _x(HEADS, D)},
    "attention_fwd": dense,
    "biased_attention": biased,
    "biased_attention_results": biased,
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


def _one(**values: Any) -> Any:
    return lambda: values


# By the first name of an op whose equivalent calls no reference function, or has unusual arguments.
ROWS = {
    "torch.ops.aten.mm.dtype": _one(mat2=_x(H, 3)),
    "torch.ops.aten.bmm.dtype": _one(self=_x(2, 3, 4), mat2=_x(2, 4, 5)),
    "torch.ops.aten._addmm_activation": _one(self=_x(3), mat1=_x(T, H), mat2=_x(H, 3), beta=2.0),
    "torch.nn.functional.scaled_mm": lambda: {**scaled(), "output_dtype": torch.float32},
    "torch.ops.aten._scaled_mm_v2": lambda: {
        **scaled(),
        "scale_a": [_x(T, 1)],
        "scale_b": [_x(1, 3)],
        "out_dtype": torch.float32,
    },
    "torch.ops.aten._triton_scaled_dot_attention": _one(
        q=_x(2, HEADS, 3, D), k=_x(2, HEADS, 3, D), v=_x(2, HEADS, 3, D)
    ),
    "lmdeploy.pytorch.kernels.cuda.fused_noaux_tc.fused_noaux_tc_routing": _one(
        logits=_x(T, 6), bias=torch.arange(6), n_group=3, topk_group=2, top_k=2
    ),
    "torch.ops.trtllm.cublas_mm": _one(bias=_x(3)),
    "flashinfer.mm_bf16": _one(a=_x(T, H), b=_x(H, 3)),
    "flashinfer.bmm_bf16": _one(A=_x(2, 3, 4), B=_x(2, 4, 5)),
    "flashinfer.tgv_gemm_sm100": _one(a=_x(T, H), b=_x(H, 3), bias=_x(3)),
    "torch.ops._moe_C.topk_sigmoid": _one(bias=torch.arange(6), routed_scaling_factor=2.5),
    "torch.ops._moe_C.grouped_topk": lambda: {
        **scored(),
        "renormalize": True,
        "bias": torch.arange(6),
        "scoring_func": 1,
    },
    "torch.ops.sgl_kernel.moe_fused_gate": lambda: {
        **scored(),
        "input": _x(T, 6),
        "bias": torch.arange(6),
        "apply_routed_scaling_factor_on_output": True,
    },
    "torch.ops.sgl_kernel.kimi_k2_moe_fused_gate": lambda: {
        **scored(),
        "input": _x(T, 6),
        "bias": torch.arange(6),
        "renormalize": True,
        "apply_routed_scaling_factor_on_output": True,
    },
    "aiter.biased_grouped_topk": _one(correction_bias=torch.arange(6), need_renorm=True),
    "aiter.grouped_topk": _one(need_renorm=True),
    "sgl_kernel.moe_sum_reduce": _one(
        input_tensor=_x(T, 2, 3), output_tensor=_x(T, 3), routed_scaling_factor=2.5
    ),
    "torch.ops.sgl_kernel.moe_sum_reduce": _one(
        input=_x(T, 2, 3), output=_x(T, 3), routed_scaling_factor=2.5
    ),
    "torch_npu.npu_moe_gating_top_k_softmax": _one(k=2),
    "torch.ops.aten.scatter.reduce": _one(
        dim=0, index=torch.zeros(2, H, dtype=torch.long), src=_x(2, H), reduce="multiply"
    ),
    "torch.ops.aten._stack": lambda: {"tensors": [_x(2).requires_grad_() for _ in range(2)]},
    "torch.ops.aten._logcumsumexp": _one(dim=0),
    "torch.ops.aten._embedding_bag_forward_only": _one(
        weight=_x(5, 3), indices=torch.tensor([0, 2, 4]), offsets=torch.tensor([0, 1])
    ),
    "sgl_kernel.fp8_blockwise_scaled_mm": _one(
        mat_a=_x(T, 256), mat_b=_x(256, 128), scales_a=_x(T, 2), scales_b=_x(2, 1)
    ),
    "sgl_kernel.bmm_fp8": lambda: {
        "A": _x(2, 3, 4),
        "B": _x(2, 4, 5),
        "A_scale": torch.ones(1),
        "B_scale": torch.ones(1),
        "dtype": torch.float32,
        "D": _x(2, 3, 5),
        "workspace_buffer": _x(1),
        "cublas_handle": 0,
    },
    "torch.ops.sgl_kernel.bmm_fp8": lambda: {
        "A": _x(2, 3, 4),
        "B": _x(2, 4, 5),
        "A_scale": torch.ones(1),
        "B_scale": torch.ones(1),
        "dtype": torch.float32,
        "D": _x(2, 3, 5),
        "workspace_buffer": _x(1),
        "cublas_handle": 0,
    },
    "flashinfer.gemm.bmm_fp8": lambda: {
        "A": _x(2, 3, 4),
        "B": _x(2, 4, 5),
        "A_scale": torch.ones(1),
        "B_scale": torch.ones(1),
        "dtype": torch.float32,
        "D": _x(2, 3, 5),
        "workspace_buffer": _x(1),
        "cublas_handle": 0,
    },
    "torch.ops.sgl_kernel.dsv3_router_gemm": _one(output=_x(T, 3), mat_b=_x(3, H)),
    "torch.ops._C.cutlass_scaled_mm": lambda: {
        **scaled(),
        "a_scales": _x(T, 1),
        "b_scales": _x(1, 3),
        "out": _x(T, 3),
    },
    "exllamav2_ext.gemm_half_half_half": _one(
        a=_x(T, H), b=_x(H, 3), c=_x(T, 3), alpha=0.5, beta=2.0
    ),
    "lightllm.common.basemodel.triton_kernel.dequantize_gemm_int8.matmul_dequantize_int8": _one(
        a=_x(T, H), b=torch.randint(-9, 9, (H, 3), dtype=torch.int8), b_scale=_x(3)
    ),
    "lmdeploy.pytorch.kernels.cuda.blocked_gemm_fp8.blocked_gemm_fp8": _one(
        A=_x(T, 4), B=_x(4, 6), A_scale=_x(T, 2), B_scale=_x(2, 3)
    ),
    "torch.ops.aten.addmm.dtype": _one(self=_x(3), mat1=_x(T, H), mat2=_x(H, 3), beta=2.0),
    "torch.ops.aten.baddbmm.dtype": _one(
        self=_x(2, 3, 5), batch1=_x(2, 3, 4), batch2=_x(2, 4, 5), alpha=2.0, beta=0.5
    ),
    "torch.ops.trtllm.flashinfer_fused_add_add_rmsnorm": _one(additional=_x(T, H)),
    "torch.ops.torch_ipex.add_rmsnorm": _one(input1=_x(T, H)),
    "torch.ops.sgl_kernel.apply_rope_pos_ids_cos_sin_cache": _one(interleave=True),
    "sgl_kernel.concat_mla_absorb_q": _one(a=_x(T, HEADS, 3), b=_x(T, HEADS, 2)),
    "torch.ops.sgl_kernel.concat_mla_absorb_q": _one(a=_x(T, HEADS, 3), b=_x(T, HEADS, 2)),
    "sgl_kernel.concat_mla_k": _one(k_nope=_x(T, HEADS, 3), k_rope=_x(T, 1, 2)),
    "torch.ops._C_cache_ops.concat_mla_q": _one(ql_nope=_x(T, HEADS, 3), q_pe=_x(T, HEADS, 2)),
    "sgl_kernel.moe_sum": _one(input_tensor=_x(T, 2, 3)),
    "vllm._custom_ops.shuffle_rows": _one(
        input_tensor=_x(T, 3), dst2src_map=torch.tensor([2, 0, 2])
    ),
    "torch.ops._moe_C.shuffle_rows": _one(
        input_tensor=_x(T, 3), dst2src_map=torch.tensor([2, 0, 2])
    ),
    "lmdeploy.pytorch.kernels.cuda.fused_moe.moe_reduce": _one(
        hidden_states=_x(T, 2, 3), topk_weights=_x(T, 2)
    ),
    "intel_extension_for_pytorch.llm.functional.varlen_attention": _one(
        seqlen_q=torch.tensor([0, 2, T]), seqlen_k=torch.tensor([0, 2, T]), softmax_scale=0.5
    ),
}
