"""SGLang's own kernels: ``sglang/kernels`` of sglang 0.5.23; see also :mod:`.sgl_kernel`."""

from . import FusedOp, opaque
from .reasons import CONTEXT, LAYER, OPTIONS, RAISES, STEPS, WRITES

_READ = "sglang 0.5.23"
_ACTIVATION = "sglang/kernels/ops/activation/activation.py"
_ELEMENTWISE = "sglang/kernels/ops/elementwise/elementwise.py"
_ROPE = "sglang/kernels/ops/attention/rope.py"
_CONV_STATES = "each state of the pool must keep one step less than the weight is wide"
_MOE = (
    "Tensor? expert_ids=None, int expert_step=1, *, Tensor? sorted_token_ids=None, "
    "Tensor? num_tokens_post_padded=None, int num_valid_tokens=0"
)


def _gated(name: str, equivalent: str) -> FusedOp:
    return FusedOp(
        names=(f"sglang.kernels.ops.activation.activation.{name}",),
        schema=f"{name}(Tensor input, Tensor(a!)? out=None, {_MOE}) -> Tensor(a!)",
        equivalent=equivalent,
        source=_ACTIVATION,
        unsupported=("expert_ids", "sorted_token_ids", "num_tokens_post_padded"),
    )


def _dispatched(name: str, equivalent: str) -> FusedOp:
    """What calls the kernel above, or that of sgl_kernel, which computes the same."""
    return FusedOp(
        names=(f"sglang.srt.layers.activation.{name}",),
        schema=f"{name}(Tensor input, Tensor(a!)? out=None) -> Tensor(a!)",
        equivalent=equivalent,
        source="sglang/srt/layers/activation.py",
    )


