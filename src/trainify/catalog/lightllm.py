"""lightllm's Triton kernels, at fc72ffab9a34."""

from . import FusedOp, opaque
from .reasons import CACHE, CODED, CONTEXT, FILTER, MAJOR, ROUNDS, UNDOCUMENTED

_READ = "lightllm fc72ffab9a34"
_LLAMA = "lightllm.models.llama.triton_kernel"
_COS_SIN = "Tensor(a!) q, Tensor(b!) k, Tensor cos, Tensor sin"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=(f"{_LLAMA}.rmsnorm.rmsnorm_forward",),
        schema="rmsnorm_forward(Tensor x, Tensor weight, float eps, Tensor(a!)? out=None)"
        " -> Tensor(a!)",
        equivalent="rms_norm(x, weight, eps)",
        source="lightllm/models/llama/triton_kernel/rmsnorm.py",
    ),
    FusedOp(
        names=("lightllm.models.vit.triton_kernel.rms_norm_vit.rms_norm",),
        schema="rms_norm(Tensor hidden_states, Tensor weight, float eps=1e-5, "
        "bool use_custom_tensor_mananger=False) -> Tensor",
        equivalent="rms_norm(hidden_states, weight, eps)",
        source="lightllm/models/vit/triton_kernel/rms_norm_vit.py",
    ),
    FusedOp(
        names=("lightllm.models.bloom.triton_kernel.layernorm.layernorm_forward",),
        schema="layernorm_forward(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor",
        equivalent="layer_norm(x, weight, bias, eps)",
        source="lightllm/models/bloom/triton_kernel/layernorm.py",
    ),
    FusedOp(
        names=("lightllm.models.cohere.triton_kernels.layernorm.layernorm_forward",),
        schema="layernorm_forward(Tensor X, Tensor W, float eps) -> Tensor",
        equivalent="head_layer_norm(X, W, eps)",
        source="lightllm/models/cohere/triton_kernels/layernorm.py",
    ),
    FusedOp(
        names=(f"{_LLAMA}.silu_and_mul.silu_and_mul_fwd",),
        schema="silu_and_mul_fwd(Tensor input, Tensor(a!) output) -> ()",
        equivalent="output = silu_and_mul(input)",
        source="lightllm/models/llama/triton_kernel/silu_and_mul.py",
    ),
    FusedOp(
        names=("lightllm.common.fused_moe.moe_silu_and_mul.silu_and_mul_fwd",),
        schema="silu_and_mul_fwd(Tensor input, Tensor(a!) output) -> ()",
        equivalent="output = silu_and_mul(input)",
        source="lightllm/common/fused_moe/moe_silu_and_mul.py",
    ),
    FusedOp(
        names=("lightllm.models.gemma_2b.triton_kernel.gelu_and_mul.gelu_and_mul_fwd",),
        schema="gelu_and_mul_fwd(Tensor input, Tensor(a!) output) -> ()",
        equivalent="output = gelu_tanh_and_mul(input)",
        source="lightllm/models/gemma_2b/triton_kernel/gelu_and_mul.py",
    ),
    FusedOp(
        names=(
            f"{_LLAMA}.rotary_emb.rotary_emb_fwd",
            "lightllm.models.phi3.triton_kernel.rotary_emb.rotary_emb_fwd",
        ),
        schema=f"rotary_emb_fwd({_COS_SIN}, float partial_rotary_factor=1.0) -> ()",
        equivalent="q, k = rotate_query_key(q, k, cos, sin, True)",
        source="lightllm/models/llama/triton_kernel/rotary_emb.py",
    ),
    # These two pair neighbours; chatglm2 rotates the first half of the features.
    FusedOp(
        names=(
            "lightllm.models.chatglm2.triton_kernel.rotary_emb.rotary_emb_fwd",
            "lightllm.models.deepseek2.triton_kernel.rotary_emb.rotary_emb_fwd",
        ),
        schema=f"rotary_emb_fwd({_COS_SIN}) -> ()",
        equivalent="q, k = rotate_query_key(q, k, cos, sin, False)",
        source="lightllm/models/chatglm2/triton_kernel/rotary_emb.py",
    ),
    # Pairs of neighbours again, with tables that repeat each value for both.
    FusedOp(
        names=("lightllm.models.cohere.triton_kernels.rotary_emb.rotary_emb_fwd",),
        schema=f"rotary_emb_fwd({_COS_SIN}, float partial_rotary_factor=1.0) -> ()",
        equivalent="q, k = rotate_query_key(q, k, cos[:, ::2], sin[:, ::2], False)",
        source="lightllm/models/cohere/triton_kernels/rotary_emb.py",
        unsupported=("partial_rotary_factor",),
    ),
    FusedOp(
        names=(f"{_LLAMA}.context_flashattention_nopad.context_attention_fwd_no_prompt_cache",),
        schema="context_attention_fwd_no_prompt_cache(Tensor q, Tensor k, Tensor v, Tensor(a!) o, "
        "Tensor b_start_loc, Tensor b_seq_len, int max_input_len) -> ()",
        equivalent="o = prefill_attention(q, k, v, b_seq_len)",
        source="lightllm/models/llama/triton_kernel/context_flashattention_nopad.py",
    ),
    FusedOp(
        names=(f"{_LLAMA}.gqa_decode_flashattention_nopad.gqa_decode_attention_fwd",),
        schema="gqa_decode_attention_fwd(Tensor q, Tensor k, Tensor v, Tensor(a!) o, "
        "Tensor req_to_tokens, Tensor b_req_idx, Tensor b_seq_len) -> ()",
        equivalent="o = pooled_attention(q, k, v, req_to_tokens, b_req_idx, b_seq_len)",
        source="lightllm/models/llama/triton_kernel/gqa_decode_flashattention_nopad.py",
    ),
    FusedOp(
        names=("lightllm.common.basemodel.triton_kernel.add_in_place.add_in_place",),
        schema="add_in_place(Tensor(a!) input, Tensor other, *, float alpha=1) -> ()",
        equivalent="input = input + alpha * other",
        source="lightllm/common/basemodel/triton_kernel/add_in_place.py",
        family="activation",
    ),
    FusedOp(
        names=("lightllm.models.llama.triton_kernel.embedding.embedding",),
        schema="embedding(Tensor input_ids, Tensor weight, int vob_start_id, "
        "int vob_end_id, Tensor(a!) out) -> ()",
        equivalent="out = embedding_shard(input_ids, weight, vob_start_id, vob_end_id)",
        source="lightllm/models/llama/triton_kernel/embedding.py",
    ),
    FusedOp(
        names=("lightllm.common.fused_moe.moe_sum_reduce.moe_sum_reduce",),
        schema="moe_sum_reduce(Tensor input, Tensor(a!) output) -> ()",
        equivalent="output = input.sum(1)",
        source="lightllm/common/fused_moe/moe_sum_reduce.py",
        family="moe",
    ),
    FusedOp(
        names=("lightllm.common.fused_moe.softmax_topk.softmax_topk",),
        schema="softmax_topk(Tensor gating_output, int topk, bool renorm=False)"
        " -> (Tensor, Tensor)",
        equivalent="softmax_topk(gating_output, topk, renorm)",
        source="lightllm/common/fused_moe/softmax_topk.py",
    ),
    FusedOp(
        names=("lightllm.common.fused_moe.grouped_fused_moe.fused_experts_impl",),
        schema="fused_experts_impl(Tensor hidden_states, Tensor w1, Tensor w2, "
        "Tensor topk_weights, Tensor topk_ids, bool inplace=False, "
        "bool use_fp8_w8a8=False, bool use_int8_w8a16=False, "
        "Tensor? w1_scale=None, Tensor? w2_scale=None, Tensor? a1_scale=None, "
        "Tensor? a2_scale=None, Any alloc_tensor_func=None) -> Tensor",
        equivalent="moe_experts(hidden_states, w1, w2, topk_weights, topk_ids)",
        source="lightllm/common/fused_moe/grouped_fused_moe.py",
        unsupported=(
            "inplace",
            "use_fp8_w8a8",
            "use_int8_w8a16",
            "w1_scale",
            "w2_scale",
        ),
    ),
    FusedOp(
        names=("lightllm.models.vit.triton_kernel.gelu_vit.gelu_fwd",),
        schema="gelu_fwd(Tensor input, bool use_custom_tensor_mananger=False) -> Tensor",
        equivalent="F.gelu(input)",
        source="lightllm/models/vit/triton_kernel/gelu_vit.py",
        family="activation",
    ),
    FusedOp(
        names=("lightllm.common.fused_moe.grouped_topk.triton_grouped_topk",),
        schema="triton_grouped_topk(Tensor hidden_states, Tensor gating_output, Tensor? "
        "correction_bias, int topk, bool renormalize, int num_expert_group=0, int topk_group=0, "
        "str scoring_func='softmax', int group_score_used_topk_num=2) -> (Tensor, Tensor)",
        equivalent="grouped_topk(gating_output, topk, renormalize, num_expert_group, topk_group, "
        "scoring_func, 1.0, correction_bias, group_score_used_topk_num)",
        source="lightllm/common/fused_moe/grouped_topk.py",
    ),
    FusedOp(
        names=(
            "lightllm.models.llama.triton_kernel.token_attention_nopad_softmax.token_softmax_fwd",
        ),
        schema="token_softmax_fwd(Tensor Logics, Tensor B_Start_Loc, Tensor B_Seqlen, Tensor(a!) "
        "Prob_Out, int max_input_len) -> ()",
        equivalent="Prob_Out = softmax_packed(Logics, B_Start_Loc, B_Seqlen)",
        source="lightllm/models/llama/triton_kernel/token_attention_nopad_softmax.py",
    ),
    FusedOp(
        names=(
            "lightllm.common.basemodel.triton_kernel.dequantize_gemm_int4.matmul_dequantize_int4_gptq",
        ),
        schema="matmul_dequantize_int4_gptq(Tensor x, Tensor qweight, Tensor scales, Tensor "
        "qzeros, int group_size, Tensor(a!)? output=None) -> Tensor",
        equivalent="int4_matmul(x, qweight, scales, qzeros, group_size, True)",
        source="lightllm/common/basemodel/triton_kernel/dequantize_gemm_int4.py",
        unsupported=("output",),
    ),
    FusedOp(
        names=(
            "lightllm.common.basemodel.triton_kernel.dequantize_gemm_int4.matmul_dequantize_int4_s1",
        ),
        schema="matmul_dequantize_int4_s1(Tensor a, Tensor b, Tensor b_scale, Tensor "
        "b_zero_point, int group_size=128, Tensor(a!)? out=None) -> Tensor(a!)",
        equivalent="int4_matmul(a, b, b_scale, b_zero_point, group_size)",
        codes=("b", "b_zero_point"),
        source="lightllm/common/basemodel/triton_kernel/dequantize_gemm_int4.py",
    ),
    FusedOp(
        names=(
            "lightllm.common.basemodel.triton_kernel.dequantize_gemm_int8.matmul_dequantize_int8",
        ),
        schema="matmul_dequantize_int8(Tensor a, Tensor b, Tensor b_scale, Tensor(a!)? out=None) "
        "-> Tensor(a!)",
        equivalent="a @ (b * b_scale).to(a.dtype)",
        codes=("b",),
        source="lightllm/common/basemodel/triton_kernel/dequantize_gemm_int8.py",
        family="matmul",
    ),
    FusedOp(
        names=(
            "lightllm.models.llama.triton_kernel.context_flashattention_nopad.context_attention_fwd",
        ),
        schema="context_attention_fwd(Tensor q, Tensor k, Tensor v, Tensor(a!) o, Tensor "
        "b_req_idx, Tensor b_start_loc, Tensor b_seq_len, Tensor b_prompt_cache_len, int "
        "max_input_len, Tensor req_to_token_indexs) -> ()",
        equivalent="o = pooled_prefill(q, k, v, req_to_token_indexs, b_req_idx, b_seq_len, "
        "b_prompt_cache_len)",
        source="lightllm/models/llama/triton_kernel/context_flashattention_nopad.py",
    ),
    FusedOp(
        names=("lightllm.models.llama.triton_kernel.flash_decoding_stage2.flash_decode_stage2",),
        schema="flash_decode_stage2(Tensor mid_out, Tensor mid_out_logexpsum, Tensor B_Seqlen, "
        "Tensor(a!) O, int block_seq) -> ()",
        equivalent="O = join_blocks(mid_out, mid_out_logexpsum, B_Seqlen, block_seq, O.dtype)",
        source="lightllm/models/llama/triton_kernel/flash_decoding_stage2.py",
    ),
    FusedOp(
        names=("lightllm.models.llama.triton_kernel.token_attention_nopad_att1.token_att_fwd",),
        schema="token_att_fwd(Tensor q, Tensor k, Tensor(a!) att_out, Tensor Req_to_tokens, "
        "Tensor B_req_idx, Tensor B_Start_Loc, Tensor B_Seqlen, int max_len_in_batch) -> ()",
        equivalent="att_out = token_scores(q, k, Req_to_tokens, B_req_idx, B_Start_Loc, B_Seqlen, "
        "att_out)",
        source="lightllm/models/llama/triton_kernel/token_attention_nopad_att1.py",
    ),
    FusedOp(
        names=("lightllm.models.llama.triton_kernel.token_attention_nopad_reduceV.token_att_fwd2",),
        schema="token_att_fwd2(Tensor prob, Tensor v, Tensor(a!) out, Tensor Req_to_tokens, "
        "Tensor B_req_idx, Tensor B_Start_Loc, Tensor B_Seqlen) -> ()",
        equivalent="out = token_values(prob, v, Req_to_tokens, B_req_idx, B_Start_Loc, B_Seqlen, "
        "False, out.dtype)",
        source="lightllm/models/llama/triton_kernel/token_attention_nopad_reduceV.py",
    ),
    FusedOp(
        names=(
            "lightllm.models.llama.triton_kernel.token_attention_softmax_and_reducev.token_softmax_reducev_fwd",
        ),
        schema="token_softmax_reducev_fwd(Tensor logics, Tensor v, Tensor(a!) o, Tensor "
        "req_to_tokens, Tensor b_req_idx, Tensor b_start_loc, Tensor b_seq_len) -> ()",
        equivalent="o = token_values(logics, v, req_to_tokens, b_req_idx, b_start_loc, b_seq_len, "
        "True, o.dtype)",
        source="lightllm/models/llama/triton_kernel/token_attention_softmax_and_reducev.py",
    ),
)

