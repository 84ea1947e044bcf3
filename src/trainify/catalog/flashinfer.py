"""flashinfer: ``flashinfer/`` at fb28d7242b35.

Calls go through tvm-ffi, which no dispatcher sees.  Norms and activations compute in float32 and
round once.  ``out`` is written where it is given, and returned.
"""

from . import FusedOp, opaque
from .reasons import (
    BUFFER,
    CACHE,
    CODES,
    CONTEXT,
    FILTER,
    FP4,
    MAJOR,
    OPTIONS,
    QUANTIZES,
    STATES,
    TILED,
    TOKENS,
    UNDOCUMENTED,
    UNPACK,
)

_READ = "flashinfer fb28d7242b35"
_NORM = "flashinfer/norm/__init__.py"
_ACTIVATION = "flashinfer/activation.py"
_ROPE = "flashinfer/rope.py"

_ANGLES = "int? rotary_dim=None, bool interleave=False, float rope_scale=1, float rope_theta=1e4"
_LLAMA31_ANGLES = (
    "int? rotary_dim=None, bool interleave=False, float rope_scale=8, float rope_theta=5e5, "
    "float low_freq_factor=1, float high_freq_factor=4, float old_context_len=8192"
)

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=("flashinfer.rmsnorm", "flashinfer.norm.rmsnorm"),
        schema="rmsnorm(Tensor input, Tensor weight, float eps=1e-6, Tensor(a!)? out=None, "
        "bool? enable_pdl=None) -> Tensor(a!)",
        equivalent="rms_norm(input, weight, eps)",
        source=_NORM,
    ),
    FusedOp(
        names=("flashinfer.fused_add_rmsnorm", "flashinfer.norm.fused_add_rmsnorm"),
        schema="fused_add_rmsnorm(Tensor(a!) input, Tensor(b!) residual, Tensor weight, "
        "float eps=1e-6, bool? enable_pdl=None) -> ()",
        equivalent="input, residual = fused_add_rms_norm_fp32(input, residual, weight, eps)",
        source=_NORM,
    ),
    FusedOp(
        names=("flashinfer.gemma_rmsnorm", "flashinfer.norm.gemma_rmsnorm"),
        schema="gemma_rmsnorm(Tensor input, Tensor weight, float eps=1e-6, "
        "Tensor(a!)? out=None, bool? enable_pdl=None) -> Tensor(a!)",
        equivalent="gemma_rms_norm(input, weight, eps)",
        source=_NORM,
    ),
    FusedOp(
        names=("flashinfer.gemma_fused_add_rmsnorm", "flashinfer.norm.gemma_fused_add_rmsnorm"),
        schema="gemma_fused_add_rmsnorm(Tensor(a!) input, Tensor(b!) residual, Tensor weight, "
        "float eps=1e-6, bool? enable_pdl=None) -> ()",
        equivalent="input, residual = gemma_fused_add_rms_norm(input, residual, weight, eps)",
        source=_NORM,
    ),
    FusedOp(
        names=("flashinfer.layernorm", "flashinfer.norm.layernorm"),
        schema="layernorm(Tensor input, Tensor gamma, Tensor beta, float eps=1e-6) -> Tensor",
        equivalent="layer_norm_fp32_weight(input, gamma, beta, eps)",
        source=_NORM,
    ),
    FusedOp(
        names=("flashinfer.fused_rmsnorm_silu", "flashinfer.norm.fused_rmsnorm_silu"),
        schema="fused_rmsnorm_silu(Tensor input, Tensor weight, float eps=1e-6, "
        "Tensor(a!)? out=None, Tensor? block_scale=None) -> Tensor(a!)",
        equivalent="rms_norm_silu(input, weight, eps)",
        source=_NORM,
        unsupported=("block_scale",),
    ),
    FusedOp(
        names=("flashinfer.silu_and_mul", "flashinfer.activation.silu_and_mul"),
        schema="silu_and_mul(Tensor input, Tensor(a!)? out=None, bool? enable_pdl=None)"
        " -> Tensor(a!)",
        equivalent="silu_and_mul_fp32(input)",
        source=_ACTIVATION,
    ),
    FusedOp(
        names=("flashinfer.gelu_and_mul", "flashinfer.activation.gelu_and_mul"),
        schema="gelu_and_mul(Tensor input, Tensor(a!)? out=None, bool? enable_pdl=None)"
        " -> Tensor(a!)",
        equivalent="gelu_and_mul_fp32(input)",
        source=_ACTIVATION,
    ),
    FusedOp(
        names=("flashinfer.gelu_tanh_and_mul", "flashinfer.activation.gelu_tanh_and_mul"),
        schema="gelu_tanh_and_mul(Tensor input, Tensor(a!)? out=None, bool? enable_pdl=None)"
        " -> Tensor(a!)",
        equivalent="gelu_tanh_and_mul_fp32(input)",
        source=_ACTIVATION,
    ),
    FusedOp(
        names=(
            "flashinfer.apply_rope_with_cos_sin_cache_inplace",
            "flashinfer.rope.apply_rope_with_cos_sin_cache_inplace",
        ),
        schema="apply_rope_with_cos_sin_cache_inplace(Tensor positions, Tensor(a!) query, "
        "Tensor(b!) key, int head_size, Tensor cos_sin_cache, bool is_neox=True) -> ()",
        equivalent="query, key = "
        "rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)",
        source=_ROPE,
    ),
    FusedOp(
        names=(
            "flashinfer.apply_rope_with_cos_sin_cache",
            "flashinfer.rope.apply_rope_with_cos_sin_cache",
        ),
        schema="apply_rope_with_cos_sin_cache(Tensor positions, Tensor query, Tensor key, "
        "int head_size, Tensor cos_sin_cache, bool is_neox=True) -> (Tensor, Tensor)",
        equivalent="rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)",
        source=_ROPE,
    ),
    FusedOp(
        names=("flashinfer.apply_rope_pos_ids", "flashinfer.rope.apply_rope_pos_ids"),
        schema=f"apply_rope_pos_ids(Tensor q, Tensor k, Tensor pos_ids, {_ANGLES})"
        " -> (Tensor, Tensor)",
        equivalent="rope_at(q, k, pos_ids, rotary_dim, interleave, rope_scale, rope_theta)",
        source=_ROPE,
    ),
    FusedOp(
        names=(
            "flashinfer.apply_rope_pos_ids_inplace",
            "flashinfer.rope.apply_rope_pos_ids_inplace",
        ),
        schema="apply_rope_pos_ids_inplace(Tensor(a!) q, Tensor(b!) k, Tensor pos_ids, "
        f"{_ANGLES}) -> ()",
        equivalent="q, k = rope_at(q, k, pos_ids, rotary_dim, interleave, rope_scale, rope_theta)",
        source=_ROPE,
    ),
    FusedOp(
        names=("flashinfer.apply_rope", "flashinfer.rope.apply_rope"),
        schema=f"apply_rope(Tensor q, Tensor k, Tensor indptr, Tensor offsets, {_ANGLES})"
        " -> (Tensor, Tensor)",
        equivalent="rope_ragged(q, k, indptr, offsets, rotary_dim, interleave, rope_scale, "
        "rope_theta)",
        source=_ROPE,
    ),
    FusedOp(
        names=("flashinfer.apply_rope_inplace", "flashinfer.rope.apply_rope_inplace"),
        schema="apply_rope_inplace(Tensor(a!) q, Tensor(b!) k, Tensor indptr, Tensor offsets, "
        f"{_ANGLES}) -> ()",
        equivalent="q, k = rope_ragged(q, k, indptr, offsets, rotary_dim, interleave, "
        "rope_scale, rope_theta)",
        source=_ROPE,
    ),
    FusedOp(
        names=(
            "flashinfer.apply_llama31_rope_pos_ids",
            "flashinfer.rope.apply_llama31_rope_pos_ids",
        ),
        schema=f"apply_llama31_rope_pos_ids(Tensor q, Tensor k, Tensor pos_ids, {_LLAMA31_ANGLES})"
        " -> (Tensor, Tensor)",
        equivalent="llama31_rope_at(q, k, pos_ids, rotary_dim, interleave, rope_scale, "
        "rope_theta, low_freq_factor, high_freq_factor, old_context_len)",
        source=_ROPE,
    ),
    FusedOp(
        names=(
            "flashinfer.apply_llama31_rope_pos_ids_inplace",
            "flashinfer.rope.apply_llama31_rope_pos_ids_inplace",
        ),
        schema="apply_llama31_rope_pos_ids_inplace(Tensor(a!) q, Tensor(b!) k, Tensor pos_ids, "
        f"{_LLAMA31_ANGLES}) -> ()",
        equivalent="q, k = llama31_rope_at(q, k, pos_ids, rotary_dim, interleave, rope_scale, "
        "rope_theta, low_freq_factor, high_freq_factor, old_context_len)",
        source=_ROPE,
    ),
    FusedOp(
        names=("flashinfer.apply_llama31_rope", "flashinfer.rope.apply_llama31_rope"),
        schema="apply_llama31_rope(Tensor q, Tensor k, Tensor indptr, Tensor offsets, "
        f"{_LLAMA31_ANGLES}) -> (Tensor, Tensor)",
        equivalent="llama31_rope_ragged(q, k, indptr, offsets, rotary_dim, "
        "interleave, rope_scale, rope_theta, low_freq_factor, high_freq_factor, old_context_len)",
        source=_ROPE,
    ),
    FusedOp(
        names=(
            "flashinfer.apply_llama31_rope_inplace",
            "flashinfer.rope.apply_llama31_rope_inplace",
        ),
        schema="apply_llama31_rope_inplace(Tensor(a!) q, Tensor(b!) k, Tensor indptr, "
        f"Tensor offsets, {_LLAMA31_ANGLES}) -> ()",
        equivalent="q, k = llama31_rope_ragged(q, k, indptr, offsets, rotary_dim, "
        "interleave, rope_scale, rope_theta, low_freq_factor, high_freq_factor, old_context_len)",
        source=_ROPE,
    ),
    FusedOp(
        names=(
            "flashinfer.single_prefill_with_kv_cache",
            "flashinfer.prefill.single_prefill_with_kv_cache",
        ),
        schema="single_prefill_with_kv_cache(Tensor q, Tensor k, Tensor v, Tensor? scale_q=None, "
        "Tensor? scale_k=None, Tensor? scale_v=None, Any o_dtype=None, "
        "Tensor? custom_mask=None, Tensor? packed_custom_mask=None, bool causal=False, "
        "str kv_layout='NHD', str pos_encoding_mode='NONE', bool use_fp16_qk_reduction=False, "
        "float? sm_scale=None, int window_left=-1, float? logits_soft_cap=None, "
        "float? rope_scale=None, float? rope_theta=None, str backend='auto', "
        "bool return_lse=False, Any kv_cache_sf=None, float? k_scale=None, "
        "float? v_scale=None) -> Tensor",
        equivalent="single_prefill(q, k, v, kv_layout, sm_scale, causal, window_left, "
        "logits_soft_cap)",
        source="flashinfer/prefill.py",
        unsupported=(
            "scale_q",
            "scale_k",
            "scale_v",
            "o_dtype",
            "custom_mask",
            "packed_custom_mask",
            "pos_encoding_mode",
            "return_lse",
            "kv_cache_sf",
            "k_scale",
            "v_scale",
        ),
    ),
    FusedOp(
        names=(
            "flashinfer.single_decode_with_kv_cache",
            "flashinfer.decode.single_decode_with_kv_cache",
        ),
        schema="single_decode_with_kv_cache(Tensor q, Tensor k, Tensor v, str kv_layout='NHD', "
        "str pos_encoding_mode='NONE', bool use_tensor_cores=False, float? q_scale=None, "
        "float? k_scale=None, float? v_scale=None, int window_left=-1, "
        "float? logits_soft_cap=None, float? sm_scale=None, float? rope_scale=None, "
        "float? rope_theta=None, bool return_lse=False) -> Tensor",
        equivalent="single_decode(q, k, v, kv_layout, sm_scale, window_left, logits_soft_cap)",
        source="flashinfer/decode.py",
        unsupported=("pos_encoding_mode", "q_scale", "k_scale", "v_scale", "return_lse"),
    ),
    FusedOp(
        names=("flashinfer.softmax", "flashinfer.sampling.softmax"),
        schema="softmax(Tensor logits, Tensor? temperature=None, bool? enable_pdl=None) -> Tensor",
        equivalent="softmax_temperature(logits, temperature)",
        source="flashinfer/sampling.py",
    ),
    FusedOp(
        names=("flashinfer.fmha_varlen", "flashinfer.prefill.fmha_varlen"),
        schema="fmha_varlen(Tensor q, Tensor k, Tensor v, Tensor qo_segment_offsets, "
        "Tensor kv_segment_offsets, Any plan_info=None, int? max_qo_len=None, "
        "Tensor(a!)? out=None, Tensor? lse=None, bool causal=False, float? sm_scale=None, "
        "float? q_scale=None, float? k_scale=None, float? v_scale=None, float? o_scale=None, "
        "bool return_lse=False) -> Tensor(a!)",
        equivalent="varlen_attention(q, k, v, qo_segment_offsets, kv_segment_offsets, sm_scale, "
        "causal)",
        source="flashinfer/prefill.py",
        unsupported=("lse", "q_scale", "k_scale", "v_scale", "o_scale", "return_lse"),
    ),
    FusedOp(
        names=("flashinfer.merge_state", "flashinfer.cascade.merge_state"),
        schema="merge_state(Tensor v_a, Tensor s_a, Tensor v_b, Tensor s_b) -> (Tensor, Tensor)",
        equivalent="merge_state(v_a, s_a, v_b, s_b)",
        source="flashinfer/cascade.py",
    ),
    FusedOp(
        names=("flashinfer.merge_state_in_place", "flashinfer.cascade.merge_state_in_place"),
        schema="merge_state_in_place(Tensor(a!) v, Tensor(b!) s, Tensor v_other, "
        "Tensor s_other, Tensor? mask=None) -> ()",
        equivalent="v, s = merge_state(v, s, v_other, s_other)",
        source="flashinfer/cascade.py",
        unsupported=("mask",),
    ),
    FusedOp(
        names=("flashinfer.merge_states", "flashinfer.cascade.merge_states"),
        schema="merge_states(Tensor v, Tensor s) -> (Tensor, Tensor)",
        equivalent="merge_states(v, s)",
        source="flashinfer/cascade.py",
    ),
    FusedOp(
        names=(
            "flashinfer.mm_bf16",
            "flashinfer.gemm.gemm_base.mm_bf16",
            "flashinfer.gemm.mm_bf16",
        ),
        schema="mm_bf16(Tensor a, Tensor b, Tensor? bias=None, bool pdl=False, "
        "Tensor(a!)? out=None, ScalarType out_dtype=torch.bfloat16, "
        "str backend='cudnn') -> Tensor(a!)",
        equivalent="(a.float() @ b.float()).to(out_dtype)",
        source="flashinfer/gemm",
        unsupported=("bias",),
        family="matmul",
    ),
    FusedOp(
        names=(
            "flashinfer.bmm_bf16",
            "flashinfer.gemm.gemm_base.bmm_bf16",
            "flashinfer.gemm.bmm_bf16",
        ),
        schema="bmm_bf16(Tensor A, Tensor B, Tensor(a!)? out=None, "
        "ScalarType out_dtype=torch.bfloat16, str backend='cudnn') -> Tensor(a!)",
        equivalent="(A.float() @ B.float()).to(out_dtype)",
        source="flashinfer/gemm",
        family="matmul",
    ),
    FusedOp(
        names=(
            "flashinfer.tgv_gemm_sm100",
            "flashinfer.gemm.gemm_base.tgv_gemm_sm100",
            "flashinfer.gemm.tgv_gemm_sm100",
        ),
        schema="tgv_gemm_sm100(Tensor a, Tensor b, Tensor bias, bool pdl=False, "
        "Tensor(a!)? out=None) -> Tensor(a!)",
        equivalent="torch.addmm(bias, a, b)",
        source="flashinfer/gemm",
        family="matmul",
    ),
    FusedOp(
        names=(
            "flashinfer.rmsnorm_quant",
            "flashinfer.norm.rmsnorm_quant",
        ),
        schema="rmsnorm_quant(Tensor(a!) out, Tensor input, Tensor weight, Tensor scale, "
        "float eps=1e-6, bool? enable_pdl=None) -> ()",
        equivalent="out = rms_norm_fp8(input, weight, scale, eps)",
        look_at="the codes come as floating point, not in 8 bits: what reads them must take that",
        source="flashinfer/norm/__init__.py",
    ),
    FusedOp(
        names=(
            "flashinfer.fused_add_rmsnorm_quant",
            "flashinfer.norm.fused_add_rmsnorm_quant",
        ),
        schema="fused_add_rmsnorm_quant(Tensor(a!) out, Tensor input, "
        "Tensor(b!) residual, Tensor weight, Tensor scale, float eps=1e-6, "
        "bool? enable_pdl=None) -> ()",
        equivalent="out, residual = fused_add_rms_norm_fp32_fp8(input, residual, weight, "
        "scale, eps)",
        look_at="the codes come as floating point, not in 8 bits: what reads them must take that",
        source="flashinfer/norm/__init__.py",
    ),
    FusedOp(
        names=(
            "flashinfer.grouped_mm.grouped_mm_bf16",
            "flashinfer.grouped_mm.core.grouped_mm_bf16",
            "flashinfer.grouped_mm_bf16",
        ),
        schema="grouped_mm_bf16(Tensor a, Tensor b, Tensor m_indptr, Tensor(a!)? out=None, "
        "ScalarType out_dtype=torch.bfloat16, *, str backend='cudnn', int tactic=-1) -> "
        "Tensor(a!)",
        equivalent="grouped_linear(a, b, m_indptr, out_dtype)",
        source="flashinfer/grouped_mm/core.py",
        unsupported=("out",),
    ),
    FusedOp(
        names=(
            "flashinfer.gemm.bmm_fp8",
            "flashinfer.gemm.gemm_base.bmm_fp8",
            "flashinfer.bmm_fp8",
        ),
        schema="bmm_fp8(Tensor A, Tensor B, Tensor A_scale, Tensor B_scale, ScalarType dtype, "
        "Tensor(a!)? out=None, str backend='cublas') -> Tensor(a!)",
        equivalent="scaled_mm(A, B, A_scale, B_scale, dtype)",
        source="flashinfer/gemm/gemm_base.py",
        look_at="each scale must be one number; the gradient of fp8 codes is rounded to fp8"
        " as well",
    ),
    FusedOp(
        names=(
            "flashinfer.mamba.selective_state_update",
            "flashinfer.mamba.selective_state_update.selective_state_update",
            "flashinfer.selective_state_update",
        ),
        schema="selective_state_update(Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, "
        "Tensor C, Tensor D, Tensor? z=None, Tensor? dt_bias=None, bool dt_softplus=False, "
        "Tensor? state_batch_indices=None, int pad_slot_id=-1, Tensor? state_scale=None, Tensor? "
        "out=None, bool disable_state_update=False, Tensor? intermediate_states_buffer=None, "
        "Tensor? intermediate_state_indices=None, Tensor? intermediate_state_scales=None, "
        "Tensor? rand_seed=None, int philox_rounds=10, int cache_steps=0, str algorithm='auto', "
        "Tensor? dst_state_batch_indices=None, Tensor? cu_seqlens=None, Tensor? "
        "num_accepted_tokens=None, str backend='auto') -> Tensor",
        equivalent="_, state = selective_state_slots(state, x, dt, A, B, C, D, z, dt_bias, "
        "dt_softplus, state_batch_indices, pad_slot_id)",
        source="flashinfer/mamba/selective_state_update.py",
        unsupported=(
            "state_scale",
            "out",
            "disable_state_update",
            "intermediate_states_buffer",
            "intermediate_state_indices",
            "intermediate_state_scales",
            "rand_seed",
            "cache_steps",
            "dst_state_batch_indices",
            "cu_seqlens",
            "num_accepted_tokens",
        ),
    ),
    FusedOp(
        names=("flashinfer.gemm.tinygemm_bf16", "flashinfer.gemm.routergemm.tinygemm_bf16"),
        schema="tinygemm_bf16(Tensor input, Tensor weight, Tensor(a!) out, Tensor? bias=None, "
        "bool use_pdl=False) -> ()",
        equivalent="out = F.linear(input, weight, bias)",
        source="flashinfer/gemm/routergemm.py, flashinfer 0.7.4",
        family="matmul",
    ),
    FusedOp(
        names=(
            "flashinfer.fused_moe.fused_topk_deepseek",
            "flashinfer.fused_moe.fused_routing_dsv3.fused_topk_deepseek",
        ),
        schema="fused_topk_deepseek(Tensor scores, Tensor bias, int n_group, int topk_group, "
        "int topk, float routed_scaling_factor, Tensor(a!) topk_values, "
        "Tensor(b!) topk_indices, bool launch_with_pdl=True, "
        "Tensor? routing_replay_out=None, *, str backend='default') -> ()",
        equivalent="topk_values, topk_indices = grouped_topk(scores, topk, True, n_group, "
        "topk_group, 'sigmoid', routed_scaling_factor, bias)",
        source="flashinfer/fused_moe/fused_routing_dsv3.py, flashinfer 0.7.4",
        unsupported=("routing_replay_out",),
    ),
)

