"""AutoAWQ's extension ``awq_ext``, at c7b0e88c3276.

Its kernels are copies of vLLM's early ones and of FasterTransformer's.
"""

from . import FusedOp, opaque
from .reasons import HANDLE, LAYER, MODULES, ORDER, TILED, UNPACK

_READ = "autoawq 88e4c76b2075, autoawq_kernels c7b0e88c3276"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        # An RMSNorm, whatever its name says.
        names=("awq_ext.layernorm_forward_cuda",),
        schema="layernorm_forward_cuda(Tensor input, Tensor gamma, Tensor(a!) out, float eps)"
        " -> ()",
        equivalent="out = rms_norm_saturated(input, gamma, eps)",
        source="awq_ext/layernorm/layernorm.cu",
    ),
    FusedOp(
        names=("awq_ext.rotary_embedding_neox",),
        schema="rotary_embedding_neox(Tensor positions, Tensor(a!) query, Tensor(b!) key, "
        "int head_size, Tensor cos_sin_cache) -> ()",
        equivalent="query, key = "
        "rotary_embedding_rounded(positions, query, key, head_size, cos_sin_cache, True)",
        source="awq_ext/pybind_awq.cpp",
    ),
    FusedOp(
        names=("awq_ext.silu_and_mul",),
        schema="silu_and_mul(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = silu_and_mul(input)",
        source="awq_ext/pybind_awq.cpp",
    ),
    FusedOp(
        names=("awq_ext.gemm_forward_cuda",),
        schema="gemm_forward_cuda(Tensor in_feats, Tensor kernel, Tensor scaling_factors, "
        "Tensor zeros, int split_k_iters) -> Tensor",
        equivalent="awq_matmul(in_feats, kernel, scaling_factors, zeros)",
        source="awq_ext/pybind_awq.cpp",
    ),
    FusedOp(
        names=("awq.modules.triton.gemm.awq_gemm_triton",),
        schema="awq_gemm_triton(Tensor input, Tensor qweight, Tensor scales, "
        "Tensor qzeros, int split_k_iters, int block_size_m=32, "
        "int block_size_n=32, int block_size_k=32) -> Tensor",
        equivalent="awq_matmul(input, qweight, scales, qzeros)",
        source="awq/modules/triton/gemm.py",
    ),
    FusedOp(
        names=("awq.modules.fused.moe.fused_topk",),
        schema="fused_topk(Tensor gating_output, int topk, bool renormalize) -> (Tensor, Tensor)",
        equivalent="softmax_topk(gating_output, topk, renormalize)",
        source="awq/modules/fused/moe.py",
    ),
    FusedOp(
        names=("awq_ext.topk_softmax",),
        schema="topk_softmax(Tensor(a!) topk_weights, Tensor(b!) topk_indices, Tensor(c!) "
        "token_expert_indices, Tensor gating_output) -> ()",
        equivalent="topk_weights, topk_indices, token_expert_indices = "
        "softmax_topk_rows(gating_output, topk_indices.shape[-1])",
        source="awq_ext/vllm/moe_kernels.cu",
    ),
    FusedOp(
        names=("awq_ext.gemv_forward_cuda",),
        schema="gemv_forward_cuda(Tensor in_feats, Tensor kernel, Tensor scaling_factors, Tensor "
        "zeros, int group_size) -> Tensor",
        equivalent="awq_gemv_matmul(in_feats, kernel, scaling_factors, zeros, group_size)",
        source="awq_ext/quantization/gemv_cuda.cu, autoawq_kernels c7b0e88c3276",
    ),
    FusedOp(
        names=("awq_ext.gemmv2_forward_cuda",),
        schema="gemmv2_forward_cuda(Tensor in_feats, Tensor kernel, Tensor scaling_factors, "
        "Tensor zeros, int group_size, int split_k_iters) -> Tensor",
        equivalent="awq_gemv_matmul(in_feats, kernel, scaling_factors, zeros, group_size)",
        source="awq_ext/quantization/gemv_cuda.cu, autoawq_kernels c7b0e88c3276",
        look_at="the kernel rounds weights and partial sums to 16 bits",
    ),
)

# Without an equivalent.
OPS += opaque(
    "attention",
    LAYER,
    _READ,
    """
    awq.modules.fused.attn.QuantAttentionFused(hidden_states, *args, **kwargs)
    """,
)
OPS += opaque(
    "matmul",
    HANDLE,
    _READ,
    """
    exlv2_ext.gemm_half_q_half(a, b_handle, c, force_cuda)
    """,
)
OPS += opaque(
    "matmul",
    LAYER,
    _READ,
    """
    awq.modules.linear.gemv.WQLinear_GEMV(x)
    awq.modules.linear.gemv_fast.WQLinear_GEMVFast(x)
    awq.modules.linear.marlin.WQLinear_Marlin(x)
    awq.modules.linear.exllama.WQLinear_Exllama(x)
    awq.modules.linear.exllamav2.WQLinear_ExllamaV2(x)
    awq.modules.fused.mlp.QuantFusedMLP(x, routing_weights=None)
    """,
)
OPS += opaque(
    "moe",
    LAYER,
    _READ,
    """
    awq.modules.fused.moe.FusedSparseMoeBlock(hidden_states)
    """,
)
OPS += opaque(
    "moe",
    ORDER,
    _READ,
    """
    awq_ext.moe_alig_block_size(topk_ids, num_experts, block_size, sorted_token_ids,
        experts_ids, num_tokens_post_pad)
    awq.modules.fused.moe.moe_align_block_size(topk_ids, block_size, num_experts)
    """,
)
OPS += opaque(
    "norm",
    LAYER,
    _READ,
    """
    awq.modules.fused.norm.FasterTransformerRMSNorm(x)
    """,
)
OPS += opaque(
    "quantize",
    UNPACK,
    _READ,
    """
    awq_ext.dequantize_weights_cuda(kernel, scaling_factors, zeros, split_k_iters, thx, thy,
        dbg) -> Tensor
    awq.modules.triton.gemm.awq_dequantize_triton(qweight, scales, zeros, block_size_x=32,
        block_size_y=32) -> torch.Tensor
    """,
)
OPS += opaque(
    "matmul",
    TILED,
    _READ,
    """
    awq_v2_ext.gemm_forward_cuda_prefill(in_feats, kernel, scales, zeros) -> Tensor
    awq_v2_ext.gemv_forward_cuda_decode(in_feats, kernel, scales, zeros, m, n, k,
        group_size) -> Tensor
    """,
)
OPS += opaque(
    "moe",
    TILED,
    _READ,
    """
    awq_ext.grouped_gemm_forward(in_feats, kernel, scaling_factors, zeros, topk_weights,
        sorted_token_ids, expert_ids, num_tokens_post_pad, mul_weights, split_k_iters) -> Tensor
    """,
)
OPS += opaque(
    "moe",
    MODULES,
    _READ,
    """
    awq.modules.fused.moe.apply_moe_weights(w1, w2, x, gating_output, topk,
        renormalize) -> torch.Tensor
    """,
)