OPS: tuple[FusedOp, ...] = (
    _dispatched("silu_and_mul", "silu_and_mul_fp32(input)"),
    _dispatched("gelu_and_mul", "gelu_and_mul_fp32(input)"),
    _dispatched("gelu_tanh_and_mul", "gelu_tanh_and_mul_fp32(input)"),
    _gated("silu_and_mul", "silu_and_mul_fp32(input)"),
    _gated("gelu_and_mul", "gelu_and_mul_fp32(input)"),
    _gated("gelu_tanh_and_mul", "gelu_tanh_and_mul_fp32(input)"),
    FusedOp(
        names=("sglang.kernels.ops.activation.activation.silu_and_mul_with_activation_rounding",),
        schema="silu_and_mul_with_activation_rounding(Tensor input, Tensor(a!)? out=None, *, "
        "float clamp_limit=0.0) -> Tensor(a!)",
        equivalent="silu_and_mul(input)",
        source=_ACTIVATION,
        unsupported=("clamp_limit",),
    ),
    FusedOp(
        names=("sglang.kernels.ops.activation.activation.gelu_and_mul_with_activation_rounding",),
        schema="gelu_and_mul_with_activation_rounding(Tensor input, Tensor(a!)? out=None)"
        " -> Tensor(a!)",
        equivalent="gelu_and_mul(input)",
        source=_ACTIVATION,
    ),
    FusedOp(
        names=("sglang.kernels.ops.activation.activation.relu2",),
        schema="relu2(Tensor input, Tensor(a!)? out=None, *, bool fast_math=True) -> Tensor(a!)",
        equivalent="relu_squared(input)",
        source=_ACTIVATION,
    ),
    FusedOp(
        names=("sglang.kernels.ops.activation.softcap.softcap_inplace_logits",),
        schema="softcap_inplace_logits(Tensor(a!) full_logits, float final_logit_softcapping)"
        " -> ()",
        equivalent="full_logits = soft_cap(full_logits, final_logit_softcapping)",
        source="sglang/kernels/ops/activation/softcap.py",
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.rope.rotary_embedding",),
        schema="rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!)? key, "
        "int head_size, Tensor cos_sin_cache, bool is_neox=True) -> ()",
        equivalent="query, key = "
        "rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)",
        source=_ROPE,
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.rope.apply_rope_inplace",),
        schema="apply_rope_inplace(Tensor(a!) q, Tensor(b!) k, Tensor cos_sin_cache, "
        "Tensor positions, *, bool is_neox, int rope_dim=0) -> ()",
        equivalent="q, k = rotary_embedding(positions, q, k, q.shape[-1], cos_sin_cache, is_neox)",
        source=_ROPE,
        unsupported=("rope_dim",),
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.rope.apply_rope_with_cos_sin_cache_inplace",),
        schema="apply_rope_with_cos_sin_cache_inplace(Tensor(a!) q, Tensor(b!) k, "
        "Tensor cos_sin_cache, Tensor positions, *, bool is_neox, int rope_dim=0, "
        "Any fused_args=None) -> ()",
        equivalent="q, k = rotary_embedding(positions, q, k, q.shape[-1], cos_sin_cache, is_neox)",
        source=_ROPE,
        unsupported=("rope_dim", "fused_args"),
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.rotary_triton.triton_mrope_fused",),
        schema="triton_mrope_fused(Tensor(a!) q, Tensor(b!) k, Tensor cos_sin_cache, "
        "Tensor positions, int[] mrope_section, int head_size, int rotary_dim, "
        "bool mrope_interleaved, bool mrope_interleaved_glm, bool is_neox_style, "
        "Tensor? axis_map) -> ()",
        equivalent="q, k = multimodal_rotary_embedding(positions, q, k, head_size, "
        "cos_sin_cache, mrope_section, mrope_interleaved, is_neox_style, mrope_interleaved_glm, "
        "axis_map)",
        source="sglang/kernels/ops/attention/rotary_triton.py",
        codes=("axis_map",),
    ),
    FusedOp(
        names=("sglang.kernels.ops.layernorm.fused_rmsnorm.fused_rmsnorm",),
        schema="fused_rmsnorm(Tensor x, Tensor weight, float eps, bool inplace=False) -> Tensor",
        equivalent="rms_norm(x, weight, eps)",
        source="sglang/kernels/ops/layernorm/fused_rmsnorm.py",
        unsupported=("inplace",),
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.fla.l2norm.l2norm",),
        schema="l2norm(Tensor x, float eps=1e-6, Any output_dtype=None) -> Tensor",
        equivalent="l2_norm(x, eps)",
        source="sglang/kernels/ops/attention/fla/l2norm.py",
        unsupported=("output_dtype",),
    ),
    FusedOp(
        names=(
            "sglang.kernels.ops.attention.fused_qk_rmsnorm_rope_gate"
            ".fused_qk_gemma_rmsnorm_rope_gate",
        ),
        schema="fused_qk_gemma_rmsnorm_rope_gate(Tensor q_gate, Tensor k, Tensor q_weight, "
        "Tensor k_weight, Tensor cos_sin_cache, Tensor positions, float eps, int num_q_heads, "
        "int num_kv_heads, int head_dim, int rotary_dim, bool has_gate=True, "
        "Tensor? mrope_axis_map=None) -> (Tensor, Tensor, Tensor?)",
        equivalent="gated_qk_norm_rope(q_gate, k, q_weight, k_weight, cos_sin_cache, positions, "
        "eps, head_dim, 1.0)",
        source="sglang/kernels/ops/attention/fused_qk_rmsnorm_rope_gate.py",
        unsupported=("has_gate", "mrope_axis_map"),
    ),
    FusedOp(
        names=("sglang.srt.models.utils.fused_qk_gemma_rmsnorm",),
        schema="fused_qk_gemma_rmsnorm(Tensor q, Tensor k, Tensor q_weight, Tensor k_weight, "
        "float eps, int head_dim) -> (Tensor, Tensor)",
        equivalent="gemma_norm_of_heads(q, k, q_weight, k_weight, eps, head_dim)",
        source="sglang/srt/models/utils.py",
    ),
    FusedOp(
        names=("sglang.srt.models.utils.fused_qk_gemma_rmsnorm_with_gate",),
        schema="fused_qk_gemma_rmsnorm_with_gate(Tensor q_gate, Tensor k, Tensor q_weight, "
        "Tensor k_weight, float eps, int head_dim, int num_heads) -> (Tensor, Tensor, Tensor)",
        equivalent="gemma_norm_of_gated_heads(q_gate, k, q_weight, k_weight, eps, head_dim)",
        source="sglang/srt/models/utils.py",
    ),
    FusedOp(
        names=(
            "sglang.kernels.ops.layernorm.norm.fused_inplace_qknorm",
            "sglang.srt.models.utils.fused_inplace_qknorm",
        ),
        schema="fused_inplace_qknorm(Tensor(a!) q, Tensor(b!) k, Tensor q_weight, "
        "Tensor k_weight, float eps=1e-6, *, int head_dim=0) -> ()",
        equivalent="q, k = qk_rms_norm(q, k, q_weight, k_weight, eps)",
        source="sglang/kernels/jit/csrc/elementwise/qknorm.cuh",
    ),
    FusedOp(
        names=("sglang.kernels.ops.layernorm.fused_eh_norm.fused_eh_norm",),
        schema="fused_eh_norm(Tensor inputs_embeds, Tensor previous_hidden, Tensor enorm_weight, "
        "Tensor hnorm_weight, float eps) -> Tensor",
        equivalent="joined_norms(inputs_embeds, previous_hidden, enorm_weight, hnorm_weight, eps)",
        source="sglang/kernels/jit/csrc/elementwise/fused_eh_norm.cuh",
    ),
    FusedOp(
        names=("sglang.kernels.ops.elementwise.elementwise.fused_sigmoid_mul",),
        schema="fused_sigmoid_mul(Tensor attn_output, Tensor gate, bool inplace=False, "
        "bool quant=False) -> Tensor",
        equivalent="sigmoid_gated(attn_output, gate)",
        source=_ELEMENTWISE,
        unsupported=("inplace", "quant"),
    ),
    FusedOp(
        names=("sglang.kernels.ops.elementwise.elementwise.sigmoid_gate_mul_broadcast",),
        schema="sigmoid_gate_mul_broadcast(Tensor x, Tensor gate) -> Tensor",
        equivalent="sigmoid_gated(x, gate)",
        source=_ELEMENTWISE,
    ),
    FusedOp(
        names=("sglang.kernels.ops.elementwise.elementwise.fused_gate_sigmoid_mul",),
        schema="fused_gate_sigmoid_mul(Tensor hidden_states, Tensor gate_weight, "
        "Tensor shared_output) -> Tensor",
        equivalent="gated_by_projection(hidden_states, gate_weight, shared_output)",
        source=_ELEMENTWISE,
    ),
    FusedOp(
        names=("sglang.kernels.ops.elementwise.elementwise.fused_gate_sigmoid_mul_add",),
        schema="fused_gate_sigmoid_mul_add(Tensor hidden_states, Tensor gate_weight, "
        "Tensor shared_output, Tensor(a!) final_hidden_states) -> ()",
        equivalent="final_hidden_states = gated_by_projection(hidden_states, gate_weight, "
        "shared_output, final_hidden_states)",
        source=_ELEMENTWISE,
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.concat_mla.concat_mla_k",),
        schema="concat_mla_k(Tensor(a!) k, Tensor k_nope, Tensor k_rope) -> ()",
        equivalent="k = torch.cat((k_nope, k_rope.expand(-1, k_nope.shape[1], -1)), dim=-1)",
        source="sglang/kernels/ops/attention/concat_mla.py",
        family="attention",
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.concat_mla.concat_mla_absorb_q",),
        schema="concat_mla_absorb_q(Tensor a, Tensor b) -> Tensor",
        equivalent="torch.cat((a, b), dim=-1)",
        source="sglang/kernels/ops/attention/concat_mla.py",
        family="attention",
    ),
    FusedOp(
        names=("sglang.kernels.ops.moe.moe_fused_gate.moe_fused_gate",),
        schema="moe_fused_gate(Tensor scores, Tensor? bias, int topk, str scoring_func='sigmoid', "
        "int num_fused_shared_experts=0, bool renormalize=True, float routed_scaling_factor=1.0, "
        "bool apply_routed_scaling_factor_on_output=False, float moe_softcapping=0.0, "
        "int num_expert_group=1, int topk_group=1, *, Tensor? bias_alt=None, "
        "Tensor? input_ids=None, int? bias_alt_token_id=None, "
        "Tensor? num_token_non_padded=None, float renormalize_epsilon=0.0, "
        "Tensor? packed_out=None, bool sqrtsoftplus_log1p=False) -> (Tensor, Tensor)",
        equivalent="grouped_topk(scores, topk, renormalize, num_expert_group, topk_group, "
        "'sigmoid', routed_scaling_factor if apply_routed_scaling_factor_on_output else 1.0, "
        "bias, 2)",
        source="sglang/kernels/ops/moe/moe_fused_gate.py",
        unsupported=(
            "scoring_func",
            "num_fused_shared_experts",
            "moe_softcapping",
            "bias_alt",
            "num_token_non_padded",
            "renormalize_epsilon",
            "packed_out",
        ),
    ),
    FusedOp(
        names=("sglang.kernels.ops.mamba.causal_conv1d_triton.causal_conv1d_fn",),
        schema="causal_conv1d_fn(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) conv_states, "
        "Tensor query_start_loc, int[] seq_lens_cpu, Tensor? cache_indices=None, "
        "Tensor? has_initial_state=None, str? activation='silu', int pad_slot_id=-1, "
        "bool validate_data=False, Tensor? block_table=None) -> Tensor",
        equivalent="_, conv_states = causal_conv1d_packed(x, weight, bias, conv_states, "
        "query_start_loc, cache_indices, has_initial_state, activation, pad_slot_id)",
        source="sglang/kernels/ops/mamba/causal_conv1d_triton.py",
        unsupported=("block_table",),
        look_at=_CONV_STATES,
    ),
    FusedOp(
        names=("sglang.kernels.ops.mamba.causal_conv1d_triton.causal_conv1d_update",),
        schema="causal_conv1d_update(Tensor x, Tensor(a!) conv_state, Tensor weight, "
        "Tensor? bias=None, str? activation=None, Tensor? cache_seqlens=None, "
        "Tensor? conv_state_indices=None, Tensor? num_accept_tokens=None, "
        "Tensor? intermediate_conv_window=None, Tensor? intermediate_state_indices=None, "
        "Tensor? retrieve_next_token=None, Tensor? retrieve_next_sibling=None, "
        "Tensor? retrieve_parent_token=None, int pad_slot_id=-1, Any metadata=None, "
        "bool validate_data=False) -> Tensor",
        equivalent="_, conv_state = causal_conv1d_slots(x, conv_state, weight, bias, "
        "activation or None, conv_state_indices, pad_slot_id)",
        source="sglang/kernels/ops/mamba/causal_conv1d_triton.py",
        unsupported=(
            "cache_seqlens",
            "num_accept_tokens",
            "intermediate_conv_window",
            "retrieve_next_token",
            "retrieve_next_sibling",
            "retrieve_parent_token",
        ),
        look_at=_CONV_STATES,
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.linear.fused_gdn_gating.fused_gdn_gating",),
        schema="fused_gdn_gating(Tensor A_log, Tensor a, Tensor b, Tensor dt_bias, "
        "float beta=1.0, float threshold=20.0) -> (Tensor, Tensor)",
        equivalent="delta_rule_gates(A_log, a, b, dt_bias, beta, threshold)",
        source="sglang/kernels/ops/attention/linear/fused_gdn_gating.py",
    ),
    FusedOp(
        names=(
            "sglang.kernels.ops.attention.fla.fused_norm_gate.rms_norm_gated",
            "sglang.kernels.ops.attention.fla.kda.rms_norm_gated",
        ),
        schema="rms_norm_gated(Tensor x, Tensor g, Tensor weight, Tensor? bias, "
        "str activation='swish', Tensor? residual=None, bool prenorm=False, "
        "bool residual_in_fp32=False, float eps=1e-6) -> Tensor",
        equivalent="gated_rms_norm(x, g, weight, eps)",
        source="sglang/kernels/ops/attention/fla/fused_norm_gate.py",
        unsupported=("bias", "activation", "residual", "prenorm"),
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.prefill_attention.context_attention_fwd",),
        schema="context_attention_fwd(Tensor q, Tensor k, Tensor v, Tensor(a!) o, "
        "Tensor b_start_loc, Tensor b_seq_len, int max_input_len, bool is_causal=True, "
        "float? sm_scale=None) -> ()",
        equivalent="o = prefill_attention(q, k, v, b_seq_len, sm_scale, is_causal)",
        source="sglang/kernels/ops/attention/prefill_attention.py",
    ),
    FusedOp(
        names=("sglang.kernels.ops.activation.bias_gelu.bias_gelu_tanh",),
        schema="bias_gelu_tanh(Tensor input, Tensor bias) -> Tensor",
        equivalent="F.gelu(input + bias, approximate='tanh')",
        source="sglang/kernels/ops/activation/bias_gelu.py",
        family="activation",
    ),
    FusedOp(
        names=("sglang.kernels.ops.activation.silu_and_mul_clamp.silu_and_mul_clamp",),
        schema="silu_and_mul_clamp(Tensor input, Tensor(a!) output, float swiglu_limit) -> ()",
        equivalent="output = clamped_swiglu(input, swiglu_limit)",
        source="sglang/kernels/ops/activation/silu_and_mul_clamp.py",
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.merge_state.merge_state_triton",),
        schema="merge_state_triton(Tensor prefix_output, Tensor prefix_lse, "
        "Tensor suffix_output, Tensor suffix_lse, Tensor? output=None, "
        "Tensor? output_lse=None) -> (Tensor, Tensor)",
        equivalent="merge_natural(prefix_output, prefix_lse, suffix_output, suffix_lse)",
        source="sglang/kernels/ops/attention/merge_state.py",
        unsupported=(
            "output",
            "output_lse",
        ),
    ),
    FusedOp(
        names=("sglang.kernels.ops.embeddings.vocab_parallel_embedding.vocab_parallel_embedding",),
        schema="vocab_parallel_embedding(Tensor input_, Tensor weight, "
        "int org_vocab_start_index, int org_vocab_end_index, "
        "int num_org_vocab_padding, int added_vocab_start_index, "
        "int added_vocab_end_index) -> Tensor",
        equivalent="vocab_parallel_embedding(input_, weight, org_vocab_start_index, "
        "org_vocab_end_index, num_org_vocab_padding, added_vocab_start_index, "
        "added_vocab_end_index)",
        source="sglang/kernels/ops/embeddings/vocab_parallel_embedding.py",
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.fla.layernorm_gated.rms_norm_gated",),
        schema="rms_norm_gated(*, Tensor x, Tensor weight, Tensor? bias, Tensor? z=None, "
        "float eps=1e-6, int? group_size=None, bool norm_before_gate=True, "
        "bool is_rms_norm=True, str activation='swish') -> Tensor",
        equivalent="gated_rms_norm(x, z, weight, eps)",
        source="sglang/kernels/ops/attention/fla/layernorm_gated.py",
        unsupported=(
            "bias",
            "group_size",
            "norm_before_gate",
            "is_rms_norm",
            "activation",
        ),
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.fused_qknorm_rope.fused_qk_norm_rope",),
        schema="fused_qk_norm_rope(Tensor(a!) qkv, int num_heads_q, int num_heads_k, int "
        "num_heads_v, int head_dim, float eps, Tensor q_weight, Tensor k_weight, float base, "
        "bool is_neox, Tensor position_ids, float factor, float low, float high, float "
        "attention_factor, int? rotary_dim=None) -> ()",
        equivalent="qkv = yarn_qk_norm_rope(qkv, num_heads_q, num_heads_k, num_heads_v, head_dim, "
        "eps, q_weight, k_weight, base, is_neox, position_ids, factor, low, high, "
        "attention_factor, rotary_dim)",
        source="sglang/kernels/ops/attention/fused_qknorm_rope.py",
    ),
    FusedOp(
        names=("sglang.kernels.ops.layernorm.fused_rmsnorm.fused_dual_residual_rmsnorm",),
        schema="fused_dual_residual_rmsnorm(Tensor x, Tensor residual, Tensor weight1, Tensor "
        "weight2, float eps, bool autotune=False) -> (Tensor, Tensor)",
        equivalent="dual_residual_rms_norm(x, residual, weight1, weight2, eps)",
        source="sglang/kernels/ops/layernorm/fused_rmsnorm.py",
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.decode_attention.decode_attention_fwd",),
        schema="decode_attention_fwd(Tensor q, Tensor k_buffer, Tensor v_buffer, Tensor(a!) o, "
        "Tensor kv_indptr, Tensor kv_indices, Tensor attn_logits, Tensor attn_lse, Tensor "
        "num_kv_splits, int max_kv_splits, float sm_scale, float? k_scale, float? v_scale, float "
        "logit_cap=0.0, Tensor? sinks=None, int xai_temperature_len=-1, bool has_mla=False, bool "
        "use_pdl=False, int page_size=1, Any score_mod=None, Any aux_tensors=None, Any "
        "enable_lean=None, Any lean_Mp=None, Any lean_Lp=None, Any lean_Op=None, Any "
        "lean_locks=None, Any uneven_batch=None) -> ()",
        equivalent="o = indexed_decode(q, k_buffer, v_buffer, kv_indptr, kv_indices, sm_scale, "
        "logit_cap, sinks)",
        source="sglang/kernels/ops/attention/decode_attention.py",
        unsupported=(
            "k_scale",
            "v_scale",
            "xai_temperature_len",
            "page_size",
            "score_mod",
            "aux_tensors",
        ),
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.extend_attention.extend_attention_fwd",),
        schema="extend_attention_fwd(Tensor q_extend, Tensor k_extend, Tensor v_extend, "
        "Tensor(a!) o_extend, Tensor k_buffer, Tensor v_buffer, Tensor qo_indptr, Tensor "
        "kv_indptr, Tensor kv_indices, Tensor? custom_mask, bool is_causal, Tensor? mask_indptr, "
        "int max_len_extend, float? k_scale, float? v_scale, float? sm_scale=None, float "
        "logit_cap=0.0, bool skip_prefix_custom_mask=True, int sliding_window_size=-1, Tensor? "
        "sinks=None, Tensor? window_kv_offsets=None, int xai_temperature_len=-1, Tensor? "
        "lse_extend=None, bool skip_prefix=False, bool skip_extend=False, int page_size=1, Any "
        "score_mod=None, Any aux_tensors=None, Any extend_seq_lens_cpu=None, bool "
        "identity_kv_indices=False) -> ()",
        equivalent="o_extend = extended_attention(q_extend, k_extend, v_extend, k_buffer, "
        "v_buffer, qo_indptr, kv_indptr, kv_indices, is_causal, sm_scale, logit_cap, sinks)",
        source="sglang/kernels/ops/attention/extend_attention.py",
        unsupported=(
            "custom_mask",
            "k_scale",
            "v_scale",
            "sliding_window_size",
            "window_kv_offsets",
            "xai_temperature_len",
            "lse_extend",
            "skip_prefix",
            "skip_extend",
            "page_size",
            "score_mod",
            "aux_tensors",
            "identity_kv_indices",
        ),
    ),
)

