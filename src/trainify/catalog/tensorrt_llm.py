"""TensorRT-LLM's custom ops around flashinfer."""

from . import FusedOp, opaque
from .reasons import CODES, COLLECTIVE, DEVICES, FP4, MASKED, ORDER, QUANTIZES, TOKENS, UNDOCUMENTED

_READ = "tensorrt-llm 53b897ce07ec"
_TRTLLM = "tensorrt_llm/_torch/custom_ops/flashinfer_custom_ops.py"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=("torch.ops.trtllm.flashinfer_rmsnorm",),
        schema="flashinfer_rmsnorm(Tensor input, Tensor weight, float eps) -> Tensor",
        equivalent="rms_norm(input, weight, eps)",
        source=_TRTLLM,
    ),
    FusedOp(
        names=("torch.ops.trtllm.flashinfer_gemma_rmsnorm",),
        schema="flashinfer_gemma_rmsnorm(Tensor input, Tensor weight, float eps) -> Tensor",
        equivalent="gemma_rms_norm(input, weight, eps)",
        source=_TRTLLM,
    ),
    FusedOp(
        names=("torch.ops.trtllm.flashinfer_fused_add_rmsnorm",),
        schema="flashinfer_fused_add_rmsnorm(Tensor(a!) input, Tensor(b!) residual, "
        "Tensor weight, float eps) -> ()",
        equivalent="input, residual = fused_add_rms_norm_fp32(input, residual, weight, eps)",
        source=_TRTLLM,
    ),
    FusedOp(
        names=("torch.ops.trtllm.flashinfer_gemma_fused_add_rmsnorm",),
        schema="flashinfer_gemma_fused_add_rmsnorm(Tensor(a!) input, Tensor(b!) residual, "
        "Tensor weight, float eps) -> ()",
        equivalent="input, residual = gemma_fused_add_rms_norm(input, residual, weight, eps)",
        source=_TRTLLM,
    ),
    FusedOp(
        names=("torch.ops.trtllm.flashinfer_silu_and_mul",),
        schema="flashinfer_silu_and_mul(Tensor x) -> Tensor",
        equivalent="silu_and_mul_fp32(x)",
        source=_TRTLLM,
    ),
    FusedOp(
        names=("torch.ops.trtllm.flashinfer_gelu_tanh_and_mul",),
        schema="flashinfer_gelu_tanh_and_mul(Tensor x) -> Tensor",
        equivalent="gelu_tanh_and_mul_fp32(x)",
        source=_TRTLLM,
    ),
    FusedOp(
        names=("torch.ops.trtllm.flashinfer_apply_rope_with_cos_sin_cache_inplace",),
        schema="flashinfer_apply_rope_with_cos_sin_cache_inplace(Tensor positions, "
        "Tensor(a!) query, Tensor(b!) key, int head_size, Tensor cos_sin_cache, "
        "bool is_neox=True) -> ()",
        equivalent="query, key = "
        "rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)",
        source=_TRTLLM,
    ),
    FusedOp(
        names=(
            "torch.ops.trtllm.cublas_mm",
            "torch.ops.trtllm.dsv3_router_gemm_op",
            "torch.ops.trtllm.dsv3_fused_a_gemm_op",
        ),
        schema="cublas_mm(Tensor mat_a, Tensor mat_b, Tensor? bias, "
        "ScalarType? out_dtype=None, int output_buffer_kind=0, Any group=None)"
        " -> Tensor",
        equivalent="F.linear(mat_a, mat_b.t(), bias)",
        source="tensorrt_llm/_torch/custom_ops",
        unsupported=(
            "out_dtype",
            "output_buffer_kind",
            "group",
        ),
        family="matmul",
    ),
    FusedOp(
        names=("torch.ops.trtllm.cuda_scaled_mm",),
        schema="cuda_scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scale_a, "
        "Tensor scale_b, Tensor? bias=None, ScalarType out_dtype=torch.bfloat16, "
        "int output_buffer_kind=0, Any group=None) -> Tensor",
        equivalent="scaled_mm(mat_a, mat_b, scale_a, scale_b, out_dtype, bias)",
        source="tensorrt_llm/_torch/custom_ops",
        unsupported=(
            "output_buffer_kind",
            "group",
        ),
    ),
    FusedOp(
        names=("torch.ops.trtllm.flashinfer_fused_add_rmsnorm_quant",),
        schema="flashinfer_fused_add_rmsnorm_quant(Tensor(a!) out, Tensor input, "
        "Tensor(b!) residual, Tensor weight, Tensor scale, float eps) -> ()",
        equivalent="out, residual = fused_add_rms_norm_fp32_fp8(input, residual, weight, "
        "scale, eps)",
        source="tensorrt_llm/_torch/custom_ops/flashinfer_custom_ops.py",
    ),
    FusedOp(
        names=("torch.ops.trtllm.flashinfer_fused_add_add_rmsnorm",),
        schema="flashinfer_fused_add_add_rmsnorm(Tensor(a!) input, Tensor additional, Tensor(b!) "
        "residual, Tensor weight, float eps) -> ()",
        equivalent="input, residual = fused_add_add_rms_norm(input, additional, residual, "
        "weight, eps)",
        source="tensorrt_llm/_torch/custom_ops/flashinfer_custom_ops.py and its test of bitwise "
        "equality",
    ),
    FusedOp(
        names=("torch.ops.trtllm.noaux_tc_op",),
        schema="noaux_tc_op(Tensor scores, Tensor scores_with_bias, int n_group, int topk_group, "
        "int topk, float routed_scaling_factor) -> (Tensor, Tensor)",
        equivalent="grouped_topk_of_scores(scores, scores_with_bias, topk, True, n_group, "
        "topk_group, routed_scaling_factor)",
        source="cpp/tensorrt_llm/kernels/noAuxTcKernels.cu",
        look_at="newer releases take the bias where older ones take the biased scores",
    ),
    FusedOp(
        names=("torch.ops.trtllm.cublas_scaled_mm",),
        schema="cublas_scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scale_a, Tensor scale_b, "
        "Tensor? bias, ScalarType out_dtype, int output_buffer_kind=0, Any group=None) -> Tensor",
        equivalent="scaled_mm(mat_a, mat_b, scale_a, scale_b, out_dtype, bias)",
        source="tensorrt_llm/_torch/custom_ops",
        unsupported=("output_buffer_kind", "group"),
        look_at="scales must be one number, or one for each row and column; the gradient of"
        " fp8 codes is rounded to fp8 as well",
    ),
    FusedOp(
        names=("torch.ops.trtllm.causal_conv1d_update",),
        schema="causal_conv1d_update(Tensor(a!) x, Tensor(b!) conv_state, Tensor weight, Tensor? "
        "bias_, bool silu_activation, Tensor? cache_seqlens_, Tensor? conv_state_indices_, int "
        "pad_slot_id) -> ()",
        equivalent="x, conv_state = causal_conv1d_slots(x, conv_state, weight, bias_, 'silu' if "
        "silu_activation else None, conv_state_indices_, pad_slot_id)",
        source="cpp/tensorrt_llm/kernels/causalConv1d",
        unsupported=("cache_seqlens_",),
    ),
)

