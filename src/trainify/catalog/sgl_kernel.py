"""SGLang's kernels: the wheels ``sglang-kernel`` 0.4.10 and ``sgl-kernel`` 0.3.21.

Both install the module ``sgl_kernel``.  Its Python functions take ``(input, ..., out=None)`` and
return the result; the registered ops below them take the output first.  As in flashinfer, from
which most of them stem, norms and activations compute in float32 and round once.
"""

from . import FusedOp, opaque
from .reasons import (
    CACHE,
    CODES,
    DIFFERS,
    FILTER,
    FP4,
    GGML,
    HANDLE,
    OPTIONS,
    ORDER,
    QUANTIZES,
    STATES,
    TILED,
    TOKENS,
    UNPACK,
    WRITES,
)
from .sgl_kernel_cpu import ROWS as _FOR_CPUS

_READ = "sglang-kernel 0.4.10 and sgl-kernel 0.3.21"
_NEW = "sgl_kernel/elementwise.py, sglang-kernel 0.4.10"
_OPS = "TORCH_LIBRARY(sgl_kernel), sglang-kernel 0.4.10"
_OLD = "sgl_kernel/elementwise.py, sgl-kernel 0.3.21"
_FLASH = "sgl_kernel/flash_attn.py, sglang-kernel 0.4.10"