# Without an equivalent.
OPS += opaque(
    "attention",
    LAYER,
    _READ,
    """
    sglang.srt.layers.radix_attention.RadixAttention(q, k, v, forward_batch, save_kv_cache=True,
        key_value_num_tokens=None, **kwargs)
    """,
)
OPS += opaque(
    "attention",
    CONTEXT,
    _READ,
    """
    torch.ops.sglang.unified_attention_with_output,
        sglang.srt.layers.radix_attention.unified_attention_with_output
    """,
)
OPS += opaque(
    "attention",
    RAISES,
    _READ,
    """
    sglang.kernels.ops.attention.flash_attn.cute.interface.flash_attn_func(q, k, v, qv=None,
        gather_kv_indices=None, softmax_scale=None, causal=False, window_size=(None, None),
        learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
        score_mod=None, score_mod_bwd=None, mask_mod=None, aux_tensors=None, aux_scalars=None,
        block_sparse_tensors=None, block_sparse_tensors_bwd=None, return_lse=False)
    sglang.kernels.ops.attention.flash_attn.cute.interface.flash_attn_varlen_func(q, k, v,
        qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
        min_seqlen_k=None, seqused_q=None, seqused_k=None, gather_kv_indices=None,
        page_table=None, softmax_scale=None, causal=False, window_size=(None, None),
        learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
        score_mod=None, score_mod_bwd=None, mask_mod=None, block_sparse_tensors=None,
        aux_tensors=None, aux_scalars=None, q_descale=None, k_descale=None, v_descale=None,
        rel_bias=None, sfq=None, sfk=None, sfv=None, qk_sf_vec_size=None, v_sf_vec_size=None,
        rel_bias_prep_cache=None, return_lse=False, out=None)
    """,
)
OPS += opaque(
    "norm",
    LAYER,
    _READ,
    """
    sglang.srt.layers.layernorm.RMSNorm(x, residual=None, post_residual_addition=None,
        quant_linear=None) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]
    sglang.srt.layers.layernorm.GemmaRMSNorm(x, residual=None,
        post_residual_addition=None) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]
    """,
)
OPS += opaque(
    "norm",
    RAISES,
    _READ,
    """
    sglang.kernels.ops.attention.fla.layernorm_gated.layernorm_fn,
        sglang.srt.layers.attention.fla.layernorm_gated.layernorm_fn(x, weight, bias, z=None,
        eps=1e-06, group_size=None, norm_before_gate=True, is_rms_norm=False,
        activation='swish')
    """,
)
OPS += opaque(
    "state_space",
    RAISES,
    _READ,
    """
    sglang.kernels.ops.attention.fla.chunk.chunk_gated_delta_rule,
        sglang.srt.layers.attention.fla.chunk.chunk_gated_delta_rule(q, k, v, g, beta, scale=None,
        initial_state=None, initial_state_indices=None, cu_seqlens=None, head_first=False,
        use_qk_l2norm_in_kernel=False, inplace_update=True)
    sglang.kernels.ops.attention.fla.fused_recurrent.fused_recurrent_gated_delta_rule,
        sglang.srt.layers.attention.fla.fused_recurrent.fused_recurrent_gated_delta_rule(q, k, v,
        g, beta=None, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None,
        use_qk_l2norm_in_kernel=False) -> Tuple[torch.Tensor, torch.Tensor]
    sglang.kernels.ops.attention.fla.fused_recurrent.fused_recurrent_gated_delta_rule_update,
        sglang.srt.layers.attention.fla.fused_recurrent.fused_recurrent_gated_delta_rule_update(q,
        k, v, g, beta=None, scale=None, initial_state_source=None, initial_state_indices=None,
        cu_seqlens=None, use_qk_l2norm_in_kernel=False, disable_state_update=False,
        disable_output_calculation=False, intermediate_states_buffer=None,
        intermediate_state_indices=None, cache_steps=None,
        retrieve_parent_token=None) -> torch.Tensor
    sglang.kernels.ops.attention.linear.lightning_attn.lightning_attention(q, k, v, ed,
        block_size=256, kv_history=None)
    """,
)
OPS += opaque(
    "rope",
    WRITES,
    _READ,
    """
    sglang.kernels.ops.attention.rope.apply_rope_inplace_with_kvcache(q, k, v, k_cache, v_cache,
        cos_sin_cache, positions, out_loc, *, is_neox, rope_dim=0) -> None
    """,
)
OPS += opaque(
    "moe",
    OPTIONS,
    _READ,
    """
    sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe.fused_experts,
        sglang.srt.layers.moe.moe_runner.triton_utils.fused_experts,
        sglang.srt.layers.moe.fused_moe_triton.fused_experts,
        sglang.srt.layers.moe.fused_moe_triton.fused_moe.fused_experts(hidden_states, w1, w2,
        topk_output, moe_runner_config, b1=None, b2=None, use_fp8_w8a8=False,
        use_int8_w8a8=False, use_int8_w8a16=False, use_int4_w4a16=False,
        per_channel_quant=False, w1_scale=None, w2_scale=None, w1_zp=None, w2_zp=None,
        a1_scale=None, a2_scale=None, block_shape=None, a1_q=None,
        fuse_swiglu_interleaved=False)
    sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe.fused_moe,
        sglang.srt.layers.moe.fused_moe_triton.fused_moe,
        sglang.srt.layers.moe.fused_moe_triton.fused_moe.fused_moe
    sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe.inplace_fused_experts,
        torch.ops.sglang.inplace_fused_experts
    sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe.outplace_fused_experts,
        torch.ops.sglang.outplace_fused_experts
    """,
)
OPS += opaque(
    "state_space",
    STEPS,
    _READ,
    """
    sglang.kernels.ops.attention.fla.fused_recurrent.fused_recurrent_gated_delta_rule_packed_decode(
        mixed_qkv, a, b, A_log, dt_bias, scale, initial_state, out, ssm_state_indices,
        use_qk_l2norm_in_kernel=False)
    sglang.kernels.ops.attention.fla.fused_recurrent.fused_recurrent_kda_packed_decode
    sglang.kernels.ops.attention.fla.kda.fused_recurrent_kda(q, k, v, g, beta=None, scale=None,
        initial_state=None, inplace_final_state=True, use_qk_l2norm_in_kernel=True,
        cu_seqlens=None)
    sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent.fused_sigmoid_gating_delta_rule_update
    """,
)
