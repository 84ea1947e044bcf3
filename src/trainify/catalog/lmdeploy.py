"""lmdeploy's Triton kernels."""

from . import FusedOp, opaque
from .reasons import CACHE, CODED, CODES, MAJOR, MASKED, OPTIONS, TOKENS, UNDOCUMENTED, WRITES

_READ = "lmdeploy 1263d5cd889b"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=(
            "lmdeploy.pytorch.kernels.cuda.rms_norm.rms_norm",
            "lmdeploy.pytorch.kernels.cuda.rms_norm",
        ),
        schema="rms_norm(Tensor hidden_states, Tensor weight, float eps=1e-6, "
        "Tensor? residual=None, Tensor? out=None, Tensor? out_residual=None) -> Tensor",
        equivalent="rms_norm_maybe_add(hidden_states, weight, eps, residual)",
        source="lmdeploy/pytorch/kernels/cuda/rms_norm.py",
        unsupported=("out", "out_residual"),
    ),
    FusedOp(
        names=("lmdeploy.pytorch.kernels.cuda.activation.silu_and_mul",),
        schema="silu_and_mul(Tensor gate_up, Tensor(a!)? out=None) -> Tensor(a!)",
        equivalent="silu_and_mul(gate_up)",
        source="lmdeploy/pytorch/kernels/cuda/activation.py",
    ),
    FusedOp(
        names=(
            "lmdeploy.pytorch.kernels.cuda.apply_rotary_pos_emb.apply_rotary_pos_emb",
            "lmdeploy.pytorch.kernels.cuda.apply_rotary_pos_emb",
        ),
        schema="apply_rotary_pos_emb(Tensor q, Tensor k, Tensor cos, Tensor sin, "
        "Tensor(a!)? q_embed=None, Tensor(b!)? k_embed=None, bool complex_mode=False)"
        " -> (Tensor(a!), Tensor(b!))",
        equivalent="rotate_query_key_or_pairs(q, k, cos, sin, complex_mode)",
        source="lmdeploy/pytorch/kernels/cuda/apply_rotary_pos_emb.py",
    ),
    FusedOp(
        names=("lmdeploy.pytorch.kernels.cuda.awq_kernels.awq_linear",),
        schema="awq_linear(Tensor x, Tensor qweight, Tensor scales, Tensor qzeros) -> Tensor",
        equivalent="awq_matmul(x, qweight, scales, qzeros)",
        source="lmdeploy/pytorch/kernels/cuda/awq_kernels.py",
    ),
    FusedOp(
        names=("lmdeploy.pytorch.kernels.cuda.causal_conv1d.causal_conv1d_fn",),
        schema="causal_conv1d_fn(Tensor x, Tensor weight, Tensor? bias=None, "
        "Tensor? seq_idx=None, Tensor? initial_states=None, "
        "bool return_final_states=False, Tensor? final_states_out=None, "
        "str? activation=None) -> Tensor",
        equivalent="causal_conv1d(x, weight, bias, activation)",
        source="lmdeploy/pytorch/kernels/cuda/causal_conv1d.py",
        unsupported=(
            "seq_idx",
            "initial_states",
            "return_final_states",
            "final_states_out",
        ),
    ),
    FusedOp(
        names=("lmdeploy.pytorch.kernels.cuda.causal_conv1d.causal_conv1d_update",),
        schema="causal_conv1d_update(Tensor x, Tensor(a!) conv_state, Tensor weight, "
        "Tensor? bias=None, str? activation=None, Tensor? cache_seqlens=None, "
        "Tensor? conv_state_indices=None) -> Tensor",
        equivalent="_, conv_state = causal_conv1d_update(x, conv_state, weight, bias, activation)",
        source="lmdeploy/pytorch/kernels/cuda/causal_conv1d.py",
        unsupported=(
            "cache_seqlens",
            "conv_state_indices",
        ),
    ),
    FusedOp(
        names=("lmdeploy.pytorch.kernels.cuda.gated_delta_rule.fused_recurrent_gated_delta_rule",),
        schema="fused_recurrent_gated_delta_rule(Tensor q, Tensor k, Tensor v, "
        "Tensor? g=None, Tensor? beta=None, float? scale=None, "
        "Tensor? initial_state=None, bool output_final_state=False, "
        "bool use_qk_l2norm_in_kernel=False, Tensor? state_indices=None, "
        "Tensor? cache_seqlens=None, bool transpose_state_layout=False)"
        " -> (Tensor, Tensor?)",
        equivalent="gated_delta_rule(q, k, v, g, beta, scale, initial_state, "
        "output_final_state, use_qk_l2norm_in_kernel)",
        source="lmdeploy/pytorch/kernels/cuda/gated_delta_rule.py",
        unsupported=(
            "state_indices",
            "cache_seqlens",
            "transpose_state_layout",
        ),
    ),
    FusedOp(
        names=(
            "lmdeploy.pytorch.kernels.cuda.fused_moe.moe_reduce",
            "lmdeploy.pytorch.kernels.cuda.moe.fused_moe.moe_reduce",
        ),
        schema="moe_reduce(Tensor hidden_states, Tensor topk_weights, bool fp32_acc=False)"
        " -> Tensor",
        equivalent="(hidden_states * topk_weights.unsqueeze(-1)).sum(1)",
        source="lmdeploy/pytorch/kernels/cuda/fused_moe.py",
        unsupported=("fp32_acc",),
        family="moe",
    ),
    FusedOp(
        names=(
            "lmdeploy.pytorch.kernels.cuda.w8a8_triton_kernels.rms_norm_dynamic_quant",
            "lmdeploy.pytorch.kernels.cuda.rms_norm_dynamic_quant",
        ),
        schema="rms_norm_dynamic_quant(Tensor x, Tensor w, float eps, "
        "Tensor? residual=None, ScalarType quant_dtype=torch.int8) -> (Tensor, "
        "Tensor)",
        equivalent="rms_norm_dynamic_quant(x, w, eps, quant_dtype)",
        look_at="the codes come as floating point, not in 8 bits: what reads them must take that",
        source="lmdeploy/pytorch/kernels/cuda/w8a8_triton_kernels.py",
        unsupported=("residual",),
    ),
    FusedOp(
        names=(
            "lmdeploy.pytorch.kernels.cuda.fused_moe.fused_moe",
            "lmdeploy.pytorch.kernels.cuda.moe.fused_moe.fused_moe",
            "lmdeploy.pytorch.kernels.cuda.fused_moe",
        ),
        schema="fused_moe(Tensor hidden_states, Tensor w1, Tensor w2, "
        "Tensor topk_weights, Tensor topk_ids, int topk, Tensor? w1_bias=None, "
        "Tensor? w2_bias=None, int expert_offset=0, int? num_experts=None, "
        "bool renormalize=False, Any act_func=None) -> Tensor",
        equivalent="moe_experts(hidden_states, w1, w2, topk_weights, topk_ids)",
        source="lmdeploy/pytorch/kernels/cuda/fused_moe.py",
        unsupported=(
            "w1_bias",
            "w2_bias",
            "expert_offset",
            "renormalize",
            "act_func",
        ),
    ),
    FusedOp(
        names=(
            "lmdeploy.pytorch.kernels.cuda.fused_noaux_tc.fused_noaux_tc_routing",
            "lmdeploy.pytorch.kernels.cuda.moe.route_noaux_tc.fused_noaux_tc_routing",
        ),
        schema="fused_noaux_tc_routing(Tensor logits, Tensor bias, int num_experts=256, "
        "int n_group=8, int topk_group=4, int top_k=8, bool renormalize=True, "
        "float routed_scaling_factor=2.5) -> (Tensor, Tensor)",
        equivalent="grouped_topk(logits, top_k, renormalize, n_group, topk_group, 'sigmoid', "
        "routed_scaling_factor, bias)",
        source="lmdeploy/pytorch/kernels/cuda/fused_noaux_tc.py",
    ),
    FusedOp(
        names=("lmdeploy.pytorch.kernels.cuda.blocked_gemm_fp8.blocked_gemm_fp8",),
        schema="blocked_gemm_fp8(Tensor A, Tensor A_scale, Tensor B, Tensor B_scale, ScalarType "
        "out_dtype=torch.float16) -> Tensor",
        equivalent="block_scaled_mm(A, B.t(), A_scale, B_scale.t(), -(-B.shape[1] // "
        "B_scale.shape[1]), -(-A.shape[1] // A_scale.shape[1]), out_dtype)",
        source="lmdeploy/pytorch/kernels/cuda/blocked_gemm_fp8.py",
        look_at="the gradient of fp8 codes is rounded to fp8 as well",
    ),
    FusedOp(
        names=(
            "lmdeploy.pytorch.kernels.cuda.w8a8_triton_kernels.matmul_kernel_dynamic_quant",
            "lmdeploy.pytorch.kernels.cuda.matmul_kernel_dynamic_quant",
        ),
        schema="matmul_kernel_dynamic_quant(Tensor a, Tensor b, Tensor rms_scale, Tensor "
        "linear_scale, Tensor? residual=None, Tensor? bias=None, ScalarType "
        "output_dtype=torch.float16) -> Tensor",
        equivalent="scaled_mm_add(a, b, rms_scale, linear_scale, output_dtype, residual, bias)",
        source="lmdeploy/pytorch/kernels/cuda/w8a8_triton_kernels.py",
    ),
)