# What the attention over a cache takes and the reference does not compute.
_NO_CACHED = (
    "k",
    "v",
    "qv",
    "rotary_cos",
    "rotary_sin",
    "cache_batch_idx",
    "cache_leftpad",
    "q_descale",
    "k_descale",
    "v_descale",
    "attention_chunk",
    "only_qv",
    "return_softmax_lse",
    "score_mod",
)
_NO_VARLEN = (
    "seqused_q",
    "qv",
    "q_descale",
    "k_descale",
    "v_descale",
    "attention_chunk",
    "only_qv",
    "return_softmax_lse",
    "score_mod",
)
# What only the fourth version takes.
_NO_FOURTH = ("sfq", "sfk", "sfv", "rel_bias", "mask_mod")

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=("sgl_kernel.rmsnorm", "sgl_kernel.elementwise.rmsnorm"),
        schema="rmsnorm(Tensor input, Tensor weight, float eps=1e-6, Tensor(a!)? out=None, "
        "bool? enable_pdl=None) -> Tensor(a!)",
        equivalent="rms_norm(input, weight, eps)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.rmsnorm",),
        schema="rmsnorm(Tensor(a!) output, Tensor input, Tensor weight, float eps, "
        "bool enable_pdl) -> ()",
        equivalent="output = rms_norm(input, weight, eps)",
        source=_OPS,
    ),
    FusedOp(
        names=("sgl_kernel.fused_add_rmsnorm", "sgl_kernel.elementwise.fused_add_rmsnorm"),
        schema="fused_add_rmsnorm(Tensor(a!) input, Tensor(b!) residual, Tensor weight, "
        "float eps=1e-6, bool? enable_pdl=None) -> ()",
        equivalent="input, residual = fused_add_rms_norm_fp32(input, residual, weight, eps)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.fused_add_rmsnorm",),
        schema="fused_add_rmsnorm(Tensor(a!) input, Tensor(b!) residual, Tensor weight, "
        "float eps, bool enable_pdl) -> ()",
        equivalent="input, residual = fused_add_rms_norm_fp32(input, residual, weight, eps)",
        source=_OPS,
    ),
    FusedOp(
        names=("sgl_kernel.gemma_rmsnorm", "sgl_kernel.elementwise.gemma_rmsnorm"),
        schema="gemma_rmsnorm(Tensor input, Tensor weight, float eps=1e-6, "
        "Tensor(a!)? out=None, bool? enable_pdl=None) -> Tensor(a!)",
        equivalent="gemma_rms_norm(input, weight, eps)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.gemma_rmsnorm",),
        schema="gemma_rmsnorm(Tensor(a!) output, Tensor input, Tensor weight, float eps, "
        "bool enable_pdl) -> ()",
        equivalent="output = gemma_rms_norm(input, weight, eps)",
        source=_OPS,
    ),
    FusedOp(
        names=(
            "sgl_kernel.gemma_fused_add_rmsnorm",
            "sgl_kernel.elementwise.gemma_fused_add_rmsnorm",
        ),
        schema="gemma_fused_add_rmsnorm(Tensor(a!) input, Tensor(b!) residual, Tensor weight, "
        "float eps=1e-6, bool? enable_pdl=None) -> ()",
        equivalent="input, residual = gemma_fused_add_rms_norm(input, residual, weight, eps)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.gemma_fused_add_rmsnorm",),
        schema="gemma_fused_add_rmsnorm(Tensor(a!) input, Tensor(b!) residual, Tensor weight, "
        "float eps, bool enable_pdl) -> ()",
        equivalent="input, residual = gemma_fused_add_rms_norm(input, residual, weight, eps)",
        source=_OPS,
    ),
    FusedOp(
        names=("sgl_kernel.silu_and_mul", "sgl_kernel.elementwise.silu_and_mul"),
        schema="silu_and_mul(Tensor input, Tensor(a!)? out=None) -> Tensor(a!)",
        equivalent="silu_and_mul_fp32(input)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.silu_and_mul",),
        schema="silu_and_mul(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = silu_and_mul_fp32(input)",
        source=_OPS,
    ),
    FusedOp(
        names=("sgl_kernel.gelu_and_mul", "sgl_kernel.elementwise.gelu_and_mul"),
        schema="gelu_and_mul(Tensor input, Tensor(a!)? out=None) -> Tensor(a!)",
        equivalent="gelu_and_mul_fp32(input)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.gelu_and_mul",),
        schema="gelu_and_mul(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = gelu_and_mul_fp32(input)",
        source=_OPS,
    ),
    FusedOp(
        names=("sgl_kernel.gelu_tanh_and_mul", "sgl_kernel.elementwise.gelu_tanh_and_mul"),
        schema="gelu_tanh_and_mul(Tensor input, Tensor(a!)? out=None) -> Tensor(a!)",
        equivalent="gelu_tanh_and_mul_fp32(input)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.gelu_tanh_and_mul",),
        schema="gelu_tanh_and_mul(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = gelu_tanh_and_mul_fp32(input)",
        source=_OPS,
    ),
    FusedOp(
        names=("sgl_kernel.gelu_quick", "sgl_kernel.elementwise.gelu_quick"),
        schema="gelu_quick(Tensor input, Tensor(a!)? out=None) -> Tensor(a!)",
        equivalent="gelu_quick(input)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.gelu_quick",),
        schema="gelu_quick(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = gelu_quick(input)",
        source=_OPS,
    ),
    FusedOp(
        names=("sgl_kernel.rotary_embedding", "sgl_kernel.elementwise.rotary_embedding"),
        schema="rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!)? key, "
        "int head_size, Tensor cos_sin_cache, bool is_neox=True) -> ()",
        equivalent="query, key = "
        "rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.rotary_embedding",),
        schema="rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!)? key, "
        "int head_size, Tensor cos_sin_cache, bool is_neox) -> ()",
        equivalent="query, key = "
        "rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)",
        source=_OPS,
    ),
    FusedOp(
        names=(
            "sgl_kernel.apply_rope_with_cos_sin_cache_inplace",
            "sgl_kernel.elementwise.apply_rope_with_cos_sin_cache_inplace",
        ),
        schema="apply_rope_with_cos_sin_cache_inplace(Tensor positions, Tensor(a!) query, "
        "Tensor(b!) key, int head_size, Tensor cos_sin_cache, bool is_neox=True, "
        "Any fused_set_kv_buffer_arg=None, bool? enable_pdl=None) -> ()",
        equivalent="query, key = "
        "rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)",
        source=_OLD,
        unsupported=("fused_set_kv_buffer_arg",),
    ),
    FusedOp(
        names=("sgl_kernel.flash_attn.flash_attn_varlen_func", "sgl_kernel.flash_attn_varlen_func"),
        schema="flash_attn_varlen_func(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, "
        "Tensor cu_seqlens_k, int? max_seqlen_q=None, int? max_seqlen_k=None, "
        "Tensor? seqused_q=None, Tensor? seqused_k=None, Tensor? page_table=None, "
        "float? softmax_scale=None, bool causal=False, Tensor? qv=None, "
        "Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None, "
        "int[2] window_size=(-1, -1), int attention_chunk=0, float softcap=0.0, "
        "int num_splits=1, bool? pack_gqa=None, bool only_qv=False, int sm_margin=0, "
        "bool return_softmax_lse=False, Tensor? sinks=None, Any score_mod=None, "
        "Any aux_tensors=None, int ver=3, Tensor(a!)? out=None) -> Tensor(a!)",
        equivalent="varlen_or_paged_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, "
        "page_table, softmax_scale, causal, window_size, softcap, sinks)",
        source=_FLASH,
        unsupported=_NO_VARLEN,
    ),
    FusedOp(
        names=(
            "sgl_kernel.flash_attn.flash_attn_with_kvcache",
            "sgl_kernel.flash_attn_with_kvcache",
        ),
        schema="flash_attn_with_kvcache(Tensor q, Tensor k_cache, Tensor v_cache, "
        "Tensor? k=None, Tensor? v=None, Tensor? qv=None, Tensor? rotary_cos=None, "
        "Tensor? rotary_sin=None, Tensor? cache_seqlens=None, Tensor? cache_batch_idx=None, "
        "Tensor? cache_leftpad=None, Tensor? page_table=None, Tensor? cu_seqlens_q=None, "
        "Tensor? cu_seqlens_k_new=None, int? max_seqlen_q=None, Tensor? rotary_seqlens=None, "
        "Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None, "
        "float? softmax_scale=None, bool causal=False, int[2] window_size=(-1, -1), "
        "int? attention_chunk=None, float softcap=0.0, bool rotary_interleaved=True, "
        "Tensor? scheduler_metadata=None, int num_splits=0, bool? pack_gqa=None, "
        "bool only_qv=False, int sm_margin=0, bool return_softmax_lse=False, "
        "Tensor? sinks=None, Any score_mod=None, Any aux_tensors=None, int ver=3, "
        "Tensor(a!)? out=None) -> Tensor(a!)",
        equivalent="cached_or_packed_attention(q, k_cache, v_cache, cache_seqlens, page_table, "
        "cu_seqlens_q, softmax_scale, causal, window_size, softcap, sinks)",
        source=_FLASH,
        unsupported=_NO_CACHED,
    ),
    FusedOp(
        names=(
            "sgl_kernel.int8_scaled_mm",
            "torch.ops.sgl_kernel.int8_scaled_mm",
        ),
        schema="int8_scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scales_a, "
        "Tensor scales_b, ScalarType out_dtype, Tensor? bias=None) -> Tensor",
        equivalent="scaled_mm(mat_a, mat_b, scales_a, scales_b, out_dtype, bias)",
        source="sgl_kernel/gemm.py, sglang-kernel 0.4.10",
    ),
    FusedOp(
        names=(
            "sgl_kernel.fp8_scaled_mm",
            "torch.ops.sgl_kernel.fp8_scaled_mm",
        ),
        schema="fp8_scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scales_a, "
        "Tensor scales_b, ScalarType out_dtype, Tensor? bias=None) -> Tensor",
        equivalent="scaled_mm(mat_a, mat_b, scales_a, scales_b, out_dtype, bias)",
        source="sgl_kernel/gemm.py, sglang-kernel 0.4.10",
    ),
    FusedOp(
        names=("sgl_kernel.dsv3_fused_a_gemm",),
        schema="dsv3_fused_a_gemm(Tensor mat_a, Tensor mat_b, Tensor(a!)? output=None)"
        " -> Tensor(a!)",
        equivalent="mat_a @ mat_b",
        source="sgl_kernel/gemm.py, sgl-kernel 0.3.21",
        family="matmul",
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.dsv3_fused_a_gemm",),
        schema="dsv3_fused_a_gemm(Tensor(a!) output, Tensor mat_a, Tensor mat_b) -> ()",
        equivalent="output = mat_a @ mat_b",
        source="sgl_kernel/gemm.py, sgl-kernel 0.3.21",
        family="matmul",
    ),
    FusedOp(
        names=("sgl_kernel.dsv3_router_gemm",),
        schema="dsv3_router_gemm(Tensor hidden_states, Tensor router_weights, "
        "ScalarType out_dtype=torch.bfloat16) -> Tensor",
        equivalent="F.linear(hidden_states.float(), router_weights.float()).to(out_dtype)",
        source="sgl_kernel/gemm.py, sgl-kernel 0.3.21",
        family="matmul",
    ),
    FusedOp(
        names=(
            "sgl_kernel.topk_softmax",
            "torch.ops.sgl_kernel.topk_softmax",
        ),
        schema="topk_softmax(Tensor(a!) topk_weights, Tensor(b!) topk_ids, "
        "Tensor gating_output, bool renormalize=False, float moe_softcapping=0.0, "
        "Tensor? correction_bias=None) -> ()",
        equivalent="topk_weights, topk_ids = softmax_topk(gating_output, topk_ids.shape[-1], "
        "renormalize)",
        source="sgl_kernel/moe.py, sglang-kernel 0.4.10",
        unsupported=(
            "moe_softcapping",
            "correction_bias",
        ),
    ),
    FusedOp(
        names=(
            "sgl_kernel.topk_softmax",
            "torch.ops.sgl_kernel.topk_softmax",
        ),
        schema="topk_softmax(Tensor(a!) topk_weights, Tensor(b!) topk_ids, "
        "Tensor(c!) token_expert_indices, Tensor gating_output) -> ()",
        equivalent="topk_weights, topk_ids, token_expert_indices = softmax_topk_rows("
        "gating_output, topk_ids.shape[-1], False)",
        source="as sglang 0.4.6 calls it",
    ),
    FusedOp(
        names=(
            "sgl_kernel.topk_sigmoid",
            "torch.ops.sgl_kernel.topk_sigmoid",
        ),
        schema="topk_sigmoid(Tensor(a!) topk_weights, Tensor(b!) topk_ids, "
        "Tensor gating_output, bool renormalize=False, "
        "Tensor? correction_bias=None) -> ()",
        equivalent="topk_weights, topk_ids = sigmoid_topk(gating_output, topk_ids.shape[-1], "
        "renormalize, correction_bias)",
        source="sgl_kernel/moe.py, sglang-kernel 0.4.10",
    ),
    FusedOp(
        names=(
            "sgl_kernel.moe_sum",
            "torch.ops.sgl_kernel.moe_sum",
        ),
        schema="moe_sum(Tensor input_tensor, Tensor(a!) output_tensor) -> ()",
        equivalent="output_tensor = input_tensor.sum(1)",
        source="sgl_kernel/moe.py, sglang-kernel 0.4.10",
        family="moe",
    ),
    FusedOp(
        names=("sgl_kernel.merge_state_v2",),
        schema="merge_state_v2(Tensor v_a, Tensor s_a, Tensor v_b, Tensor s_b, "
        "Tensor? v_merged=None, Tensor? s_merged=None) -> (Tensor, Tensor)",
        equivalent="merge_natural(v_a, s_a, v_b, s_b)",
        source="sgl_kernel/attention.py, sglang-kernel 0.4.10",
        unsupported=(
            "v_merged",
            "s_merged",
        ),
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.merge_state_v2",),
        schema="merge_state_v2(Tensor v_a, Tensor s_a, Tensor v_b, Tensor s_b, "
        "Tensor(a!) v_merged, Tensor(b!) s_merged) -> ()",
        equivalent="v_merged, s_merged = merge_natural(v_a, s_a, v_b, s_b)",
        source="TORCH_LIBRARY(sgl_kernel), sglang-kernel 0.4.10",
    ),
    FusedOp(
        names=("sgl_kernel.concat_mla_absorb_q",),
        schema="concat_mla_absorb_q(Tensor a, Tensor b) -> Tensor",
        equivalent="torch.cat((a, b), dim=-1)",
        source="sgl_kernel/elementwise.py, sglang-kernel 0.4.10",
        family="attention",
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.concat_mla_absorb_q",),
        schema="concat_mla_absorb_q(Tensor a, Tensor b, Tensor(a!) out) -> ()",
        equivalent="out = torch.cat((a, b), dim=-1)",
        source="TORCH_LIBRARY(sgl_kernel), sglang-kernel 0.4.10",
        family="attention",
    ),
    FusedOp(
        names=(
            "sgl_kernel.concat_mla_k",
            "torch.ops.sgl_kernel.concat_mla_k",
        ),
        schema="concat_mla_k(Tensor(a!) k, Tensor k_nope, Tensor k_rope) -> ()",
        equivalent="k = torch.cat((k_nope, k_rope.expand(-1, k_nope.shape[1], -1)), dim=-1)",
        source="sgl_kernel/elementwise.py, sglang-kernel 0.4.10",
        family="attention",
    ),
    FusedOp(
        names=("sgl_kernel.cutlass_mla_decode",),
        schema="cutlass_mla_decode(Tensor q_nope, Tensor q_pe, "
        "Tensor kv_c_and_k_pe_cache, Tensor seq_lens, Tensor page_table, "
        "Tensor workspace, float sm_scale, int num_kv_splits=1) -> Tensor",
        equivalent="mla_decode(q_nope, q_pe, kv_c_and_k_pe_cache, seq_lens, page_table, sm_scale)",
        source="sgl_kernel/attention.py, sgl-kernel 0.3.21",
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.apply_rope_pos_ids_cos_sin_cache",),
        schema="apply_rope_pos_ids_cos_sin_cache(Tensor q, Tensor k, Tensor(a!) q_rope, "
        "Tensor(b!) k_rope, Tensor cos_sin_cache, Tensor pos_ids, bool interleave, "
        "bool enable_pdl=False, Tensor? v=None, Tensor? k_buffer=None, "
        "Tensor? v_buffer=None, Tensor? kv_cache_loc=None) -> ()",
        equivalent="q_rope, k_rope = rotary_embedding(pos_ids, q, k, q.shape[-1], "
        "cos_sin_cache, not interleave)",
        source="TORCH_LIBRARY(sgl_kernel), sgl-kernel 0.3.21",
        unsupported=(
            "v",
            "k_buffer",
            "v_buffer",
            "kv_cache_loc",
        ),
    ),
    FusedOp(
        names=("sgl_kernel.fused_qk_norm_rope",),
        schema="fused_qk_norm_rope(Tensor(a!) qkv, int num_heads_q, int num_heads_k, int "
        "num_heads_v, int head_dim, float eps, Tensor q_weight, Tensor k_weight, float base, "
        "bool is_neox, Tensor position_ids, float factor, float low, float high, float "
        "attention_factor, int? rotary_dim=None) -> ()",
        equivalent="qkv = yarn_qk_norm_rope(qkv, num_heads_q, num_heads_k, num_heads_v, head_dim, "
        "eps, q_weight, k_weight, base, is_neox, position_ids, factor, low, high, "
        "attention_factor, rotary_dim)",
        source="sgl-kernel/csrc/moe/fused_qknorm_rope_kernel.cu, sgl-kernel 0.3.21",
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.fused_qk_norm_rope",),
        schema="fused_qk_norm_rope(Tensor(a!) qkv, int num_heads_q, int num_heads_k, int "
        "num_heads_v, int head_dim, float eps, Tensor q_weight, Tensor k_weight, float base, "
        "bool is_neox, Tensor position_ids, float factor, float low, float high, float "
        "attention_factor, int rotary_dim) -> ()",
        equivalent="qkv = yarn_qk_norm_rope(qkv, num_heads_q, num_heads_k, num_heads_v, head_dim, "
        "eps, q_weight, k_weight, base, is_neox, position_ids, factor, low, high, "
        "attention_factor, rotary_dim)",
        source="sgl-kernel/csrc/moe/fused_qknorm_rope_kernel.cu, sgl-kernel 0.3.21",
    ),
    FusedOp(
        names=("sgl_kernel.dsv4_fused_q_norm_rope",),
        schema="dsv4_fused_q_norm_rope(Tensor q_input, Tensor freqs_cis, Tensor positions, float "
        "eps=1e-6, Tensor(a!)? q_output=None) -> Tensor(a!)",
        equivalent="norm_and_rotate_tail(q_input, freqs_cis, positions, eps)",
        source="dsv4 main_norm_rope.cuh, sglang-kernel 0.4.10",
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.dsv4_fused_q_norm_rope",),
        schema="dsv4_fused_q_norm_rope(Tensor q_input, Tensor(a!) q_output, Tensor freqs_cis, "
        "Tensor positions, float eps) -> ()",
        equivalent="q_output = norm_and_rotate_tail(q_input, freqs_cis, positions, eps)",
        source="dsv4 main_norm_rope.cuh, sglang-kernel 0.4.10",
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.moe_fused_gate",),
        schema="moe_fused_gate(Tensor input, Tensor bias, int num_expert_group, int topk_group, "
        "int topk, int num_fused_shared_experts=0, float routed_scaling_factor=1.0, bool "
        "apply_routed_scaling_factor_on_output=False) -> (Tensor, Tensor)",
        equivalent="grouped_topk(input, topk, True, num_expert_group, topk_group, 'sigmoid', "
        "routed_scaling_factor if apply_routed_scaling_factor_on_output else 1.0, bias)",
        source="sgl-kernel/csrc/moe/moe_fused_gate.cu, sgl-kernel 0.3.21",
        unsupported=("num_fused_shared_experts",),
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.kimi_k2_moe_fused_gate",),
        schema="kimi_k2_moe_fused_gate(Tensor input, Tensor bias, int topk, bool renormalize, "
        "float routed_scaling_factor, bool apply_routed_scaling_factor_on_output) -> (Tensor, "
        "Tensor)",
        equivalent="grouped_topk(input, topk, renormalize, 1, 1, 'sigmoid', routed_scaling_factor "
        "if apply_routed_scaling_factor_on_output else 1.0, bias)",
        source="sgl-kernel/csrc/moe/moe_fused_gate.cu, sgl-kernel 0.3.21",
    ),
    FusedOp(
        names=("sgl_kernel.moe_sum_reduce",),
        schema="moe_sum_reduce(Tensor input_tensor, Tensor(a!) output_tensor, float "
        "routed_scaling_factor=0) -> ()",
        equivalent="output_tensor = (input_tensor.float().sum(1) * "
        "routed_scaling_factor).to(input_tensor.dtype)",
        source="sgl-kernel/csrc/moe/moe_sum_reduce.cu, sgl-kernel 0.3.21",
        family="moe",
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.moe_sum_reduce",),
        schema="moe_sum_reduce(Tensor input, Tensor(a!) output, float routed_scaling_factor) -> ()",
        equivalent="output = (input.float().sum(1) * routed_scaling_factor).to(input.dtype)",
        source="sgl-kernel/csrc/moe/moe_sum_reduce.cu, sgl-kernel 0.3.21",
        family="moe",
    ),
    FusedOp(
        names=("sgl_kernel.timestep_embedding",),
        schema="timestep_embedding(Tensor t, int dim, bool flip_sin_to_cos=False, float "
        "downscale_freq_shift=0.0, float scale=1, float max_period=10000, ScalarType "
        "dtype=torch.float32) -> Tensor",
        equivalent="timestep_embedding(t, dim, flip_sin_to_cos, downscale_freq_shift, scale, "
        "max_period, dtype)",
        source="sgl_kernel/elementwise.py, sglang-kernel 0.4.10",
    ),
    FusedOp(
        names=("sgl_kernel.hadamard_transform",),
        schema="hadamard_transform(Tensor x, float scale=1.0) -> Tensor",
        equivalent="hadamard_transform(x, scale)",
        source="sgl_kernel/hadamard.py, sglang-kernel 0.4.10",
    ),
    FusedOp(
        names=(
            "sgl_kernel.fp8_blockwise_scaled_mm",
            "torch.ops.sgl_kernel.fp8_blockwise_scaled_mm",
        ),
        schema="fp8_blockwise_scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor "
        "scales_b, ScalarType out_dtype) -> Tensor",
        equivalent="block_scaled_mm(mat_a, mat_b.t(), scales_a, scales_b.t(), 128, 128, out_dtype)",
        source="sgl_kernel/gemm.py, sgl-kernel 0.3.21",
        look_at="the gradient of fp8 codes is rounded to fp8 as well",
    ),
    FusedOp(
        names=("sgl_kernel.bmm_fp8",),
        schema="bmm_fp8(Tensor A, Tensor B, Tensor A_scale, Tensor B_scale, ScalarType dtype, "
        "Tensor(a!)? out=None) -> Tensor(a!)",
        equivalent="scaled_mm(A, B, A_scale, B_scale, dtype)",
        source="sgl_kernel/gemm.py, sgl-kernel 0.3.21",
        look_at="each scale must be one number; the gradient of fp8 codes is rounded to fp8"
        " as well",
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.bmm_fp8",),
        schema="bmm_fp8(Tensor A, Tensor B, Tensor(a!) D, Tensor A_scale, Tensor B_scale, Tensor "
        "workspace_buffer, int cublas_handle) -> ()",
        equivalent="D = scaled_mm(A, B, A_scale, B_scale, D.dtype)",
        source="sgl_kernel/gemm.py, sgl-kernel 0.3.21",
        look_at="each scale must be one number; the gradient of fp8 codes is rounded to fp8"
        " as well",
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.dsv3_router_gemm",),
        schema="dsv3_router_gemm(Tensor(a!) output, Tensor mat_a, Tensor mat_b) -> ()",
        equivalent="output = F.linear(mat_a.float(), mat_b.float()).to(output.dtype)",
        source="sgl_kernel/gemm.py, sgl-kernel 0.3.21",
        family="matmul",
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.timestep_embedding",),
        schema="timestep_embedding(Tensor input, Tensor(a!) output, int dim, bool "
        "flip_sin_to_cos, float downscale_freq_shift, float scale, int max_period) -> Tensor(a!)",
        equivalent="output = timestep_embedding(input, dim, flip_sin_to_cos, "
        "downscale_freq_shift, scale, max_period, output.dtype)",
        source="sgl_kernel/elementwise.py, sglang-kernel 0.4.10",
    ),
    FusedOp(
        names=("sgl_kernel.merge_state",),
        schema="merge_state(Tensor v_a, Tensor s_a, Tensor v_b, Tensor s_b, Tensor? "
        "v_merged=None, Tensor? s_merged=None) -> (Tensor, Tensor)",
        equivalent="merge_state(v_a, s_a, v_b, s_b)",
        source="sgl-kernel/csrc/attention/cascade.cu, sgl-kernel 0.3.21",
        unsupported=("v_merged", "s_merged"),
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.merge_state",),
        schema="merge_state(Tensor v_a, Tensor s_a, Tensor v_b, Tensor s_b, Tensor(a!) v_merged, "
        "Tensor(b!) s_merged) -> ()",
        equivalent="v_merged, s_merged = merge_state(v_a, s_a, v_b, s_b)",
        source="sgl-kernel/csrc/attention/cascade.cu, sgl-kernel 0.3.21",
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.cutlass_mla_decode",),
        schema="cutlass_mla_decode(Tensor(a!) out, Tensor q_nope, Tensor q_pe, Tensor "
        "kv_c_and_k_pe_cache, Tensor seq_lens, Tensor page_table, Tensor workspace, float "
        "sm_scale, int num_kv_splits) -> ()",
        equivalent="out = mla_decode(q_nope, q_pe, kv_c_and_k_pe_cache, seq_lens, page_table, "
        "sm_scale)",
        source="sgl_kernel/attention.py, sgl-kernel 0.3.21",
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.flash_attention_v3.flash_attn_varlen_func",),
        schema="flash_attn_varlen_func(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor "
        "cu_seqlens_k, int? max_seqlen_q=None, int? max_seqlen_k=None, Tensor? seqused_q=None, "
        "Tensor? seqused_k=None, Tensor? page_table=None, float? softmax_scale=None, bool "
        "causal=False, Tensor? qv=None, Tensor? q_descale=None, Tensor? k_descale=None, Tensor? "
        "v_descale=None, int[2] window_size=(-1, -1), int attention_chunk=0, float softcap=0.0, "
        "int num_splits=1, bool? pack_gqa=None, bool only_qv=False, int sm_margin=0, bool "
        "return_softmax_lse=False, Tensor? sinks=None, Any score_mod=None, Any aux_tensors=None, "
        "int ver=3, Tensor(a!)? out=None) -> Tensor(a!)",
        equivalent="varlen_or_paged_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, "
        "page_table, softmax_scale, causal, window_size, softcap, sinks)",
        source="sglang/kernels/ops/attention/flash_attention_v3.py, sglang 0.5.23",
        unsupported=_NO_VARLEN,
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.flash_attention_v3.flash_attn_with_kvcache",),
        schema="flash_attn_with_kvcache(Tensor q, Tensor k_cache, Tensor v_cache, Tensor? k=None, "
        "Tensor? v=None, Tensor? qv=None, Tensor? rotary_cos=None, Tensor? rotary_sin=None, "
        "Tensor? cache_seqlens=None, Tensor? cache_batch_idx=None, Tensor? cache_leftpad=None, "
        "Tensor? page_table=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k_new=None, int? "
        "max_seqlen_q=None, Tensor? rotary_seqlens=None, Tensor? q_descale=None, Tensor? "
        "k_descale=None, Tensor? v_descale=None, float? softmax_scale=None, bool causal=False, "
        "int[2] window_size=(-1, -1), int? attention_chunk=None, float softcap=0.0, bool "
        "rotary_interleaved=True, Tensor? scheduler_metadata=None, int num_splits=0, bool? "
        "pack_gqa=None, bool only_qv=False, int sm_margin=0, bool return_softmax_lse=False, "
        "Tensor? sinks=None, Any score_mod=None, Any aux_tensors=None, int ver=3, Tensor(a!)? "
        "out=None) -> Tensor(a!)",
        equivalent="cached_or_packed_attention(q, k_cache, v_cache, cache_seqlens, page_table, "
        "cu_seqlens_q, softmax_scale, causal, window_size, softcap, sinks)",
        source="sglang/kernels/ops/attention/flash_attention_v3.py, sglang 0.5.23",
        unsupported=_NO_CACHED,
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.flash_attention.flash_attn_varlen_func",),
        schema="flash_attn_varlen_func(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor "
        "cu_seqlens_k, int? max_seqlen_q=None, int? max_seqlen_k=None, Tensor? seqused_q=None, "
        "Tensor? seqused_k=None, Tensor? page_table=None, float? softmax_scale=None, bool "
        "causal=False, Tensor? qv=None, Tensor? q_descale=None, Tensor? k_descale=None, Tensor? "
        "v_descale=None, int[2] window_size=(-1, -1), int attention_chunk=0, float softcap=0.0, "
        "int num_splits=1, bool? pack_gqa=None, bool only_qv=False, int sm_margin=0, bool "
        "return_softmax_lse=False, Tensor? sinks=None, Any score_mod=None, Any aux_tensors=None, "
        "Tensor? sfq=None, Tensor? sfk=None, Tensor? sfv=None, Tensor? rel_bias=None, Any "
        "rel_bias_prep_cache=None, int ver=3, Tensor(a!)? out=None, Any mask_mod=None)"
        " -> Tensor(a!)",
        equivalent="varlen_or_paged_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, "
        "page_table, softmax_scale, causal, window_size, softcap, sinks)",
        source="sglang/kernels/ops/attention/flash_attention.py, sglang 0.5.23",
        unsupported=(*_NO_VARLEN, *_NO_FOURTH),
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.flash_attention.flash_attn_with_kvcache",),
        schema="flash_attn_with_kvcache(Tensor q, Tensor k_cache, Tensor v_cache, Tensor? k=None, "
        "Tensor? v=None, Tensor? qv=None, Tensor? rotary_cos=None, Tensor? rotary_sin=None, "
        "Tensor? cache_seqlens=None, Tensor? cache_batch_idx=None, Tensor? cache_leftpad=None, "
        "Tensor? page_table=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k_new=None, int? "
        "max_seqlen_q=None, Tensor? rotary_seqlens=None, Tensor? q_descale=None, Tensor? "
        "k_descale=None, Tensor? v_descale=None, float? softmax_scale=None, bool causal=False, "
        "int[2] window_size=(-1, -1), int? attention_chunk=None, float softcap=0.0, bool "
        "rotary_interleaved=True, Tensor? scheduler_metadata=None, int num_splits=0, bool? "
        "pack_gqa=None, bool only_qv=False, int sm_margin=0, bool return_softmax_lse=False, "
        "Tensor? sinks=None, Any score_mod=None, Any aux_tensors=None, Tensor? sfq=None, Tensor? "
        "sfk=None, Tensor? sfv=None, Tensor? rel_bias=None, Any rel_bias_prep_cache=None, int "
        "ver=3, Tensor(a!)? out=None, int? max_seqlen_k=None, Any mask_mod=None) -> Tensor(a!)",
        equivalent="cached_or_packed_attention(q, k_cache, v_cache, cache_seqlens, page_table, "
        "cu_seqlens_q, softmax_scale, causal, window_size, softcap, sinks)",
        source="sglang/kernels/ops/attention/flash_attention.py, sglang 0.5.23",
        unsupported=(*_NO_CACHED, *_NO_FOURTH),
    ),
    FusedOp(
        names=("sgl_kernel.causal_conv1d_update",),
        schema="causal_conv1d_update(Tensor(a!) x, Tensor(b!) conv_state, Tensor weight, Tensor? "
        "bias_, bool silu_activation, Tensor? cache_seqlens, Tensor? conv_state_indices, int "
        "pad_slot_id) -> ()",
        equivalent="x, conv_state = causal_conv1d_slots(x, conv_state, weight, bias_, 'silu' if "
        "silu_activation else None, conv_state_indices, pad_slot_id)",
        source="sgl-kernel/csrc/mamba/causal_conv1d.cu",
        unsupported=("cache_seqlens",),
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.causal_conv1d_update",),
        schema="causal_conv1d_update(Tensor(a!) x, Tensor(b!) conv_state, Tensor weight, Tensor? "
        "bias_, bool silu_activation, Tensor? cache_seqlens_, Tensor? conv_state_indices, int "
        "pad_slot_id) -> ()",
        equivalent="x, conv_state = causal_conv1d_slots(x, conv_state, weight, bias_, 'silu' if "
        "silu_activation else None, conv_state_indices, pad_slot_id)",
        source="sgl-kernel/csrc/mamba/causal_conv1d.cu",
        unsupported=("cache_seqlens_",),
    ),
)

