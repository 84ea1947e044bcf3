"""flashinfer: ``flashinfer/`` at fb28d7242b35.

Calls go through tvm-ffi, which no dispatcher sees.  Norms and activations compute in float32 and
round once.  ``out`` is written where it is given, and returned.
"""

from . import FusedOp

_NORM = "flashinfer/norm/__init__.py"
_ACTIVATION = "flashinfer/activation.py"
_ROPE = "flashinfer/rope.py"

_ANGLES = "int? rotary_dim=None, bool interleave=False, float rope_scale=1, float rope_theta=1e4"
_LLAMA31_ANGLES = (
    "int? rotary_dim=None, bool interleave=False, float rope_scale=8, float rope_theta=5e5, "
    "float low_freq_factor=1, float high_freq_factor=4, float old_context_len=8192"
)

OPS = (
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
)