# Without an equivalent.
OPS += opaque(
    "attention",
    CONTEXT,
    _READ,
    """
    lightllm.models.llama.triton_kernel.flash_decoding.token_decode_attention_flash_decoding(q,
        infer_state, q_head_num, head_dim, cache_k, cache_v, out=None,
        alloc_tensor_func=torch.empty)
    lightllm.models.llama.triton_kernel.gqa_flash_decoding.gqa_token_decode_attention_flash_decoding(
        q, infer_state, q_head_num, head_dim, cache_k, cache_v, out=None,
        alloc_tensor_func=torch.empty)
    lightllm.models.llama.triton_kernel.gqa_flash_decoding_vsm.gqa_token_decode_attention_flash_decoding_vsm(
        q, k, v, infer_state, out=None, alloc_tensor_func=torch.empty, **run_config)
    """,
)
OPS += opaque(
    "cache",
    CACHE,
    _READ,
    """
    lightllm.common.basemodel.triton_kernel.destindex_copy_kv.destindex_copy_kv(K, DestLoc, Out)
    lightllm.common.basemodel.triton_kernel.destindex_copy_kv.destindex_copy_quantize_kv(K,
        DestLoc, Out, Out_scale)
    """,
)
OPS += opaque(
    "sampling",
    FILTER,
    _READ,
    """
    lightllm.common.basemodel.triton_kernel.apply_penalty.apply_penalty(Logits, b_req_idx,
        b_length_penalty_param, b_mask_eos_reqs, p_token_ids, p_token_counts, p_cumsum_seq_len,
        eos_ids, sampling_params_manager)
    """,
)
OPS += opaque(
    "embedding",
    UNDOCUMENTED,
    _READ,
    """
    lightllm.common.basemodel.triton_kernel.multimodal_emb.multimodal_emb(out, prompt_ids,
        text_weight_embs, img_embs, img_token_lens, img_start_token_ids, img_start_locs,
        tp_text_start_token_id, tp_text_end_token_id)
    """,
)
OPS += opaque(
    "matmul",
    ROUNDS,
    _READ,
    """
    lightllm.common.basemodel.triton_kernel.quantize_gemm_int8.matmul_quantize_int8(fpa, b,
        b_scale, out=None)
    """,
)
OPS += opaque(
    "matmul",
    MAJOR,
    _READ,
    """
    lightllm.common.basemodel.triton_kernel.bmm_scaled_fp8.bmm_scaled_fp8(a, a_scale, b,
        b_scale, c, **run_config)
    """,
)
OPS += opaque(
    "attention",
    CODED,
    _READ,
    """
    lightllm.models.llama.triton_kernel.context_flashattention_nopad.context_attention_fwd_ppl_int8kv(
        q, k, v, o, b_start_loc, b_seq_len, max_input_len, b_prompt_cache_len)
    """,
)
OPS += opaque(
    "attention",
    UNDOCUMENTED,
    _READ,
    """
    lightllm.models.llama.triton_kernel.flash_decoding_stage1.flash_decode_stage1(q, k, v,
        Req_to_tokens, B_req_idx, B_Seqlen, max_len_in_batch, mid_out, mid_out_logsumexp,
        block_seq)
    """,
)