# Without an equivalent.
OPS += opaque(
    "cache",
    CACHE,
    _READ,
    """
    lmdeploy.pytorch.kernels.cuda.fill_kv_cache.fill_kv_cache,
        lmdeploy.pytorch.kernels.cuda.fill_kv_cache(k_states, v_states, k_caches,
        v_caches, q_start_loc, q_seq_length, kv_seq_length, max_q_seq_length, block_offsets,
        k_scales_zeros=None, v_scales_zeros=None, quant_policy=QuantPolicy.NONE,
        kv_layout='bshd')
    lmdeploy.pytorch.kernels.cuda.fill_kv_cache.fill_kv_cache_blocked_fp8(k_states, v_states,
        k_caches, v_caches, ks_caches, vs_caches, cu_seqlen_q, kv_seqlens, max_q_seqlen,
        block_offsets, group_size=128, kv_layout='bshd', scale_fmt=None)
    lmdeploy.pytorch.kernels.cuda.flatten_kv_cache.flatten_kv_cache,
        lmdeploy.pytorch.kernels.cuda.flatten_kv_cache(k_caches, v_caches, seqlens,
        block_offsets, start_loc=None, out_size=None, out_dtype=None, k_scales_zeros=None,
        v_scales_zeros=None, quant_policy=QuantPolicy.NONE, kv_layout='bshd',
        flatten_kv_layout='hsd')
    """,
)
OPS += opaque(
    "quantize",
    CODES,
    _READ,
    """
    lmdeploy.pytorch.kernels.cuda.activation.silu_and_mul_masked_post_quant_fwd(input, output,
        output_scale, quant_group_size, masked_m)
    lmdeploy.pytorch.kernels.cuda.blocked_gemm_fp8.quant_fp8(A, group_size,
        dtype=torch.float8_e4m3fn, trans_scale=False, scale_fmt=None)
    lmdeploy.pytorch.kernels.cuda.w8a8_triton_kernels.per_token_quant_int8,
        lmdeploy.pytorch.kernels.cuda.per_token_quant_int8(x, eps,
        quant_dtype=torch.int8)
    """,
)
OPS += opaque(
    "sampling",
    TOKENS,
    _READ,
    """
    lmdeploy.pytorch.kernels.cuda.multinomial_sampling.multinomial_sampling,
        lmdeploy.pytorch.kernels.cuda.multinomial_sampling(scores, seeds,
        offsets, indices=None)
    lmdeploy.pytorch.kernels.cuda.bitonic_topk.bitonic_topk(scores, q_seqlens, kv_seqlens, k,
        fill=-1, descending=True, sorted=True, threshold=-1000000.0)
    lmdeploy.pytorch.kernels.cuda.ds_index.fp8_index(q, q_s, k_cache, k_s_cache, cu_seqlen_q,
        k_seqlens, block_offset, max_q_seqlen=None, max_k_seqlen=None, causal=False,
        raw_k_seqlens=None, compress_ratio=1, return_row_k_seqlens=False,
        trim_causal_tail=False)
    """,
)
OPS += opaque(
    "activation",
    MASKED,
    _READ,
    """
    lmdeploy.pytorch.kernels.cuda.activation.silu_and_mul_moe_ep(gate_up, mask_m, out=None)
    """,
)
OPS += opaque(
    "lora",
    UNDOCUMENTED,
    _READ,
    """
    lmdeploy.pytorch.kernels.cuda.fused_lora.fused_lora(input, lora_a, lora_b, scaling,
        rank_start, ranks, seq_start, seq_lens, adapter_ids, max_rank, max_seqlen, output=None,
        cum=False)
    """,
)
OPS += opaque(
    "matmul",
    MAJOR,
    _READ,
    """
    lmdeploy.pytorch.kernels.cuda.blocked_gemm_fp8.deep_gemm_fp8(A, A_scale, B, B_scale,
        out_dtype=torch.bfloat16)
    """,
)
OPS += opaque(
    "matmul",
    CODED,
    _READ,
    """
    lmdeploy.pytorch.kernels.cuda.w8a8_triton_kernels.matmul_kernel_static_quant(a, b,
        input_scale, weight_scale, residual=None, bias=None, output_dtype=torch.float16)
    """,
)
OPS += opaque(
    "moe",
    MAJOR,
    _READ,
    """
    lmdeploy.pytorch.kernels.cuda.blocked_fp8_fused_moe.fused_moe_blocked_fp8,
        lmdeploy.pytorch.kernels.cuda.moe.blocked_fp8.fused_moe_blocked_fp8(input,
        input_scale, w1, w1_scale, w2, w2_scale, topk_weights, topk_ids, topk, w1_bias=None,
        w2_bias=None, out_dtype=torch.float16, expert_offset=0, num_experts=None,
        renormalize=False, act_func=None) -> torch.Tensor
    """,
)
OPS += opaque(
    "moe",
    CODED,
    _READ,
    """
    lmdeploy.pytorch.kernels.cuda.w8a8_fused_moe.fused_moe_w8a8,
        lmdeploy.pytorch.kernels.cuda.moe.w8a8.fused_moe_w8a8,
        lmdeploy.pytorch.kernels.cuda.fused_moe_w8a8(input, input_scale, w1,
        w1_scale, w2, w2_scale, topk_weights, topk_ids, topk, out_dtype=torch.float16,
        quant_dtype=torch.int8, expert_offset=0, num_experts=None,
        renormalize=False) -> torch.Tensor
    """,
)
OPS += opaque(
    "attention",
    OPTIONS,
    _READ,
    """
    lmdeploy.pytorch.kernels.cuda.flashattention.flash_attn_varlen_func,
        lmdeploy.pytorch.kernels.cuda.flash_attn_varlen_func(q, k, v,
        cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
        softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, q_start_loc=None,
        q_seqlens=None, kv_start_loc=None, kv_seqlens=None, alibi_slopes=None, sinks=None,
        block_sparse_size=1, kv_layout='hsd')
    """,
)
OPS += opaque(
    "attention",
    WRITES,
    _READ,
    """
    lmdeploy.pytorch.kernels.cuda.pagedattention.flash_attn_with_kvcache,
        lmdeploy.pytorch.kernels.cuda.flash_attn_with_kvcache(q, k_cache, v_cache,
        cache_seqlens, page_table, cu_seqlens_q=None, max_seqlen_q=None, softmax_scale=None,
        causal=False, window_size=None, softcap=None, scheduler_metadata=None,
        alibi_slopes=None, k_scales_zeros=None, v_scales_zeros=None,
        quant_policy=QuantPolicy.NONE, sinks=None, kv_layout='bshd')
    """,
)