# Without an equivalent.
OPS += opaque(
    "attention",
    CONTEXT,
    _READ,
    """
    flashinfer.BatchPrefillWithPagedKVCacheWrapper.run,
        flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper.run,
        flashinfer.BatchPrefillWithPagedKVCacheWrapper,
        flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper,
        flashinfer.BatchPrefillWithPagedKVCacheWrapper.forward,
        flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper.forward(qo_indptr, paged_kv_indptr,
        paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim_qk,
        page_size, head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False,
        pos_encoding_mode='NONE', use_fp16_qk_reduction=False, sm_scale=None, window_left=-1,
        logits_soft_cap=None, rope_scale=None, rope_theta=None, q_data_type='float16',
        kv_data_type=None, o_data_type=None, non_blocking=True, prefix_len_ptr=None,
        token_pos_in_items_ptr=None, token_pos_in_items_len=0, max_item_len_ptr=None,
        seq_lens=None, seq_lens_q=None, block_tables=None, max_token_per_sequence=None,
        max_sequence_kv=None, fixed_split_size=None, disable_split_kv=False); run(q,
        paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None,
        return_lse=False, enable_pdl=None, window_left=None, sinks=None, kv_cache_sf=None,
        skip_softmax_threshold_scale_factor=None, use_fp16_softmax=None, uses_spcompress=None)
    flashinfer.BatchPrefillWithRaggedKVCacheWrapper.run,
        flashinfer.prefill.BatchPrefillWithRaggedKVCacheWrapper.run,
        flashinfer.BatchPrefillWithRaggedKVCacheWrapper,
        flashinfer.prefill.BatchPrefillWithRaggedKVCacheWrapper,
        flashinfer.BatchPrefillWithRaggedKVCacheWrapper.forward,
        flashinfer.prefill.BatchPrefillWithRaggedKVCacheWrapper.forward(qo_indptr, kv_indptr,
        num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, custom_mask=None,
        packed_custom_mask=None, causal=False, pos_encoding_mode='NONE',
        use_fp16_qk_reduction=False, window_left=-1, logits_soft_cap=None, sm_scale=None,
        rope_scale=None, rope_theta=None, q_data_type='float16', kv_data_type=None,
        o_data_type=None, non_blocking=True, prefix_len_ptr=None, token_pos_in_items_ptr=None,
        token_pos_in_items_len=0, max_item_len_ptr=None, fixed_split_size=None,
        disable_split_kv=False, seq_lens=None, seq_lens_q=None, max_token_per_sequence=None,
        max_sequence_kv=None, v_indptr=None, o_indptr=None); run(q, k, v, *args, q_scale=None,
        k_scale=None, v_scale=None, o_scale=None, out=None, lse=None, return_lse=False,
        enable_pdl=None, kv_cache_sf=None)
    flashinfer.BatchDecodeWithPagedKVCacheWrapper.run,
        flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper.run,
        flashinfer.BatchDecodeWithPagedKVCacheWrapper,
        flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper,
        flashinfer.BatchDecodeWithPagedKVCacheWrapper.forward,
        flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper.forward(indptr, indices, last_page_len,
        num_qo_heads, num_kv_heads, head_dim, page_size, *deprecated_positional_args,
        **kwargs); run(q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None,
        out=None, lse=None, return_lse=False, enable_pdl=None, window_left=None, sinks=None,
        q_len_per_req=None, skip_softmax_threshold_scale_factor=None, kv_cache_sf=None)
    flashinfer.BatchDecodeMlaWithPagedKVCacheWrapper.run,
        flashinfer.BatchDecodeMlaWithPagedKVCacheWrapper(indptr, indices, last_page_len,
        num_qo_heads, head_dim_compressed_kv, page_size, sm_scale, window_left=-1,
        logits_soft_cap=None, data_type='float16', q_data_type=None, rope_scale=None,
        rope_theta=None); run(q_nope, q_pe, paged_ckv_cache, paged_kpe_cache, q_scale=None,
        k_scale=None, v_scale=None, out=None, lse=None, return_lse=False, enable_pdl=False)
    flashinfer.BatchMLAPagedAttentionWrapper.run,
        flashinfer.BatchMLAPagedAttentionWrapper(qo_indptr, kv_indptr, kv_indices, kv_len_arr,
        num_heads, head_dim_ckv, head_dim_kpe, page_size, causal, sm_scale, q_data_type,
        kv_data_type, use_profiler=False); run(q_nope, q_pe, ckv_cache, kpe_cache, out=None,
        lse=None, return_lse=False, profiler_buffer=None, kv_len=None, page_table=None,
        return_lse_base_on_e=False, o_scale=None, *, ckv_scale=None, ckv_scale_arr=None,
        kpe_scale=None)
    flashinfer.MultiLevelCascadeAttentionWrapper.run,
        flashinfer.cascade.MultiLevelCascadeAttentionWrapper.run,
        flashinfer.MultiLevelCascadeAttentionWrapper,
        flashinfer.cascade.MultiLevelCascadeAttentionWrapper(qo_indptr_arr, paged_kv_indptr_arr,
        paged_kv_indices_arr, paged_kv_last_page_len, num_qo_heads, num_kv_heads, head_dim,
        page_size, causal=False, pos_encoding_mode='NONE', use_fp16_qk_reduction=False,
        sm_scale=None, window_left=-1, logits_soft_cap=None, rope_scale=None, rope_theta=None,
        q_data_type='float16', kv_data_type=None); run(q, paged_kv_cache)
    flashinfer.BlockSparseAttentionWrapper.run,
        flashinfer.sparse.BlockSparseAttentionWrapper.run, flashinfer.BlockSparseAttentionWrapper,
        flashinfer.sparse.BlockSparseAttentionWrapper,
        flashinfer.BlockSparseAttentionWrapper.forward,
        flashinfer.sparse.BlockSparseAttentionWrapper.forward(indptr, indices, M, N, R, C,
        num_qo_heads, num_kv_heads, head_dim, mask=None, packed_mask=None, causal=False,
        pos_encoding_mode='NONE', use_fp16_qk_reduction=False, logits_soft_cap=None,
        sm_scale=None, rope_scale=None, rope_theta=None, q_data_type='float16',
        kv_data_type=None, o_data_type='float16', non_blocking=True, block_mask=None); run(q, k,
        v, scale_q=None, scale_k=None, scale_v=None, out=None, lse=None, return_lse=False,
        enable_pdl=None)
    flashinfer.VariableBlockSparseAttentionWrapper.run,
        flashinfer.sparse.VariableBlockSparseAttentionWrapper.run,
        flashinfer.VariableBlockSparseAttentionWrapper,
        flashinfer.sparse.VariableBlockSparseAttentionWrapper,
        flashinfer.VariableBlockSparseAttentionWrapper.forward,
        flashinfer.sparse.VariableBlockSparseAttentionWrapper.forward(block_mask_map, block_row_sz,
        block_col_sz, num_qo_heads, num_kv_heads, head_dim, causal=False,
        pos_encoding_mode='NONE', use_fp16_qk_reduction=False, logits_soft_cap=None,
        sm_scale=None, rope_scale=None, rope_theta=None, non_blocking=True,
        q_data_type='float16', kv_data_type=None); run(q, k, v, out=None, lse=None,
        return_lse=False, enable_pdl=None)
    flashinfer.BatchAttention.run,
        flashinfer.attention._core.BatchAttention.run,
        flashinfer.attention.BatchAttention.run, flashinfer.BatchAttention,
        flashinfer.attention._core.BatchAttention,
        flashinfer.attention.BatchAttention(qo_indptr, kv_indptr, kv_indices,
        kv_len_arr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo, page_size,
        causal=False, sm_scale=None, logits_soft_cap=None, q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16, use_profiler=False); run(q, kv_cache, out=None, lse=None,
        k_scale=None, v_scale=None, logits_soft_cap=0.0, profiler_buffer=None, kv_cache_sf=None)
    """,
)
OPS += opaque(
    "cache",
    CACHE,
    _READ,
    """
    flashinfer.page.append_paged_kv_cache, flashinfer.append_paged_kv_cache(append_key,
        append_value, batch_indices, positions, paged_kv_cache, kv_indices, kv_indptr,
        kv_last_page_len, kv_layout='NHD') -> None
    flashinfer.page.append_paged_mla_kv_cache, flashinfer.append_paged_mla_kv_cache(append_ckv,
        append_kpe, batch_indices, positions, ckv_cache, kpe_cache, kv_indices, kv_indptr,
        kv_last_page_len) -> None
    """,
)
OPS += opaque(
    "matmul",
    FP4,
    _READ,
    """
    flashinfer.gemm.mm_fp4,
        flashinfer.gemm.gemm_base.mm_fp4, flashinfer.mm_fp4(a, b, a_descale, b_descale, alpha=None,
        out_dtype=torch.bfloat16, out=None, block_size=16, use_8x4_sf_layout=False,
        backend='auto', use_nvfp4=True, enable_pdl=True) -> torch.Tensor
    flashinfer.gemm.group_gemm_nvfp4_nt_groupwise,
        flashinfer.gemm.gemm_base.group_gemm_nvfp4_nt_groupwise,
        flashinfer.group_gemm_nvfp4_nt_groupwise(a,
        b, a_scale, b_scale, m_indptr, alpha=None, tile_m=128, tile_n=128, tile_k=128,
        swap_ab=True, out=None, out_dtype=None) -> torch.Tensor
    flashinfer.gemm.group_gemm_mxfp8_mxfp4_nt_groupwise,
        flashinfer.gemm.group_gemm_mxfp4_nt_groupwise,
        flashinfer.gemm.gemm_base.group_gemm_mxfp8_mxfp4_nt_groupwise,
        flashinfer.group_gemm_mxfp8_mxfp4_nt_groupwise(a, b, a_scale, b_scale, m_indptr,
        mma_sm=1, tile_m=128, tile_n=128, tile_k=128, swap_ab=True, out=None,
        out_dtype=None) -> torch.Tensor
    """,
)
OPS += opaque(
    "moe",
    FP4,
    _READ,
    """
    flashinfer.grouped_mm.grouped_mm_fp4,
        flashinfer.grouped_mm.core.grouped_mm_fp4, flashinfer.grouped_mm_fp4(a, b, a_descale,
        b_descale,
        m_indptr, alpha=None, out=None, out_dtype=torch.bfloat16, block_size=16, *,
        backend='cudnn', tactic=-1) -> torch.Tensor
    flashinfer.fused_moe.trtllm_fp4_block_scale_moe,
        flashinfer.fused_moe.core.trtllm_fp4_block_scale_moe,
        flashinfer.trtllm_fp4_block_scale_moe(routing_logits, routing_bias, hidden_states,
        hidden_states_scale, gemm1_weights, gemm1_weights_scale, gemm1_bias, gemm1_alpha,
        gemm1_beta, gemm1_clamp_limit, gemm2_weights, gemm2_weights_scale, gemm2_bias,
        output1_scale_scalar, output1_scale_gate_scalar, output2_scale_scalar, num_experts,
        top_k, n_group, topk_group, intermediate_size, local_expert_offset, local_num_experts,
        routed_scaling_factor, routing_method_type=0, do_finalize=True, enable_pdl=None,
        activation_type=ActivationType.Swiglu.value, per_token_scale=None, output=None,
        tune_max_num_tokens=8192, norm_topk_prob=True, routing_replay_out=None,
        num_fused_shared_experts=None) -> List[torch.Tensor]
    flashinfer.fused_moe.trtllm_mxint4_block_scale_moe,
        flashinfer.fused_moe.core.trtllm_mxint4_block_scale_moe,
        flashinfer.trtllm_mxint4_block_scale_moe(routing_logits, routing_bias, hidden_states,
        gemm1_weights, gemm1_weights_scale, gemm1_alpha, gemm1_beta, gemm1_clamp_limit,
        gemm2_weights, gemm2_weights_scale, num_experts, top_k, n_group, topk_group,
        intermediate_size, local_expert_offset, local_num_experts, routed_scaling_factor,
        routing_method_type=0, do_finalize=True, enable_pdl=None, output=None,
        tune_max_num_tokens=8192, norm_topk_prob=True,
        routing_replay_out=None) -> List[torch.Tensor]
    """,
)
OPS += opaque(
    "quantize",
    CODES,
    _READ,
    """
    flashinfer.activation.silu_and_mul_scaled_nvfp4_experts_quantize,
        flashinfer.silu_and_mul_scaled_nvfp4_experts_quantize(a, mask, a_global_sf)
    flashinfer.quantization.fp4_quantize,
        flashinfer.quantization.fp4_quantization.fp4_quantize, flashinfer.fp4_quantize(input,
        global_scale=None,
        sf_vec_size=16, sf_use_ue8m0=False, is_sf_swizzled_layout=True, is_sf_8x4_layout=False,
        is_global_scale_inversed=False, enable_pdl=None, backend='cuda') -> Tuple[torch.Tensor,
        torch.Tensor]
    flashinfer.quantization.nvfp4_quantize,
        flashinfer.quantization.fp4_quantization.nvfp4_quantize, flashinfer.nvfp4_quantize(a,
        a_global_sf,
        sfLayout=SfLayout.layout_128x4, do_shuffle=False, sf_vec_size=16, enable_pdl=None,
        backend='cuda', per_token_activation=False, expanded_idx_to_permuted_idx=None)
    flashinfer.quantization.mxfp4_quantize,
        flashinfer.quantization.fp4_quantization.mxfp4_quantize, flashinfer.mxfp4_quantize(a,
        backend='cuda',
        enable_pdl=None, sfLayout=SfLayout.layout_128x4) -> Tuple[torch.Tensor, torch.Tensor]
    flashinfer.quantization.silu_and_mul_nvfp4_quantize,
        flashinfer.quantization.fp4_quantization.silu_and_mul_nvfp4_quantize,
        flashinfer.silu_and_mul_nvfp4_quantize(input, global_scale, sf_vec_size=16,
        is_sf_swizzled_layout=True, is_sf_8x4_layout=False,
        enable_pdl=None) -> Tuple[torch.Tensor, torch.Tensor]
    flashinfer.quantization.mxfp8_quantize,
        flashinfer.quantization.fp8_quantization.mxfp8_quantize, flashinfer.mxfp8_quantize(input,
        is_sf_swizzled_layout=True, alignment=32, enable_pdl=None, backend='cuda',
        sf_swizzle_layout=None) -> Tuple[torch.Tensor, torch.Tensor]
    flashinfer.quantization.mxfp8_grouped_quantize,
        flashinfer.quantization.fp8_quantization.mxfp8_grouped_quantize,
        flashinfer.mxfp8_grouped_quantize(a,
        mask) -> Tuple[torch.Tensor, torch.Tensor]
    flashinfer.quantization.per_token_group_quant_8bit,
        flashinfer.quantization.fp8_quantization.per_token_group_quant_8bit,
        flashinfer.per_token_group_quant_8bit(x,
        group_size, eps=1e-10, dst_dtype=None, column_major_scales=False,
        scale_tma_aligned=False, scale_ue8m0=False, backend='cutile') -> Tuple[torch.Tensor,
        torch.Tensor]
    """,
)
OPS += opaque(
    "quantize",
    UNPACK,
    _READ,
    """
    flashinfer.quantization.mxfp4_dequantize,
        flashinfer.quantization.fp4_quantization.mxfp4_dequantize,
        flashinfer.mxfp4_dequantize(a_fp4, a_sf,
        sfLayout=SfLayout.layout_128x4)
    flashinfer.quantization.e2m1_and_ufp8sf_scale_to_float,
        flashinfer.quantization.fp4_quantization.e2m1_and_ufp8sf_scale_to_float,
        flashinfer.e2m1_and_ufp8sf_scale_to_float(e2m1_tensor, ufp8_scale_tensor,
        global_scale_tensor=None, sf_vec_size=16, ufp8_type=1, is_sf_swizzled_layout=True,
        is_sf_8x4_layout=False) -> torch.Tensor
    """,
)
OPS += opaque(
    "sampling",
    FILTER,
    _READ,
    """
    flashinfer.sampling.top_p_renorm_probs, flashinfer.top_p_renorm_probs(probs, top_p,
        is_deterministic=False) -> torch.Tensor
    flashinfer.sampling.top_k_renorm_probs, flashinfer.top_k_renorm_probs(probs,
        top_k) -> torch.Tensor
    flashinfer.sampling.top_k_mask_logits, flashinfer.top_k_mask_logits(logits,
        top_k) -> torch.Tensor
    """,
)
OPS += opaque(
    "sampling",
    TOKENS,
    _READ,
    """
    flashinfer.sampling.sampling_from_logits, flashinfer.sampling_from_logits(logits,
        indices=None, deterministic=True, generator=None, check_nan=False, seed=None,
        offset=None) -> torch.Tensor
    flashinfer.sampling.sampling_from_probs, flashinfer.sampling_from_probs(probs, indices=None,
        deterministic=True, generator=None, check_nan=False, seed=None, offset=None,
        return_valid=False) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]
    flashinfer.sampling.top_p_sampling_from_probs, flashinfer.top_p_sampling_from_probs(probs,
        top_p, indices=None, deterministic=True, generator=None, check_nan=False, seed=None,
        offset=None, return_valid=False) -> Union[torch.Tensor, Tuple[torch.Tensor,
        torch.Tensor]]
    flashinfer.sampling.top_k_sampling_from_probs, flashinfer.top_k_sampling_from_probs(probs,
        top_k, indices=None, deterministic=True, generator=None, check_nan=False, seed=None,
        offset=None, return_valid=False) -> Union[torch.Tensor, Tuple[torch.Tensor,
        torch.Tensor]]
    flashinfer.sampling.min_p_sampling_from_probs, flashinfer.min_p_sampling_from_probs(probs,
        min_p, indices=None, deterministic=True, generator=None, check_nan=False, seed=None,
        offset=None, return_valid=False) -> Union[torch.Tensor, Tuple[torch.Tensor,
        torch.Tensor]]
    flashinfer.sampling.top_k_top_p_sampling_from_logits,
        flashinfer.top_k_top_p_sampling_from_logits(logits, top_k, top_p, indices=None,
        filter_apply_order='top_k_first', deterministic=True, generator=None, check_nan=False,
        seed=None, offset=None) -> torch.Tensor
    flashinfer.sampling.top_k_top_p_sampling_from_probs,
        flashinfer.top_k_top_p_sampling_from_probs(probs, top_k, top_p, indices=None,
        filter_apply_order='top_k_first', deterministic=True, generator=None, check_nan=False,
        seed=None, offset=None, return_valid=False) -> Union[torch.Tensor, Tuple[torch.Tensor,
        torch.Tensor]]
    flashinfer.sampling.chain_speculative_sampling,
        flashinfer.chain_speculative_sampling(draft_probs, draft_token_ids, target_probs,
        maybe_output_accepted_token_num=None, maybe_output_emitted_draft_token_num=None,
        deterministic=True, generator=None, seed=None, offset=None) -> torch.Tensor
    flashinfer.top_k,
        flashinfer.topk.top_k(input, k, sorted=False, deterministic=False,
        tie_break=TopKTieBreak.NONE,
        dsa_graph_safe=False) -> Tuple[torch.Tensor, torch.Tensor]
    """,
)
OPS += opaque(
    "matmul",
    TILED,
    _READ,
    """
    flashinfer.gemm.mm_fp8,
        flashinfer.gemm.gemm_base.mm_fp8, flashinfer.mm_fp8(a, b, alpha=None,
        out_dtype=torch.bfloat16,
        out=None, backend='trtllm_low_latency')
    """,
)
OPS += opaque(
    "matmul",
    MAJOR,
    _READ,
    """
    flashinfer.gemm.gemm_fp8_nt_groupwise,
        flashinfer.gemm.gemm_base.gemm_fp8_nt_groupwise, flashinfer.gemm_fp8_nt_groupwise(a, b,
        a_scale,
        b_scale, scale_major_mode=None, mma_sm=1, scale_granularity_mnk=(1, 128, 128), out=None,
        out_dtype=None, backend='cutlass') -> torch.Tensor
    flashinfer.gemm.gemm_fp8_nt_blockscaled,
        flashinfer.gemm.gemm_base.gemm_fp8_nt_blockscaled, flashinfer.gemm_fp8_nt_blockscaled(a, b,
        a_scale,
        b_scale, scale_major_mode='MN', mma_sm=1, out=None, out_dtype=None) -> torch.Tensor
    flashinfer.gemm.group_gemm_fp8_nt_groupwise,
        flashinfer.gemm.gemm_base.group_gemm_fp8_nt_groupwise,
        flashinfer.group_gemm_fp8_nt_groupwise(a, b,
        a_scale, b_scale, m_indptr, scale_granularity_mnk=(1, 128, 128), scale_major_mode='MN',
        mma_sm=1, out=None, out_dtype=None, backend='trtllm') -> torch.Tensor
    flashinfer.gemm.mm_mxfp8,
        flashinfer.gemm.gemm_base.mm_mxfp8, flashinfer.mm_mxfp8(a, b, a_descale, b_descale,
        out=None,
        out_dtype=torch.bfloat16, use_8x4_sf_layout=False, backend='auto') -> torch.Tensor
    flashinfer.gemm.bmm_mxfp8,
        flashinfer.gemm.gemm_base.bmm_mxfp8, flashinfer.bmm_mxfp8(A, B, A_scale, B_scale, dtype,
        out=None,
        backend='auto') -> torch.Tensor
    flashinfer.gemm.fp8_blockscale_gemm_sm90,
        flashinfer.gemm.gemm_base.fp8_blockscale_gemm_sm90,
        flashinfer.fp8_blockscale_gemm_sm90(input, weight,
        input_scale=None, weight_scale=None, out=None, out_dtype=None) -> torch.Tensor
    """,
)
OPS += opaque(
    "moe",
    MAJOR,
    _READ,
    """
    flashinfer.grouped_mm.grouped_mm_fp8,
        flashinfer.grouped_mm.core.grouped_mm_fp8, flashinfer.grouped_mm_fp8(a, b, m_indptr,
        alpha=None,
        out=None, out_dtype=torch.bfloat16, *, backend='cudnn', tactic=-1) -> torch.Tensor
    flashinfer.grouped_mm.grouped_mm_mxfp8,
        flashinfer.grouped_mm.core.grouped_mm_mxfp8, flashinfer.grouped_mm_mxfp8(a, b, a_descale,
        b_descale, m_indptr, out=None, out_dtype=torch.bfloat16, *, backend='cudnn',
        tactic=-1) -> torch.Tensor
    """,
)
OPS += opaque(
    "moe",
    OPTIONS,
    _READ,
    """
    flashinfer.fused_moe.cutlass_fused_moe,
        flashinfer.fused_moe.core.cutlass_fused_moe, flashinfer.cutlass_fused_moe(input,
        token_selected_experts, token_final_scales, fc1_expert_weights, fc2_expert_weights,
        output_dtype, quant_scales, fc1_expert_biases=None, fc2_expert_biases=None,
        input_sf=None, swiglu_alpha=None, swiglu_beta=None, swiglu_limit=None, tp_size=1,
        tp_rank=0, ep_size=1, ep_rank=0, cluster_size=1, cluster_rank=0, output=None,
        enable_alltoall=False, use_deepseek_fp8_block_scale=False, use_w4_group_scaling=False,
        use_mxfp8_act_scaling=False, min_latency_mode=False, use_packed_weights=False,
        use_wfp4afp8_humming=False, tune_max_num_tokens=8192, enable_pdl=None,
        activation_type=ActivationType.Swiglu, swizzled_input_sf=True, use_fused_finalize=True,
        profile_ids=None, workspace_buffer=None, *, situ_beta=None,
        situ_linear_beta=None) -> torch.Tensor
    """,
)
OPS += opaque(
    "moe",
    TILED,
    _READ,
    """
    flashinfer.fused_moe.trtllm_bf16_moe,
        flashinfer.fused_moe.core.trtllm_bf16_moe, flashinfer.trtllm_bf16_moe(routing_logits,
        routing_bias, hidden_states, gemm1_weights, gemm2_weights, num_experts, top_k, n_group,
        topk_group, intermediate_size, local_expert_offset, local_num_experts,
        routed_scaling_factor=None, routing_method_type=0, use_shuffled_weight=True,
        weight_layout=WeightLayout.BlockMajorK, do_finalize=True, enable_pdl=True,
        tune_max_num_tokens=8192, activation_type=ActivationType.Swiglu.value,
        norm_topk_prob=True, routing_replay_out=None, gemm1_alpha=None, gemm1_beta=None,
        gemm1_clamp_limit=None, output=None) -> Union[List[torch.Tensor], torch.Tensor]
    flashinfer.fused_moe.trtllm_bf16_routed_moe,
        flashinfer.fused_moe.core.trtllm_bf16_routed_moe,
        flashinfer.trtllm_bf16_routed_moe(topk_ids,
        hidden_states, gemm1_weights, gemm2_weights, num_experts, top_k, n_group, topk_group,
        intermediate_size, local_expert_offset, local_num_experts, routed_scaling_factor=None,
        routing_method_type=0, use_shuffled_weight=True, weight_layout=WeightLayout.BlockMajorK,
        do_finalize=True, enable_pdl=True, gemm1_lora_delta=None, tune_max_num_tokens=8192,
        activation_type=ActivationType.Swiglu.value, routing_replay_out=None, gemm1_alpha=None,
        gemm1_beta=None, gemm1_clamp_limit=None, output=None) -> Union[torch.Tensor,
        List[torch.Tensor]]
    flashinfer.fused_moe.trtllm_fp8_per_tensor_scale_moe,
        flashinfer.fused_moe.core.trtllm_fp8_per_tensor_scale_moe,
        flashinfer.trtllm_fp8_per_tensor_scale_moe(routing_logits, routing_bias, hidden_states,
        gemm1_weights, output1_scales_scalar, output1_scales_gate_scalar, gemm2_weights,
        output2_scales_scalar, num_experts, top_k, n_group, topk_group, intermediate_size,
        local_expert_offset, local_num_experts, routed_scaling_factor,
        use_routing_scales_on_input, routing_method_type=0, do_finalize=True, enable_pdl=None,
        tune_max_num_tokens=8192, activation_type=ActivationType.Swiglu.value,
        norm_topk_prob=True, routing_replay_out=None, output=None) -> Union[List[torch.Tensor],
        torch.Tensor]
    flashinfer.fused_moe.trtllm_fp8_block_scale_moe,
        flashinfer.fused_moe.core.trtllm_fp8_block_scale_moe,
        flashinfer.trtllm_fp8_block_scale_moe(routing_logits, routing_bias, hidden_states,
        hidden_states_scale, gemm1_weights, gemm1_weights_scale, gemm2_weights,
        gemm2_weights_scale, num_experts, top_k, n_group, topk_group, intermediate_size,
        local_expert_offset, local_num_experts, routed_scaling_factor, routing_method_type=0,
        use_shuffled_weight=False, weight_layout=0, do_finalize=True, enable_pdl=None,
        tune_max_num_tokens=8192, fp8_quantization_type=Fp8QuantizationType.DeepSeekFp8,
        num_fused_shared_experts=None, activation_type=ActivationType.Swiglu.value,
        norm_topk_prob=True, routing_replay_out=None, gemm1_alpha=None, gemm1_beta=None,
        gemm1_clamp_limit=None, output=None) -> Union[List[torch.Tensor], torch.Tensor]
    """,
)
OPS += opaque(
    "norm",
    BUFFER,
    _READ,
    """
    flashinfer.norm.layernorm_quant, flashinfer.layernorm_quant(out, input, gemma, beta, scale,
        eps=1e-06) -> None
    """,
)
OPS += opaque(
    "norm",
    UNDOCUMENTED,
    _READ,
    """
    flashinfer.norm.fused_dit_gate_residual_layernorm_gamma_beta,
        flashinfer.fused_dit_gate_residual_layernorm_gamma_beta(input, residual, gate, gamma,
        beta, *, gate_bias=None, epsilon=1e-06, use_nvfp4=False, use_mxfp8=False,
        global_scaling_factor=None, input_global_scaling_factor=None, residual_out=None,
        norm_out=None, sf_out=None) -> Tuple[torch.Tensor, torch.Tensor]
    flashinfer.norm.fused_dit_gate_residual_layernorm_scale_shift,
        flashinfer.fused_dit_gate_residual_layernorm_scale_shift(input, residual, gate, scale,
        shift, *, gate_bias=None, scale_bias=None, shift_bias=None, epsilon=1e-06,
        use_nvfp4=False, use_mxfp8=False, global_scaling_factor=None,
        input_global_scaling_factor=None, residual_out=None, norm_out=None,
        sf_out=None) -> Tuple[torch.Tensor, torch.Tensor]
    flashinfer.norm.fused_dit_residual_layernorm_scale_shift,
        flashinfer.fused_dit_residual_layernorm_scale_shift(input, scale, shift, *,
        residual=None, scale_bias=None, shift_bias=None, epsilon=1e-06, use_nvfp4=False,
        use_mxfp8=False, global_scaling_factor=None, input_global_scaling_factor=None,
        residual_out=None, norm_out=None, sf_out=None) -> Tuple[torch.Tensor, torch.Tensor]
    """,
)
OPS += opaque(
    "rope",
    UNDOCUMENTED,
    _READ,
    """
    flashinfer.norm.fused_qk_rmsnorm_rope, flashinfer.fused_qk_rmsnorm_rope(qkv, q_weight,
        k_weight, *, ppf, pph, ppw, num_frame_channels, num_height_channels, num_width_channels,
        num_heads_q, num_heads_k, num_heads_v, head_dim, eps=1e-06, base=10000.0,
        interleave=True, factor=1.0, low=0.0, high=0.0, attention_factor=1.0, is_qk_norm=True,
        output_fp8=False, output_quant_scale=1.0, v_quant_scale=1.0, q_out=None, k_out=None,
        v_out=None) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    """,
)
OPS += opaque(
    "rope",
    QUANTIZES,
    _READ,
    """
    flashinfer.rope.mla_rope_quantize_fp8, flashinfer.mla_rope_quantize_fp8(q_rope, k_rope,
        q_nope, k_nope, cos_sin_cache, pos_ids, is_neox=True, quantize_dtype=None,
        quant_scale_q=1.0, quant_scale_kv=1.0, q_rope_out=None, k_rope_out=None,
        q_nope_out=None, k_nope_out=None, enable_pdl=False) -> Tuple[torch.Tensor, torch.Tensor,
        torch.Tensor, torch.Tensor]
    flashinfer.rope.rope_quantize_fp8, flashinfer.rope_quantize_fp8(q_rope, k_rope, q_nope,
        k_nope, cos_sin_cache, pos_ids, is_neox=True, quantize_dtype=None, quant_scale_q=1.0,
        quant_scale_kv=1.0, q_rope_out=None, k_rope_out=None, q_nope_out=None, k_nope_out=None,
        enable_pdl=False, backend='cuda') -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor,
        torch.Tensor]
    flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache,
        flashinfer.rope_quantize_fp8_append_paged_kv_cache(q_rope, k_rope, q_nope, k_nope, v,
        cos_sin_cache, pos_ids, paged_kv_cache, kv_indices, kv_indptr, batch_indices, positions,
        is_neox=True, quantize_dtype=None, quant_scale_q=1.0, quant_scale_kv=1.0, page_size=16,
        kv_layout='NHD', q_rope_out=None, q_nope_out=None,
        enable_pdl=False) -> Tuple[torch.Tensor, torch.Tensor]
    """,
)
OPS += opaque(
    "attention",
    OPTIONS,
    _READ,
    """
    flashinfer.prefill.trtllm_batch_context_with_kv_cache,
        flashinfer.trtllm_batch_context_with_kv_cache(query, kv_cache, workspace_buffer,
        block_tables, seq_lens, max_q_len, max_kv_len, bmm1_scale, bmm2_scale, batch_size,
        cum_seq_lens_q, cum_seq_lens_kv, window_left=-1, out=None, out_dtype=None,
        o_sf_scale=None, o_sf_vec_size=None, kv_layout='HND', enable_pdl=None, sinks=None,
        kv_cache_sf=None, skip_softmax_threshold_scale_factor=None,
        uses_shared_paged_kv_idx=True, causal=True, lse=None, return_lse=False,
        multi_ctas_kv_counter_buffer=None, use_fp16_softmax=None,
        uses_spcompress=None) -> Union[torch.Tensor, FP4Tensor, Tuple[Union[torch.Tensor,
        FP4Tensor], torch.Tensor]]
    flashinfer.prefill.trtllm_ragged_attention_deepseek,
        flashinfer.trtllm_ragged_attention_deepseek(query, key, value, workspace_buffer,
        seq_lens, max_q_len, max_kv_len, bmm1_scale, bmm2_scale, o_sf_scale, batch_size,
        window_left, cum_seq_lens_q, cum_seq_lens_kv, enable_pdl, is_causal, return_lse,
        attention_sinks=None, skip_softmax_threshold_scale_factor=None, out=None, lse=None,
        sage_attn_sfs=(None, None, None, None), num_elts_per_sage_attn_blk=(0, 0, 0, 0),
        backend='trtllm-gen', q_seq_lens_cpu=None, kv_seq_lens_cpu=None, use_fp16_softmax=None,
        uses_spcompress=None) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]
    flashinfer.prefill.trtllm_fmha_v2_prefill, flashinfer.trtllm_fmha_v2_prefill(qkv,
        input_layout, workspace_buffer, seq_lens, max_q_len, max_kv_len, bmm1_scale, bmm2_scale,
        batch_size, cum_seq_lens_q, cum_seq_lens_kv, block_tables=None, out=None,
        out_dtype=None, sinks=None, pos_encoding_mode=None, logits_soft_cap_scale=None,
        mask_mode='causal', window_left=-1, chunked_attention_size=0, save_softmax_stats=False,
        skip_softmax_threshold_scale_factor=0) -> Union[torch.Tensor, Tuple[torch.Tensor,
        torch.Tensor]]
    flashinfer.prefill.fmha_v2_prefill_sm120, flashinfer.fmha_v2_prefill_sm120(query, key,
        value, out, num_heads, head_dim, seq_len, scale_softmax, scale_bmm1=None,
        scale_bmm2=None, causal=True, return_lse=False, lse=None, scale_bmm1_d=None,
        scale_bmm2_d=None) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]
    flashinfer.decode.trtllm_batch_decode_with_kv_cache,
        flashinfer.trtllm_batch_decode_with_kv_cache(query, kv_cache, workspace_buffer,
        block_tables, seq_lens, max_seq_len, bmm1_scale=1.0, bmm2_scale=1.0, window_left=-1,
        out=None, out_dtype=None, o_sf_scale=None, o_sf_vec_size=None, sinks=None,
        kv_layout='HND', enable_pdl=None, backend='auto', q_len_per_req=1, o_scale=1.0,
        mask=None, max_q_len=None, cum_seq_lens_q=None,
        skip_softmax_threshold_scale_factor=None, kv_cache_sf=None,
        uses_shared_paged_kv_idx=True, lse=None, return_lse=False, bmm1_scale_log2=None,
        multi_ctas_kv_counter_buffer=None, enable_block_sparse_attention=False,
        bf16q_fp8kv_transform_mode=None) -> Union[torch.Tensor, FP4Tensor,
        Tuple[Union[torch.Tensor, FP4Tensor], torch.Tensor]]
    flashinfer.decode.xqa_batch_decode_with_kv_cache,
        flashinfer.xqa_batch_decode_with_kv_cache(query, kv_cache, workspace_buffer,
        block_tables, seq_lens, max_seq_len, bmm1_scale=1.0, bmm2_scale=1.0, window_left=-1,
        out=None, sinks=None, kv_layout='NHD', enable_pdl=None, q_len_per_req=1, o_scale=1.0,
        mask=None, kv_cache_sf=None, q_cu_seq_lens=None) -> torch.Tensor
    flashinfer.mla.trtllm_batch_decode_with_kv_cache_mla,
        flashinfer.trtllm_batch_decode_with_kv_cache_mla(query, kv_cache, workspace_buffer,
        qk_nope_head_dim, kv_lora_rank, qk_rope_head_dim, block_tables, seq_lens, max_seq_len,
        sparse_mla_top_k=0, out=None, bmm1_scale=1.0, bmm2_scale=1.0, sinks=None,
        skip_softmax_threshold_scale_factor=None, enable_pdl=None, backend='auto',
        is_var_seq=True, uses_shared_paged_kv_idx=True, lse=None, return_lse=False,
        cute_dsl_impl='auto', kv_scale_format='auto', cum_seq_lens_q=None, max_q_len=None,
        multi_ctas_kv_counter_buffer=None, sparse_mla_top_k_lens=None, enable_dcp=False,
        cp_world=1, cp_rank=0, causal_seqlens_kv_global=None,
        use_fp16_softmax=None) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]
    flashinfer.mla.xqa_batch_decode_with_kv_cache_mla,
        flashinfer.xqa_batch_decode_with_kv_cache_mla(query, kv_cache, workspace_buffer,
        qk_nope_head_dim, kv_lora_rank, qk_rope_head_dim, block_tables, seq_lens, max_seq_len,
        out=None, bmm1_scale=1.0, bmm2_scale=1.0, sinks=None, enable_pdl=None) -> torch.Tensor
    """,
)
OPS += opaque(
    "state_space",
    STATES,
    _READ,
    """
    flashinfer.gdn_prefill.chunk_gated_delta_rule, flashinfer.chunk_gated_delta_rule(q, k, v,
        g=None, beta=None, scale=None, initial_state=None, output_final_state=False,
        cu_seqlens=None, use_qk_l2norm_in_kernel=False, output=None, output_state=None,
        state_checkpoints=None, checkpoint_cu_starts=None, checkpoint_every_n_tokens=0,
        use_cp='auto', state_indices=None, _cp_chunk_len=None) -> Union[torch.Tensor,
        Tuple[torch.Tensor, torch.Tensor]]
    flashinfer.gdn_decode.gated_delta_rule_decode, flashinfer.gated_delta_rule_decode(q, k, v,
        state, A_log, a, dt_bias, b, scale=None, output=None,
        use_qk_l2norm=True) -> Tuple[torch.Tensor, torch.Tensor]
    flashinfer.gdn_decode.gated_delta_rule_decode_pretranspose,
        flashinfer.gated_delta_rule_decode_pretranspose(q, k, v, state, A_log, a, dt_bias, b,
        scale=None, output=None, use_qk_l2norm=True, initial_state=None,
        initial_state_indices=None, output_state_indices=None) -> Tuple[torch.Tensor,
        torch.Tensor]
    flashinfer.gdn_decode.gated_delta_rule_mtp, flashinfer.gated_delta_rule_mtp(q, k, v,
        initial_state, initial_state_indices, A_log, a, dt_bias, b, scale=None, output=None,
        intermediate_states_buffer=None, ssm_state_indices=None, disable_state_update=None,
        use_qk_l2norm=True, output_state_indices=None) -> Tuple[torch.Tensor, torch.Tensor]
    flashinfer.kda.recurrent_kda, flashinfer.recurrent_kda(q, k, v, g, beta, A_log=None,
        dt_bias=None, scale=None, initial_state=None, output_final_state=False,
        use_qk_l2norm_in_kernel=True, use_gate_in_kernel=False, lower_bound=None,
        cu_seqlens=None, ssm_state_indices=None, num_spec_tokens=None, num_accepted_tokens=None,
        output=None, initial_state_source=None, initial_state_indices=None, beta_is_logit=False,
        seq_order=None, prefill_workspace=None, state_checkpoints=None,
        checkpoint_cu_starts=None, checkpoint_every_n_tokens=0, *,
        backend='auto') -> tuple[torch.Tensor, Optional[torch.Tensor]] | tuple[torch.Tensor,
        Optional[torch.Tensor], torch.Tensor]
    """,
)