# Without an equivalent.
OPS += opaque(
    "collective",
    COLLECTIVE,
    _READ,
    """
    torch.ops.trtllm.allreduce(input, residual, norm_weight, scale, bias, workspace, group,
        strategy, op, eps, trigger_completion_at_end) -> Tensor[]
    torch.ops.trtllm.allreduce_pg(input, residual, norm_weight, scale, bias, workspace, group,
        rank, pg, strategy, op, eps, trigger_completion_at_end)
    torch.ops.trtllm.mnnvl_fusion_allreduce(input, gamma, residual, epsilon, buffer,
        buffer_flags, rmsnorm_fusion, scale=None, fusion_op=0)
    torch.ops.trtllm.moe_allreduce(residual, norm_weight, device_num_experts, scale_input,
        active_experts_token_input, token_input, workspace, rank, nranks, eps)
    """,
)
OPS += opaque(
    "matmul",
    FP4,
    _READ,
    """
    torch.ops.trtllm.fp4_gemm(mat1, mat2, mat1_scale, mat2_scale, global_scale, sf_use_ue8m0,
        out_dtype=None) -> Tensor
    """,
)
OPS += opaque(
    "moe",
    ORDER,
    _READ,
    """
    torch.ops.trtllm.moe_topk_sort(routing_logits, routing_bias, num_experts, top_k, n_group,
        topk_group, local_expert_offset, local_num_experts, routed_scaling_factor,
        tile_tokens_dim, routing_method_type) -> Tensor[]
    """,
)
OPS += opaque(
    "quantize",
    CODES,
    _READ,
    """
    torch.ops.trtllm.fp8_quantize_1x128_packed_ue8m0(input, use_r128c4_layout=False) -> (fp8,
        scale)
    """,
)
OPS += opaque(
    "sampling",
    TOKENS,
    _READ,
    """
    torch.ops.trtllm.indexer_topk_prefill(logits, row_starts, row_ends, indices, index_topk)
    torch.ops.trtllm.indexer_topk_decode(logits, seq_lens, indices, next_n, index_topk,
        pre_idx=None, heuristic_scratch=None, compress_ratio=1, ...)
    """,
)
OPS += opaque(
    "activation",
    MASKED,
    _READ,
    """
    torch.ops.trtllm.moe_swiglu(input, tile_idx_to_mn_limit, num_non_exiting_tiles,
        tile_tokens_dim) -> Tensor
    torch.ops.trtllm.moe_gelu(input, tile_idx_to_mn_limit, num_non_exiting_tiles,
        tile_tokens_dim) -> Tensor
    """,
)
OPS += opaque(
    "misc",
    UNDOCUMENTED,
    _READ,
    """
    torch.ops.trtllm.attn_res_fwd(layer_residual, block_residual, res_weight, rms_weight,
        rms_eps) -> (out, rsigma, probs, logits)
    """,
)
OPS += opaque(
    "moe",
    UNDOCUMENTED,
    _READ,
    """
    torch.ops.trtllm.moe_permute(input, input_sf, tile_idx_to_mn_limit,
        permuted_idx_to_expanded_idx, num_non_exiting_tiles, tile_tokens_dim, top_k) -> (out,
        sf)
    torch.ops.trtllm.moe_unpermute(permuted_input, expanded_idx_to_permuted_idx,
        topk_scales) -> Tensor
    torch.ops.trtllm.moe_finalize_scale_op(gemm2_output, fc2_expert_biases,
        unpermuted_final_scales, unpermuted_row_to_permuted_row, expert_for_source_row,
        expert_first_token_offset_tensor, num_rows, hidden_size, unpadded_hidden_size,
        experts_per_token, num_experts_per_node, tp_size, tp_rank, ep_size, ep_rank) -> Tensor
    """,
)
OPS += opaque(
    "norm",
    DEVICES,
    _READ,
    """
    torch.ops.trtllm.minimax_allreduce_rms(input, norm_weight, workspace, rank, nranks, eps,
        trigger_completion_at_end)
    """,
)
OPS += opaque(
    "norm",
    UNDOCUMENTED,
    _READ,
    """
    torch.ops.trtllm.deepseek_v4_q_norm(q, num_heads, head_dim, eps) -> Tensor
    """,
)
OPS += opaque(
    "rope",
    QUANTIZES,
    _READ,
    """
    torch.ops.trtllm.fused_inv_rope_fp8_quant_vllm_port(o, positions, cos_sin_cache, n_groups,
        heads_per_group, nope_dim, rope_dim, quant_group_size, is_neox) -> (fp8, scale)
    """,
)
OPS += opaque(
    "state_space",
    UNDOCUMENTED,
    _READ,
    """
    torch.ops.trtllm.causal_conv1d_fwd(x, weight, bias_, conv_states, query_start_loc,
        cache_indices, has_initial_state, silu_activation, pad_slot_id, out=None) -> ()
    """,
)
