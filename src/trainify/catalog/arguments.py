"""What an argument asks of a kernel, where that is more than an equivalent computes."""

from __future__ import annotations

_ASKS = {
    "adds a bias to the scores": "alibi_slopes alibi_slopes_ attn_bias rel_bias qq_bias "
    "sinks_bias_key0",
    "keeps keys from being attended to": "mask attn_mask custom_mask packed_custom_mask "
    "mask_type block_sparse_tensors blocksparse_vert_stride dynamic_causal attention_chunk "
    "window_size_left window_size_right sliding_window_q sliding_window_k sliding_window_size",
    "is a function that only the kernel calls": "score_mod mask_mod aux_tensors "
    "custom_routing_function",
    "has the kernel write fresh keys and values into its cache first": "k v k_buffer v_buffer "
    "fused_set_kv_buffer_arg",
    "adds a second product to the scores": "qv q_v",
    "has the kernel rotate query and key first": "rotary_cos rotary_sin pos_encoding_mode",
    "scales quantized values": "q_descale k_descale v_descale q_scale k_scale v_scale o_scale "
    "scale_q scale_k scale_v sfq sfk sfv output_scale fp8_out_scale kv_cache_sf scale_result "
    "block_scale state_scale w1_scale w2_scale scale_ub",
    "says where in a cache each row lies": "cache_seqlens cache_seqlens_ "
    "cache_batch_idx cache_leftpad leftpad_k leftpad_k_ "
    "kv_cache_loc gather_kv_indices window_kv_offsets identity_kv_indices page_size "
    "state_indices state_batch_indices conv_state_indices dst_state_batch_indices "
    "intermediate_state_indices virtual_batch_idx use_interleaved_v_cache",
    "says how long each sequence is": "cu_seqlens cum_seq_q cum_seq_k seqused "
    "seqused_q seqused_k seq_idx query_start_loc "
    "num_accepted_tokens prefill_tokens_with_context",
    "has the kernel return more than the result": "return_lse return_softmax return_softmax_lse "
    "return_attn_probs return_debug_mask return_final_states",
    "drops entries at random, not to be drawn again": "p p_dropout pdropout dropout_p",
    "rounds at random, not to be drawn again": "enable_stochastic_rounding rand_seed",
    "is where the result, or more than that, is written": "lse out out_ output out_residual "
    "output_lse v_merged s_merged core_attn_out final_states_out intermediate_states_buffer "
    "intermediate_state_scales",
    "has the kernel write over its input": "inplace",
    "has the kernel rotate a part of each head": "rope_dim partial_rotary_factor",
    "names the dtype of the result": "out_dtype output_dtype o_dtype",
    "adds a bias": "bias x_bias w1_bias w2_bias",
    "is added before the rest": "residual",
    "chooses experts in another way": "use_grouped_topk correction_bias scoring_func renormalize "
    "moe_softcapping num_fused_shared_experts expert_map expert_offset",
    "gives the kernel the state to begin with": "initial_states",
}
ASKS: dict[str, str] = {name: what for what, names in _ASKS.items() for name in names.split()}
"""By the name of an argument, what it does: a clause of which the argument is the subject."""