OPS += _FOR_CPUS

# Without an equivalent.
OPS += opaque(
    "cache",
    CACHE,
    _READ,
    """
    sgl_kernel.downcast_fp8(k, v, k_out, v_out, k_scale, v_scale, loc, mult=1, offset=0) -> None
    torch.ops.sgl_kernel.downcast_fp8(Tensor k, Tensor v, Tensor k_out, Tensor v_out,
        Tensor k_scale, Tensor v_scale, Tensor loc, int mult, int offset) -> ()
    torch.ops.sgl_kernel.store_kv_cache(Tensor k_cache, Tensor v_cache, Tensor out_loc,
        Tensor k, Tensor v) -> ()
    """,
)
OPS += opaque(
    "matmul",
    FP4,
    _READ,
    """
    sgl_kernel.cutlass_scaled_fp4_mm(a, b, block_scale_a, block_scale_b, alpha,
        out_dtype) -> torch.Tensor
    torch.ops.sgl_kernel.cutlass_scaled_fp4_mm(Tensor! out, Tensor a, Tensor b,
        Tensor block_scale_a, Tensor block_scale_b, Tensor alpha) -> ()
    """,
)
OPS += opaque(
    "matmul",
    GGML,
    _READ,
    """
    sgl_kernel.ggml_mul_mat_vec_a8(weight, x, quant_type, row) -> torch.Tensor
    sgl_kernel.ggml_mul_mat_a8(weight, x, quant_type, row) -> torch.Tensor
    sgl_kernel.ggml_moe_a8(input, weight, sorted_token_ids, expert_ids, num_token_post_padded,
        type, row, topk, tokens) -> torch.Tensor
    sgl_kernel.ggml_moe_a8_vec(input, weight, topk_ids, top_k, type, row,
        tokens) -> torch.Tensor
    """,
)
OPS += opaque(
    "matmul",
    TILED,
    _READ,
    """
    sgl_kernel.gptq_marlin_gemm(a, c, b_q_weight, b_scales, global_scale, b_zeros, g_idx, perm,
        workspace, b_q_type, size_m, size_n, size_k, is_k_full=True, use_atomic_add=False,
        use_fp32_reduce=False, is_zp_float=False) -> torch.Tensor
    torch.ops.sgl_kernel.gptq_marlin_gemm(Tensor! a, Tensor? c_or_none, Tensor! b_q_weight,
        Tensor! b_scales, Tensor? global_scale_or_none, Tensor? b_zeros_or_none,
        Tensor? g_idx_or_none, Tensor? perm_or_none, Tensor! workspace, int b_q_type_id,
        int size_m, int size_n, int size_k, bool is_k_full, bool use_atomic_add,
        bool use_fp32_reduce, bool is_zp_float) -> Tensor
    sgl_kernel.qserve_w4a8_per_chn_gemm(in_feats, kernel, wscales, ascales, w_szs, a_ssums,
        out_feats=None) -> torch.Tensor
    torch.ops.sgl_kernel.qserve_w4a8_per_chn_gemm(Tensor _in_feats, Tensor _kernel,
        Tensor _wscales, Tensor _ascales, Tensor _w_szs, Tensor _a_ssums,
        Tensor! _out_feats) -> ()
    sgl_kernel.qserve_w4a8_per_group_gemm(in_feats, kernel, zeros, scales_i8, wscales, ascales,
        out_feats=None) -> torch.Tensor
    torch.ops.sgl_kernel.qserve_w4a8_per_group_gemm(Tensor _in_feats, Tensor _kernel,
        Tensor _zeros, Tensor _scales_i8, Tensor _wscales, Tensor _ascales,
        Tensor! _out_feats) -> ()
    sgl_kernel.gptq_gemm(a, b_q_weight, b_gptq_qzeros, b_gptq_scales, b_g_idx, use_shuffle,
        bit) -> torch.Tensor
    torch.ops.sgl_kernel.gptq_gemm(Tensor a, Tensor b_q_weight, Tensor b_gptq_qzeros,
        Tensor b_gptq_scales, Tensor b_g_idx, bool use_shuffle, int bit) -> Tensor
    """,
)
OPS += opaque(
    "moe",
    ORDER,
    _READ,
    """
    sgl_kernel.moe_align_block_size(topk_ids, num_experts, block_size, sorted_token_ids,
        experts_ids, num_tokens_post_pad, cumsum_buffer, pad_sorted_token_ids=False,
        ignore_invalid_expert=False)
    torch.ops.sgl_kernel.moe_align_block_size(Tensor topk_ids, int num_experts, int block_size,
        Tensor! sorted_token_ids, Tensor! experts_ids, Tensor! num_tokens_post_pad,
        Tensor! cumsum_buffer, bool pad_sorted_token_ids, bool ignore_invalid_expert) -> ()
    sgl_kernel.prepare_moe_input(topk_ids, expert_offsets, problem_sizes1, problem_sizes2,
        input_permutation, output_permutation, num_experts, n, k, blockscale_offsets=None)
    torch.ops.sgl_kernel.prepare_moe_input(Tensor topk_ids, Tensor expert_offsets,
        Tensor? blockscale_offsets, Tensor problem_sizes1, Tensor problem_sizes2,
        Tensor input_permutation, Tensor output_permutation, int num_experts, int n,
        int k) -> ()
    """,
)
OPS += opaque(
    "quantize",
    CODES,
    _READ,
    """
    sgl_kernel.sgl_per_token_group_quant_8bit(input, output_q, output_s, group_size, eps,
        fp8_min, fp8_max, scale_ue8m0=False, fuse_silu_and_mul=False, masked_m=None,
        enable_v2=None) -> None
    torch.ops.sgl_kernel.sgl_per_token_group_quant_8bit(Tensor input, Tensor! output_q,
        Tensor! output_s, int group_size, float eps, float fp8_min, float fp8_max,
        bool scale_ue8m0) -> ()
    sgl_kernel.sgl_per_token_quant_fp8(input, output_q, output_s) -> None
    torch.ops.sgl_kernel.sgl_per_token_quant_fp8(Tensor input, Tensor! output_q,
        Tensor! output_s) -> ()
    sgl_kernel.sgl_per_tensor_quant_fp8(input, output_q, output_s, is_static) -> None
    torch.ops.sgl_kernel.sgl_per_tensor_quant_fp8(Tensor input, Tensor! output_q,
        Tensor! output_s, bool is_static) -> ()
    """,
)
OPS += opaque(
    "quantize",
    UNPACK,
    _READ,
    """
    sgl_kernel.ggml_dequantize(weight, quant_type, M, N, dtype)
    sgl_kernel.awq_dequantize(qweight, scales, qzeros) -> torch.ByteTensor
    torch.ops.sgl_kernel.awq_dequantize(Tensor qweight, Tensor scales, Tensor qzeros) -> Tensor
    """,
)
OPS += opaque(
    "sampling",
    FILTER,
    _READ,
    """
    sgl_kernel.top_k_renorm_probs(probs, top_k) -> torch.Tensor
    torch.ops.sgl_kernel.top_k_renorm_probs(Tensor probs, Tensor! renorm_probs,
        Tensor? maybe_top_k_arr, int top_k_val) -> ()
    sgl_kernel.top_p_renorm_probs(probs, top_p) -> torch.Tensor
    torch.ops.sgl_kernel.top_p_renorm_probs(Tensor probs, Tensor! renorm_probs,
        Tensor? maybe_top_p_arr, float top_p_val) -> ()
    sgl_kernel.apply_token_bitmask_inplace_cuda(logits, bitmask, indices=None) -> None
    torch.ops.sgl_kernel.apply_token_bitmask_inplace_cuda(Tensor logits, Tensor bitmask,
        Tensor? indices=None) -> ()
    sgl_kernel.top_k_mask_logits(logits, top_k) -> torch.Tensor
    torch.ops.sgl_kernel.top_k_mask_logits(Tensor logits, Tensor mask_logits,
        Tensor? maybe_top_k_arr, int top_k_val) -> ()
    """,
)
OPS += opaque(
    "sampling",
    TOKENS,
    _READ,
    """
    sgl_kernel.fast_topk(values, topk, dim)
    sgl_kernel.fast_topk_v2(score, lengths, topk, row_starts=None) -> torch.Tensor
    sgl_kernel.fast_topk_transform_fused(score, lengths, page_table_size_1, cu_seqlens_q, topk,
        row_starts=None) -> torch.Tensor
    sgl_kernel.fast_topk_transform_ragged_fused(score, lengths, topk_indices_offset, topk,
        row_starts=None) -> torch.Tensor
    sgl_kernel.top_p_sampling_from_probs(probs, top_p, indices=None, deterministic=True,
        generator=None, check_nan=False) -> torch.Tensor
    torch.ops.sgl_kernel.top_p_sampling_from_probs(Tensor probs, Tensor output,
        Tensor? maybe_indices, Tensor? maybe_top_p_arr, float top_p_val, bool deterministic,
        Generator? gen) -> ()
    sgl_kernel.top_k_top_p_sampling_from_probs(probs, top_k, top_p, indices=None,
        filter_apply_order='top_k_first', deterministic=True, generator=None,
        check_nan=False) -> torch.Tensor
    torch.ops.sgl_kernel.top_k_top_p_sampling_from_probs(Tensor probs, Tensor output,
        Tensor? maybe_indices, Tensor? maybe_top_k_arr, float top_k_val,
        Tensor? maybe_top_p_arr, float top_p_val, bool deterministic, Generator? gen) -> ()
    sgl_kernel.min_p_sampling_from_probs(probs, min_p, indices=None, deterministic=True,
        generator=None, check_nan=False) -> torch.Tensor
    torch.ops.sgl_kernel.min_p_sampling_from_probs(Tensor probs, Tensor output,
        Tensor? maybe_indices, Tensor? maybe_min_p_arr, float min_p_val, bool deterministic,
        Generator? gen) -> ()
    """,
)
OPS += opaque(
    "moe",
    DIFFERS,
    _READ,
    """
    sgl_kernel.apply_shuffle_mul_sum(input, output, permutation, factors)
    torch.ops.sgl_kernel.apply_shuffle_mul_sum(Tensor input, Tensor output, Tensor permutation,
        Tensor? factors) -> ()
    """,
)
OPS += opaque(
    "moe",
    HANDLE,
    _READ,
    """
    sgl_kernel.fp8_blockwise_scaled_grouped_mm(output, a_ptrs, b_ptrs, out_ptrs, a_scales_ptrs,
        b_scales_ptrs, a, b, scales_a, scales_b, stride_a, stride_b, stride_c, layout_sfa,
        layout_sfb, problem_sizes, expert_offsets, workspace)
    torch.ops.sgl_kernel.fp8_blockwise_scaled_grouped_mm(Tensor output, Tensor a_ptrs,
        Tensor b_ptrs, Tensor out_ptrs, Tensor a_scales_ptrs, Tensor b_scales_ptrs, Tensor a,
        Tensor b, Tensor scales_a, Tensor scales_b, Tensor stride_a, Tensor stride_b,
        Tensor stride_c, Tensor layout_sfa, Tensor layout_sfb, Tensor problem_sizes,
        Tensor expert_offsets, Tensor workspace) -> ()
    """,
)
OPS += opaque(
    "moe",
    TILED,
    _READ,
    """
    sgl_kernel.moe_wna16_marlin_gemm(a, c_or_none, b_q_weight, b_bias_or_none, b_scales,
        global_scale_or_none, b_zeros_or_none, g_idx_or_none, perm_or_none, workspace,
        sorted_token_ids, expert_ids, num_tokens_post_padded, topk_weights, moe_block_size,
        top_k, mul_topk_weights, is_ep, b_q_type_id, size_m, size_n, size_k, is_k_full,
        use_atomic_add, use_fp32_reduce, is_zp_float)
    torch.ops.sgl_kernel.moe_wna16_marlin_gemm(Tensor! a, Tensor? c_or_none, Tensor! b_q_weight,
        Tensor? b_bias_or_none, Tensor! b_scales, Tensor? global_scale_or_none,
        Tensor? b_zeros_or_none, Tensor? g_idx_or_none, Tensor? perm_or_none, Tensor! workspace,
        Tensor sorted_token_ids, Tensor! expert_ids, Tensor! num_tokens_past_padded,
        Tensor! topk_weights, int moe_block_size, int top_k, bool mul_topk_weights, bool is_ep,
        int b_q_type_id, int size_m, int size_n, int size_k, bool is_k_full,
        bool use_atomic_add, bool use_fp32_reduce, bool is_zp_float) -> Tensor
    """,
)
OPS += opaque(
    "rope",
    WRITES,
    _READ,
    """
    sgl_kernel.dsv4_fused_k_norm_rope_flashmla(kv, kv_weight, freqs_cis, positions, out_loc,
        kvcache, eps=1e-06, page_size=1) -> None
    torch.ops.sgl_kernel.dsv4_fused_k_norm_rope_flashmla(Tensor kv, Tensor kv_weight,
        Tensor freqs_cis, Tensor positions, Tensor out_loc, Tensor! kvcache, float eps,
        int page_size) -> ()
    """,
)
OPS += opaque(
    "rope",
    QUANTIZES,
    _READ,
    """
    sgl_kernel.dsv4_fused_q_indexer_rope_hadamard_quant(q_input, q_fp8, weight, weights_out,
        weight_scale, freqs_cis, positions) -> None
    torch.ops.sgl_kernel.dsv4_fused_q_indexer_rope_hadamard_quant(Tensor q_input, Tensor! q_fp8,
        Tensor weight, Tensor! weights_out, float weight_scale, Tensor freqs_cis,
        Tensor positions) -> ()
    """,
)
OPS += opaque(
    "attention",
    OPTIONS,
    _READ,
    """
    sgl_kernel.flash_mla.flash_mla_with_kvcache(q, k_cache, block_table, cache_seqlens,
        head_dim_v, tile_scheduler_metadata, num_splits=None, softmax_scale=None, causal=False,
        descale_q=None, descale_k=None, is_fp8_kvcache=False, indices=None, attn_sink=None,
        extra_k_cache=None, extra_indices_in_kvcache=None, topk_length=None,
        extra_topk_length=None, kv_format=None) -> Tuple[torch.Tensor, torch.Tensor]
    sgl_kernel.flash_mla.flash_mla_sparse_fwd(q, kv, indices, sm_scale, d_v=512, attn_sink=None,
        topk_length=None) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    sgl_kernel.sparse_attn_func(q, k, v, block_count, block_offset, column_count, column_index,
        dropout_p=0.0, softmax_scale=None, causal=False, softcap=0.0, alibi_slopes=None,
        deterministic=False, return_attn_probs=False, *, return_softmax_lse=False, out=None)
    sgl_kernel.sparse_attn_varlen_func(q, k, v, block_count, block_offset, column_count,
        column_index, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
        softmax_scale=None, causal=False, softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, *, return_softmax_lse=False, out=None)
    """,
)
OPS += opaque(
    "state_space",
    STATES,
    _READ,
    """
    sgl_kernel.causal_conv1d_fwd(x, weight, bias_, conv_states, query_start_loc, cache_indices,
        has_initial_state, silu_activation, pad_slot_id)
    torch.ops.sgl_kernel.causal_conv1d_fwd(Tensor! x, Tensor! weight, Tensor? bias_,
        Tensor!? conv_states, Tensor? query_start_loc, Tensor? cache_indices,
        Tensor? has_initial_state, bool silu_activation, int pad_slot_id) -> ()
    """,
)
