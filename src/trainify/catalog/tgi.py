"""Text Generation Inference: its attention, layers and kernel packages."""

from . import FusedOp, opaque
from .reasons import CACHE, CONTEXT, HANDLE, LAYER, RAISES, TILED

_READ = "text-generation-inference db931fcf42da"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=("moe_kernels.fused_moe",),
        schema="fused_moe(Tensor hidden_states, Tensor w1, Tensor w2, "
        "Tensor gating_output, int topk, bool renormalize, bool inplace=False, "
        "bool use_grouped_topk=False, int? num_expert_group=None, "
        "int? topk_group=None) -> Tensor",
        equivalent="fused_moe(hidden_states, w1, w2, gating_output, topk, renormalize)",
        source="text-generation-inference db931fcf42da",
        unsupported=(
            "inplace",
            "use_grouped_topk",
        ),
    ),
    FusedOp(
        names=("quantization.cutlass_scaled_mm",),
        schema="cutlass_scaled_mm(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, "
        "ScalarType out_dtype, Tensor? bias=None) -> Tensor",
        equivalent="scaled_mm(a, b, scale_a, scale_b, out_dtype, bias)",
        source="text-generation-inference db931fcf42da",
    ),
)

# Without an equivalent.
OPS += opaque(
    "attention",
    RAISES,
    _READ,
    """
    text_generation_server.layers.attention.flash_attn_triton.triton_attention(q, k, v, o,
        cu_seqlens_q, cu_seqlens_k, max_seqlens_q, max_seqlens_k, causal=False, sm_scale=1.0,
        bias=None)
    """,
)
OPS += opaque(
    "cache",
    CACHE,
    _READ,
    """
    text_generation_server.layers.attention.kv_cache.KVCache.store(*, key, value, slots,
        kv_scales)
    text_generation_server.layers.attention.kv_cache.paged_reshape_and_cache(key, value,
        key_cache, value_cache, slots, k_scale=1.0, v_scale=1.0)
    """,
)
OPS += opaque(
    "matmul",
    HANDLE,
    _READ,
    """
    exllama_kernels.q4_matmul, exl_ext.q4_matmul(x, q4, out)
    """,
)
OPS += opaque(
    "norm",
    LAYER,
    _READ,
    """
    text_generation_server.layers.layernorm.FastRMSNorm.forward(hidden_states,
        residual=None) -> (normed, residual)
    text_generation_server.layers.layernorm.FastLayerNorm.forward(hidden_states,
        residual=None) -> (normed, residual)
    """,
)
OPS += opaque(
    "rope",
    LAYER,
    _READ,
    """
    text_generation_server.layers.rotary.PositionRotaryEmbedding.forward(query, key, cos,
        sin) -> None
    """,
)
OPS += opaque(
    "matmul",
    TILED,
    _READ,
    """
    quantization_eetq.w8_a16_gemm(input, weight, scale) -> Tensor
    """,
)
OPS += opaque(
    "attention",
    CONTEXT,
    _READ,
    """
    text_generation_server.layers.attention.attention(*, query, key, value, kv_cache, kv_scales,
        seqlen, block_tables, softmax_scale, window_size_left=-1, causal=True, softcap=None)
    text_generation_server.layers.attention.paged_attention(query, kv_cache, kv_head_mapping,
        softmax_scale, block_tables, seqlen, max_s, *, kv_scales, softcap=None,
        window_size_left=-1)
    """,
)
