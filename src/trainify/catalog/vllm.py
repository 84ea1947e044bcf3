"""vLLM's CUDA ops: vllm-project/vllm, ``csrc/`` and ``vllm/_custom_ops.py``.

The ops write into their first argument, or rotate and add in place.  Until 0.19 norms and the
rotary op rounded step by step; since 0.20 both compute in float32 and round once, but for the norms
of 0.23.0, where the change was taken back.  The sources of 0.16.0, 0.19.1, 0.20.0, 0.20.2, 0.21.0,
0.22.0, 0.22.1, 0.23.0, 0.24.0, 0.25.1, 0.26.0, 0.28.0, 0.30.0 and 0.33.0 say so.  The pybind module
``vllm._C.ops`` is gone since 0.5, so its names stand in the old rows only.
"""

from . import FusedOp

_NEW = "csrc/torch_bindings.cpp, vllm 0.33.0"
_OLD = "schema strings of _C.abi3.so, vllm 0.8.5.post1"
_PYBIND = "csrc/pybind.cpp, vllm 0.2.7"

# What the attention kernels take and the reference does not compute.
_NO_PAGED = ("alibi_slopes", "blocksparse_vert_stride")

OPS = (
    # Norms.
    FusedOp(
        names=("vllm._custom_ops.rms_norm", "torch.ops._C.rms_norm"),
        schema="rms_norm(Tensor(a!) out, Tensor input, Tensor? weight, float epsilon) -> ()",
        equivalent="out = rms_norm(input, weight, epsilon)",
        source=_NEW,
        since="vllm>=0.20,!=0.23.0",
    ),
    FusedOp(
        names=(
            "vllm._custom_ops.rms_norm",
            "torch.ops._C.rms_norm",
            "vllm._C.ops.rms_norm",
            "vllm.layernorm_ops.rms_norm",
        ),
        schema="rms_norm(Tensor(a!) out, Tensor input, Tensor weight, float epsilon) -> ()",
        equivalent="out = rms_norm_llama(input, weight, epsilon)",
        source=_OLD,
        since="vllm<0.20",
    ),
    FusedOp(
        names=("vllm._custom_ops.rms_norm", "torch.ops._C.rms_norm"),
        schema="rms_norm(Tensor(a!) out, Tensor input, Tensor weight, float epsilon) -> ()",
        equivalent="out = rms_norm_llama(input, weight, epsilon)",
        source="csrc/libtorch_stable/layernorm_kernels.cu, vllm 0.23.0",
        since="vllm==0.23.0",
    ),
    FusedOp(
        names=("vllm._custom_ops.fused_add_rms_norm", "torch.ops._C.fused_add_rms_norm"),
        schema="fused_add_rms_norm(Tensor(a!) input, Tensor(b!) residual, Tensor? weight, "
        "float epsilon) -> ()",
        equivalent="input, residual = fused_add_rms_norm(input, residual, weight, epsilon)",
        source=_NEW,
        since="vllm>=0.20,!=0.23.0",
    ),
    FusedOp(
        names=(
            "vllm._custom_ops.fused_add_rms_norm",
            "torch.ops._C.fused_add_rms_norm",
            "vllm._C.ops.fused_add_rms_norm",
        ),
        schema="fused_add_rms_norm(Tensor(a!) input, Tensor(b!) residual, Tensor weight, "
        "float epsilon) -> ()",
        equivalent="input, residual = fused_add_rms_norm_llama(input, residual, weight, epsilon)",
        source=_OLD,
        since="vllm<0.20",
    ),
    FusedOp(
        names=("vllm._custom_ops.fused_add_rms_norm", "torch.ops._C.fused_add_rms_norm"),
        schema="fused_add_rms_norm(Tensor(a!) input, Tensor(b!) residual, Tensor weight, "
        "float epsilon) -> ()",
        equivalent="input, residual = fused_add_rms_norm_llama(input, residual, weight, epsilon)",
        source="csrc/libtorch_stable/layernorm_kernels.cu, vllm 0.23.0",
        since="vllm==0.23.0",
    ),
    FusedOp(
        names=("vllm.ir.ops.rms_norm", "torch.ops.vllm_ir.rms_norm"),
        schema="rms_norm(Tensor x, Tensor weight, float epsilon, int? variance_size=None)"
        " -> Tensor",
        equivalent="rms_norm_weight_dtype(x, weight, epsilon)",
        source="vllm/ir/ops/layernorm.py, vllm 0.33.0",
        unsupported=("variance_size",),
    ),
    FusedOp(
        names=(
            "vllm.ir.ops.fused_add_rms_norm",
            "torch.ops.vllm_ir.fused_add_rms_norm",
            "vllm.ir.ops.fused_add_rms_norm.maybe_inplace",
        ),
        schema="fused_add_rms_norm(Tensor x, Tensor x_residual, Tensor weight, float epsilon, "
        "int? variance_size=None) -> (Tensor, Tensor)",
        equivalent="fused_add_rms_norm_weight_dtype(x, x_residual, weight, epsilon)",
        source="vllm/ir/ops/layernorm.py, vllm 0.33.0",
        unsupported=("variance_size",),
    ),
    # Rotary embeddings.
    FusedOp(
        names=("vllm._custom_ops.rotary_embedding", "torch.ops._C.rotary_embedding"),
        schema="rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!)? key, "
        "int head_size, Tensor cos_sin_cache, bool is_neox, int rope_dim_offset=0, "
        "bool inverse=False) -> ()",
        equivalent="query, key = "
        "rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)",
        source=_NEW,
        since="vllm>=0.20",
        unsupported=("rope_dim_offset", "inverse"),
    ),
    FusedOp(
        names=(
            "vllm._custom_ops.rotary_embedding",
            "torch.ops._C.rotary_embedding",
            "vllm._C.ops.rotary_embedding",
        ),
        schema="rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!) key, "
        "int head_size, Tensor cos_sin_cache, bool is_neox) -> ()",
        equivalent="query, key = "
        "rotary_embedding_rounded(positions, query, key, head_size, cos_sin_cache, is_neox)",
        source=_OLD,
        since="vllm<0.20",
    ),
    FusedOp(
        names=(
            "vllm._custom_ops.batched_rotary_embedding",
            "torch.ops._C.batched_rotary_embedding",
            "vllm._C.ops.batched_rotary_embedding",
        ),
        schema="batched_rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!) key, "
        "int head_size, Tensor cos_sin_cache, bool is_neox, int rot_dim, "
        "Tensor cos_sin_cache_offsets) -> ()",
        equivalent="query, key = rotary_embedding_rounded("
        "positions + cos_sin_cache_offsets.view_as(positions), query, key, head_size, "
        "cos_sin_cache, is_neox)",
        source=_OLD,
        since="vllm<0.20",
    ),
    FusedOp(
        names=("vllm.pos_encoding_ops.rotary_embedding_neox",),
        schema="rotary_embedding_neox(Tensor positions, Tensor(a!) query, Tensor(b!) key, "
        "int head_size, Tensor cos_sin_cache) -> ()",
        equivalent="query, key = "
        "rotary_embedding_rounded(positions, query, key, head_size, cos_sin_cache, True)",
        source="csrc/pos_encoding.cpp, vllm 0.1",
        since="vllm<0.2",
    ),
    # Activations.  Where the schema is the same in every release, one row holds for all.
    FusedOp(
        names=(
            "torch.ops._C.silu_and_mul",
            "vllm._custom_ops.silu_and_mul",
            "vllm._C.ops.silu_and_mul",
            "vllm.activation_ops.silu_and_mul",
        ),
        schema="silu_and_mul(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = silu_and_mul(input)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops._C.mul_and_silu", "vllm._custom_ops.mul_and_silu"),
        schema="mul_and_silu(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = mul_and_silu(input)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops._C.silu_and_mul_with_clamp",),
        schema="silu_and_mul_with_clamp(Tensor(a!) out, Tensor input, float limit, "
        "float alpha=1.0, float beta=0.0) -> ()",
        equivalent="out = clamped_swiglu(input, limit, alpha, beta)",
        source=_NEW,
    ),
    FusedOp(
        names=(
            "torch.ops._C.gelu_and_mul",
            "vllm._custom_ops.gelu_and_mul",
            "vllm._C.ops.gelu_and_mul",
        ),
        schema="gelu_and_mul(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = gelu_and_mul(input)",
        source=_NEW,
    ),
    FusedOp(
        names=(
            "torch.ops._C.gelu_tanh_and_mul",
            "vllm._custom_ops.gelu_tanh_and_mul",
            "vllm._C.ops.gelu_tanh_and_mul",
        ),
        schema="gelu_tanh_and_mul(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = gelu_tanh_and_mul(input)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops._C.fatrelu_and_mul", "vllm._custom_ops.fatrelu_and_mul"),
        schema="fatrelu_and_mul(Tensor(a!) out, Tensor input, float threshold) -> ()",
        equivalent="out = fatrelu_and_mul(input, threshold)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops._C.swigluoai_and_mul",),
        schema="swigluoai_and_mul(Tensor(a!) out, Tensor input, float alpha=1.702, "
        "float limit=7.0) -> ()",
        equivalent="out = swigluoai_and_mul(input, alpha, limit)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops._C.situ_and_mul",),
        schema="situ_and_mul(Tensor(a!) out, Tensor input, float beta=1.0, "
        "float linear_beta=-1.0) -> ()",
        equivalent="out = situ_and_mul(input, beta, linear_beta)",
        source=_NEW,
    ),
    FusedOp(
        names=(
            "torch.ops._C.gelu_new",
            "vllm._custom_ops.gelu_new",
            "vllm._C.ops.gelu_new",
            "vllm.activation_ops.gelu_new",
        ),
        schema="gelu_new(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = gelu_new(input)",
        source=_NEW,
    ),
    FusedOp(
        names=(
            "torch.ops._C.gelu_fast",
            "vllm._custom_ops.gelu_fast",
            "vllm._C.ops.gelu_fast",
            "vllm.activation_ops.gelu_fast",
        ),
        schema="gelu_fast(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = gelu_fast(input)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops._C.gelu_quick", "vllm._custom_ops.gelu_quick"),
        schema="gelu_quick(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = gelu_quick(input)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops._C.relu_squared",),
        schema="relu_squared(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = relu_squared(input)",
        source=_NEW,
    ),
    FusedOp(
        names=("torch.ops._C.muse_spark_mul_tanh_soft_cap",),
        schema="muse_spark_mul_tanh_soft_cap(Tensor(a!) out, Tensor input, float multiplier, "
        "float soft_cap_temp) -> ()",
        equivalent="out = scaled_soft_cap(input, multiplier, soft_cap_temp)",
        source=_NEW,
    ),
    FusedOp(
        names=("vllm.ir.ops.gelu_and_mul_sparse", "torch.ops.vllm_ir.gelu_and_mul_sparse"),
        schema="gelu_and_mul_sparse(Tensor x, float std_multiplier, str approximate='none')"
        " -> Tensor",
        equivalent="gelu_and_mul_sparse(x, std_multiplier, approximate)",
        source="vllm/ir/ops/activation.py, vllm 0.33.0",
    ),
    FusedOp(
        names=("vllm.model_executor.layers.activation.swiglustep_and_mul_triton",),
        schema="swiglustep_and_mul_triton(Tensor(a!) output, Tensor input, float limit=7.0) -> ()",
        equivalent="output = swiglustep_and_mul(input, limit)",
        source="vllm/model_executor/layers/activation.py, vllm 0.33.0",
    ),
    # Attention.
    FusedOp(
        names=(
            "vllm.vllm_flash_attn.flash_attn_varlen_func",
            "vllm.vllm_flash_attn.flash_attn_interface.flash_attn_varlen_func",
            "vllm.v1.attention.backends.fa_utils.flash_attn_varlen_func",
        ),
        schema="flash_attn_varlen_func(Tensor q, Tensor k, Tensor v, int max_seqlen_q, "
        "Tensor cu_seqlens_q, int max_seqlen_k, Tensor? cu_seqlens_k=None, "
        "Tensor? seqused_k=None, Tensor? q_v=None, float dropout_p=0.0, "
        "float? softmax_scale=None, bool causal=False, int[]? window_size=None, "
        "float softcap=0.0, Tensor? alibi_slopes=None, bool deterministic=False, "
        "bool return_attn_probs=False, Tensor? block_table=None, "
        "bool return_softmax_lse=False, Tensor(a!)? out=None, "
        "Tensor? scheduler_metadata=None, Tensor? q_descale=None, Tensor? k_descale=None, "
        "Tensor? v_descale=None, int num_splits=0, Tensor? output_scale=None, "
        "int? fa_version=None, Tensor? s_aux=None, int cp_world_size=1, int cp_rank=0, "
        "Tensor? cp_tot_seqused_k=None, Any mask_mod=None, Any block_sparse_tensors=None, "
        "Any aux_tensors=None, Any aux_tensor_leading_dims=None, Tensor? dynamic_causal=None, "
        "Tensor? gather_kv_indices=None, Tensor? gather_kv_valid_length=None) -> Tensor",
        equivalent="varlen_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, "
        "window_size, softcap)",
        source="vllm/vllm_flash_attn/flash_attn_interface.py, vllm 0.33.0",
        unsupported=(
            "seqused_k",
            "q_v",
            "dropout_p",
            "alibi_slopes",
            "return_attn_probs",
            "block_table",
            "return_softmax_lse",
            "q_descale",
            "k_descale",
            "v_descale",
            "output_scale",
            "s_aux",
            "cp_world_size",
            "mask_mod",
            "block_sparse_tensors",
            "dynamic_causal",
            "gather_kv_indices",
        ),
    ),
    # Its arguments have no defaults.  The ones written here let a call say by its literals that it
    # asks for nothing beyond the equivalent.
    FusedOp(
        names=("torch.ops._vllm_fa2_C.varlen_fwd",),
        schema="varlen_fwd(Tensor q, Tensor k, Tensor v, Tensor? out, Tensor cu_seqlens_q, "
        "Tensor cu_seqlens_k, Tensor? seqused_k, Tensor? leftpad_k, Tensor? block_table, "
        "Tensor? alibi_slopes, int max_seqlen_q, int max_seqlen_k, float p_dropout=0.0, "
        "float softmax_scale=1.0, bool zero_tensors=False, bool is_causal=False, "
        "int window_size_left=-1, int window_size_right=-1, float softcap=0.0, "
        "bool return_softmax=False, int num_splits=0, Generator? gen=None)"
        " -> (Tensor, Tensor, Tensor, Tensor)",
        equivalent="varlen_attention_fwd(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, "
        "is_causal, window_size_left, window_size_right, softcap)",
        source="csrc/flash_attn/flash_api_torch_lib.cpp of vllm-flash-attn, 617264c1c795",
        unsupported=(
            "out",
            "seqused_k",
            "leftpad_k",
            "block_table",
            "alibi_slopes",
            "p_dropout",
            "return_softmax",
        ),
    ),
    FusedOp(
        names=("vllm._custom_ops.paged_attention_v1", "torch.ops._C.paged_attention_v1"),
        schema="paged_attention_v1(Tensor(a!) out, Tensor query, Tensor key_cache, "
        "Tensor value_cache, int num_kv_heads, float scale, Tensor block_tables, "
        "Tensor seq_lens, int block_size, int max_seq_len, Tensor? alibi_slopes, "
        "str kv_cache_dtype, Tensor k_scale, Tensor v_scale, int tp_rank=0, "
        "int blocksparse_local_blocks=0, int blocksparse_vert_stride=0, "
        "int blocksparse_block_size=64, int blocksparse_head_sliding_step=0) -> ()",
        equivalent="out = "
        "paged_attention(query, key_cache, value_cache, block_tables, seq_lens, scale)",
        source=_OLD,
        unsupported=_NO_PAGED,
    ),
    FusedOp(
        names=("vllm._custom_ops.paged_attention_v2", "torch.ops._C.paged_attention_v2"),
        schema="paged_attention_v2(Tensor(a!) out, Tensor exp_sum, Tensor max_logits, "
        "Tensor tmp_out, Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, "
        "float scale, Tensor block_tables, Tensor seq_lens, int block_size, int max_seq_len, "
        "Tensor? alibi_slopes, str kv_cache_dtype, Tensor k_scale, Tensor v_scale, "
        "int tp_rank=0, int blocksparse_local_blocks=0, int blocksparse_vert_stride=0, "
        "int blocksparse_block_size=64, int blocksparse_head_sliding_step=0) -> ()",
        equivalent="out = "
        "paged_attention(query, key_cache, value_cache, block_tables, seq_lens, scale)",
        source=_OLD,
        unsupported=_NO_PAGED,
    ),
    FusedOp(
        names=("vllm._C.ops.paged_attention_v1",),
        schema="paged_attention_v1(Tensor(a!) out, Tensor query, Tensor key_cache, "
        "Tensor value_cache, int num_kv_heads, float scale, Tensor block_tables, "
        "Tensor context_lens, int block_size, int max_context_len, Tensor? alibi_slopes) -> ()",
        equivalent="out = "
        "paged_attention(query, key_cache, value_cache, block_tables, context_lens, scale)",
        source=_PYBIND,
        since="vllm<0.5",
        unsupported=("alibi_slopes",),
    ),
    FusedOp(
        names=("vllm._C.ops.paged_attention_v2",),
        schema="paged_attention_v2(Tensor(a!) out, Tensor exp_sums, Tensor max_logits, "
        "Tensor tmp_out, Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, "
        "float scale, Tensor block_tables, Tensor context_lens, int block_size, "
        "int max_context_len, Tensor? alibi_slopes) -> ()",
        equivalent="out = "
        "paged_attention(query, key_cache, value_cache, block_tables, context_lens, scale)",
        source=_PYBIND,
        since="vllm<0.5",
        unsupported=("alibi_slopes",),
    ),
    FusedOp(
        names=("vllm._custom_ops.merge_attn_states",),
        schema="merge_attn_states(Tensor(a!) output, Tensor prefix_output, Tensor prefix_lse, "
        "Tensor suffix_output, Tensor suffix_lse, Tensor? output_lse=None, "
        "int? prefill_tokens_with_context=None, Tensor? output_scale=None) -> ()",
        equivalent="output = "
        "merge_attn_states(prefix_output, prefix_lse, suffix_output, suffix_lse)",
        source="vllm/_custom_ops.py, vllm 0.33.0",
        unsupported=("output_lse", "prefill_tokens_with_context", "output_scale"),
    ),
    FusedOp(
        names=("vllm.v1.attention.ops.merge_attn_states.merge_attn_states",),
        schema="merge_attn_states(Tensor(a!) output, Tensor prefix_output, Tensor prefix_lse, "
        "Tensor suffix_output, Tensor suffix_lse, Tensor? output_lse=None, "
        "int? prefill_tokens_with_context=None, Tensor? output_scale=None) -> ()",
        equivalent="output = "
        "merge_attn_states(prefix_output, prefix_lse, suffix_output, suffix_lse)",
        source="vllm/v1/attention/ops/merge_attn_states.py, vllm 0.33.0",
        unsupported=("output_lse", "prefill_tokens_with_context", "output_scale"),
    ),
    FusedOp(
        names=("vllm.v1.attention.ops.triton_prefill_attention.context_attention_fwd",),
        schema="context_attention_fwd(Tensor q, Tensor k, Tensor v, Tensor(a!) o, "
        "Tensor b_start_loc, Tensor b_seq_len, int max_input_len, bool is_causal=True, "
        "float? softmax_scale=None, int? sliding_window_q=None, int? sliding_window_k=None, "
        "Tensor? sinks=None, bool sinks_bias_key0=False) -> ()",
        equivalent="o = prefill_attention(q, k, v, b_seq_len, softmax_scale, is_causal)",
        source="vllm/v1/attention/ops/triton_prefill_attention.py, vllm 0.33.0",
        unsupported=("sliding_window_q", "sliding_window_k", "sinks", "sinks_bias_key0"),
    ),
    # Queries and keys, normed and rotated in one kernel.
    FusedOp(
        names=("vllm._custom_ops.fused_qk_norm_rope", "torch.ops._C.fused_qk_norm_rope"),
        schema="fused_qk_norm_rope(Tensor(a!) qkv, int num_heads_q, int num_heads_k, "
        "int num_heads_v, int head_dim, float eps, Tensor q_weight, Tensor k_weight, "
        "Tensor cos_sin_cache, bool is_neox, Tensor position_ids, "
        "int forced_token_heads_per_warp=-1) -> ()",
        equivalent="qkv = fused_qk_norm_rope(qkv, num_heads_q, num_heads_k, num_heads_v, "
        "head_dim, eps, q_weight, k_weight, cos_sin_cache, is_neox, position_ids)",
        source=_NEW,
    ),
    FusedOp(
        names=("vllm.model_executor.layers.mamba.ops.layernorm_gated.rms_norm_gated",),
        schema="rms_norm_gated(Tensor x, Tensor weight, Tensor? bias, Tensor? z=None, "
        "float eps=1e-6, int? group_size=None, bool norm_before_gate=True) -> Tensor",
        equivalent="gated_rms_norm(x, z, weight, eps)",
        source="vllm/model_executor/layers/mamba/ops/layernorm_gated.py, vllm 0.33.0",
        unsupported=("bias", "group_size", "norm_before_gate"),
    ),
)
