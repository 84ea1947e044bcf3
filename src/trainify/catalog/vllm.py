"""vLLM's CUDA ops: vllm-project/vllm, ``csrc/`` and ``vllm/_custom_ops.py``.

The ops write into their first argument, or rotate and add in place.  Until 0.19 norms and the
rotary op rounded step by step; since 0.20 both compute in float32 and round once, but for the norms
of 0.23.0, where the change was taken back.  Before 0.4.1 a norm of a sum took its statistics before
that was rounded.  The sources of 0.2.2, 0.2.7, 0.3.3, 0.4.1, 0.16.0, 0.19.1, 0.20.0, 0.20.2,
0.21.0, 0.22.0, 0.22.1, 0.23.0, 0.24.0, 0.25.1, 0.26.0, 0.28.0, 0.30.0 and 0.33.0 say so.  The
pybind module ``vllm._C.ops`` is gone since 0.5, so its names stand in the old rows only.
"""

from . import FusedOp, opaque
from .reasons import (
    BUFFER,
    CACHE,
    CODEBOOK,
    CODED,
    CODES,
    CONTEXT,
    DIFFERS,
    FILTER,
    FP4,
    FP4_EXPERTS,
    FP8_PRODUCT,
    GGML,
    INDEXER,
    LAYER,
    OPEN,
    OPTIONS,
    ORDER,
    RAISES,
    SPARSE,
    STATES,
    STEPS,
    TILED,
    TOKENS,
    UNDOCUMENTED,
    UNPACK,
    WRITES,
)

_READ = "vllm 0.33.0, 0.8.5.post1 and 0.2.7"
_NEW = "csrc/torch_bindings.cpp, vllm 0.33.0"
_OLD = "schema strings of _C.abi3.so, vllm 0.8.5.post1"
_PYBIND = "csrc/pybind.cpp, vllm 0.2.7"

_FLA = "vllm.third_party.flash_linear_attention.ops"
_FLA_FILES = "vllm/third_party/flash_linear_attention/ops"

# What the attention kernels take and the reference does not compute.
_NO_PAGED = ("alibi_slopes", "blocksparse_vert_stride")

_CONV_STATES = "each state of the pool must keep one step less than the weight is wide"

_GROUPED_TOPK = (
    "vllm.model_executor.layers.fused_moe.grouped_topk",
    "vllm.model_executor.layers.fused_moe.fused_moe.grouped_topk",
    "vllm.model_executor.layers.fused_moe.router.grouped_topk_router.grouped_topk",
)

# Experts before they had a configuration for what is quantized.
_EXPERTS = "Tensor hidden_states, Tensor w1, Tensor w2, Tensor topk_weights, Tensor topk_ids"
_QUANTIZED_EXPERTS = (
    "str activation='silu', bool apply_router_weight_on_input=False, bool use_fp8_w8a8=False, "
    "bool use_int8_w8a8=False, bool use_int8_w8a16=False, bool use_int4_w4a16=False, "
    "bool per_channel_quant=False, int global_num_experts=-1, Tensor? expert_map=None, "
    "Tensor? w1_scale=None, Tensor? w2_scale=None, Tensor? w1_zp=None, Tensor? w2_zp=None, "
    "Tensor? a1_scale=None, Tensor? a2_scale=None, int[]? block_shape=None"
)
_NO_QUANTIZED_EXPERTS = (
    "activation",
    "apply_router_weight_on_input",
    "use_fp8_w8a8",
    "use_int8_w8a8",
    "use_int8_w8a16",
    "use_int4_w4a16",
    "per_channel_quant",
    "expert_map",
    "w1_scale",
    "w2_scale",
    "w1_zp",
    "w2_zp",
    "a1_scale",
    "a2_scale",
    "block_shape",
)

OPS: tuple[FusedOp, ...] = (
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
        since="vllm>=0.4.1,<0.20",
    ),
    FusedOp(
        names=("vllm._C.ops.fused_add_rms_norm", "vllm.layernorm_ops.fused_add_rms_norm"),
        schema="fused_add_rms_norm(Tensor(a!) input, Tensor(b!) residual, Tensor weight, "
        "float epsilon) -> ()",
        equivalent="input, residual = "
        "fused_add_rms_norm_llama_unrounded(input, residual, weight, epsilon)",
        source="csrc/layernorm_kernels.cu, vllm 0.2.2, 0.2.7 and 0.3.3",
        since="vllm<0.4.1",
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
        names=("vllm.model_executor.layers.layernorm.rms_norm",),
        schema="rms_norm(Tensor x, Tensor weight, float variance_epsilon) -> Tensor",
        equivalent="rms_norm_llama(x, weight, variance_epsilon)",
        source="vllm/model_executor/layers/layernorm.py, vllm 0.8.5.post1",
        since="vllm<0.20",
    ),
    FusedOp(
        names=("vllm.model_executor.layers.layernorm.fused_add_rms_norm",),
        schema="fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, Tensor weight, "
        "float variance_epsilon) -> (Tensor(a!), Tensor(b!))",
        equivalent="x, residual = fused_add_rms_norm_llama(x, residual, weight, variance_epsilon)",
        source="vllm/model_executor/layers/layernorm.py, vllm 0.8.5.post1",
        since="vllm<0.20",
    ),
    FusedOp(
        names=(
            "vllm.ir.ops.rms_norm",
            "vllm.ir.ops.layernorm.rms_norm",
            "torch.ops.vllm_ir.rms_norm",
        ),
        schema="rms_norm(Tensor x, Tensor? weight, float epsilon, int? variance_size=None)"
        " -> Tensor",
        equivalent="rms_norm_weight_dtype(x, weight, epsilon, variance_size)",
        source="vllm/ir/ops/layernorm.py, vllm 0.33.0",
    ),
    FusedOp(
        names=(
            "vllm.ir.ops.fused_add_rms_norm",
            "vllm.ir.ops.layernorm.fused_add_rms_norm",
            "torch.ops.vllm_ir.fused_add_rms_norm",
            "vllm.ir.ops.fused_add_rms_norm.maybe_inplace",
            "vllm.ir.ops.layernorm.fused_add_rms_norm.maybe_inplace",
        ),
        schema="fused_add_rms_norm(Tensor x, Tensor x_residual, Tensor? weight, float epsilon, "
        "int? variance_size=None) -> (Tensor, Tensor)",
        equivalent="fused_add_rms_norm_weight_dtype(x, x_residual, weight, epsilon, variance_size)",
        source="vllm/ir/ops/layernorm.py, vllm 0.33.0",
    ),
    # Rotary embeddings.
    FusedOp(
        names=("vllm._custom_ops.rotary_embedding", "torch.ops._C.rotary_embedding"),
        schema="rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!)? key, "
        "int head_size, Tensor cos_sin_cache, bool is_neox, int rope_dim_offset=0, "
        "bool inverse=False) -> ()",
        equivalent="query, key = rotary_embedding(positions, query, key, head_size, "
        "cos_sin_cache, is_neox, rope_dim_offset, inverse)",
        source=_NEW,
        since="vllm>=0.20",
    ),
    FusedOp(
        names=(
            "vllm._custom_ops.rotary_embedding",
            "torch.ops._C.rotary_embedding",
            "vllm._C.ops.rotary_embedding",
        ),
        schema="rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!)? key, "
        "int head_size, Tensor cos_sin_cache, bool is_neox) -> ()",
        equivalent="query, key = "
        "rotary_embedding_rounded(positions, query, key, head_size, cos_sin_cache, is_neox)",
        source=_OLD,
        since="vllm<0.20",
    ),
    FusedOp(
        names=("torch.ops.vllm.flashinfer_rotary_embedding",),
        schema="flashinfer_rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!) key, "
        "int head_size, Tensor cos_sin_cache, bool is_neox) -> ()",
        equivalent="query, key = "
        "rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)",
        source="vllm/model_executor/layers/rotary_embedding/common.py, vllm 0.33.0",
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
    FusedOp(
        names=("vllm.model_executor.layers.rotary_embedding.mrope.triton_mrope",),
        schema="triton_mrope(Tensor(a!) q, Tensor(b!) k, Tensor cos, Tensor sin, "
        "int[] mrope_section, int head_size, int rotary_dim, bool mrope_interleaved=False, "
        "bool is_neox_style=True) -> (Tensor(a!), Tensor(b!))",
        equivalent="q, k = multimodal_rope(q, k, cos, sin, mrope_section, head_size, "
        "mrope_interleaved, is_neox_style)",
        source="vllm/model_executor/layers/rotary_embedding/mrope.py, vllm 0.33.0",
    ),
    FusedOp(
        names=("torch.ops.vllm.mrope",),
        schema="mrope(Tensor positions, Tensor(a!) query, Tensor(b!) key, Tensor cos_sin_cache, "
        "int head_size, int rotary_dim, int mrope_section_t, int mrope_section_h, "
        "int mrope_section_w, bool mrope_interleaved, bool is_neox_style) -> ()",
        equivalent="query, key = multimodal_rotary_embedding(positions, query, key, head_size, "
        "cos_sin_cache, (mrope_section_t, mrope_section_h, mrope_section_w), mrope_interleaved, "
        "is_neox_style)",
        source="vllm/model_executor/layers/rotary_embedding/mrope.py, vllm 0.33.0",
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
        names=(
            "vllm.ir.ops.gelu_and_mul_sparse",
            "vllm.ir.ops.activation.gelu_and_mul_sparse",
            "torch.ops.vllm_ir.gelu_and_mul_sparse",
        ),
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
            "vllm.attention.utils.fa_utils.flash_attn_varlen_func",
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
        equivalent="varlen_or_paged_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, "
        "block_table, softmax_scale, causal, window_size, softcap, "
        "s_aux)",
        source="vllm/vllm_flash_attn/flash_attn_interface.py, vllm 0.33.0",
        unsupported=(
            "q_v",
            "dropout_p",
            "alibi_slopes",
            "return_attn_probs",
            "return_softmax_lse",
            "q_descale",
            "k_descale",
            "v_descale",
            "output_scale",
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
        "is_causal, window_size_left, window_size_right, softcap, seqused_k, block_table)",
        source="csrc/flash_attn/flash_api_torch_lib.cpp of vllm-flash-attn, 617264c1c795",
        unsupported=(
            "out",
            "leftpad_k",
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
        names=(
            "vllm.v1.attention.ops.merge_attn_states.merge_attn_states",
            "vllm.v1.attention.ops.triton_merge_attn_states.merge_attn_states",
            "vllm.attention.ops.merge_attn_states.merge_attn_states",
            "vllm.attention.ops.triton_merge_attn_states.merge_attn_states",
        ),
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
        equivalent="o = prefill_attention(q, k, v, b_seq_len, softmax_scale, is_causal, sinks)",
        source="vllm/v1/attention/ops/triton_prefill_attention.py, vllm 0.33.0",
        unsupported=("sliding_window_q", "sliding_window_k", "sinks_bias_key0"),
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
    FusedOp(
        names=(
            "vllm.third_party.flash_linear_attention.ops.fused_norm_gate.rms_norm_gated",
            "vllm.third_party.flash_linear_attention.ops.kda.rms_norm_gated",
        ),
        schema="rms_norm_gated(Tensor x, Tensor g, Tensor weight, Tensor? bias, "
        "str activation='swish', Tensor? residual=None, bool prenorm=False, "
        "bool residual_in_fp32=False, float eps=1e-6) -> Tensor",
        equivalent="gated_rms_norm(x, g, weight, eps)",
        source="vllm/third_party/flash_linear_attention/ops/fused_norm_gate.py, vllm 0.33.0",
        unsupported=("bias", "activation", "residual", "prenorm"),
    ),
    FusedOp(
        names=("vllm._custom_ops.awq_gemm",),
        schema="awq_gemm(Tensor input, Tensor qweight, Tensor scales, Tensor qzeros, "
        "int split_k_iters) -> Tensor",
        equivalent="awq_matmul(input, qweight, scales, qzeros)",
        source="vllm/_custom_ops.py, vllm 0.33.0",
    ),
    FusedOp(
        names=("torch.ops._C.awq_gemm",),
        schema="awq_gemm(Tensor _in_feats, Tensor _kernel, Tensor _scaling_factors, "
        "Tensor _zeros, SymInt split_k_iters) -> Tensor",
        equivalent="awq_matmul(_in_feats, _kernel, _scaling_factors, _zeros)",
        source="csrc/torch_bindings.cpp, vllm 0.33.0",
    ),
    FusedOp(
        names=("vllm._C.ops.awq_gemm",),
        schema="awq_gemm(Tensor in_feats, Tensor kernel, Tensor scaling_factors, "
        "Tensor zeros, int split_k_iters) -> Tensor",
        equivalent="awq_matmul(in_feats, kernel, scaling_factors, zeros)",
        source="csrc/pybind.cpp, vllm 0.2.7",
        since="vllm<0.5",
    ),
    FusedOp(
        names=("vllm.model_executor.layers.quantization.awq_triton.awq_gemm_triton",),
        schema="awq_gemm_triton(Tensor input, Tensor qweight, Tensor scales, "
        "Tensor qzeros, int split_k_iters, int block_size_m=32, "
        "int block_size_n=32, int block_size_k=32) -> Tensor",
        equivalent="awq_matmul(input, qweight, scales, qzeros)",
        source="vllm/model_executor/layers/quantization/awq_triton.py",
    ),
    FusedOp(
        names=("vllm._custom_ops.cutlass_scaled_mm",),
        schema="cutlass_scaled_mm(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, "
        "ScalarType out_dtype, Tensor? bias=None) -> Tensor",
        equivalent="scaled_mm(a, b, scale_a, scale_b, out_dtype, bias)",
        source="vllm/_custom_ops.py, vllm 0.33.0",
    ),
    FusedOp(
        names=(
            "vllm.model_executor.layers.quantization.utils.fp8_utils.w8a8_triton_block_scaled_mm",
            "vllm.model_executor.layers.quantization.utils.fp8_utils.w8a8_block_fp8_matmul",
        ),
        schema="w8a8_triton_block_scaled_mm(Tensor A, Tensor B, Tensor As, Tensor Bs, "
        "int[2] block_size, ScalarType output_dtype=torch.float16) -> Tensor",
        equivalent="block_scaled_mm(A, B, As, Bs, block_size[0], block_size[1], output_dtype)",
        source="vllm/model_executor/layers/quantization/utils/fp8_utils.py",
    ),
    FusedOp(
        names=("torch.ops._C.dsv3_fused_a_gemm",),
        schema="dsv3_fused_a_gemm(Tensor(a!) output, Tensor mat_a, Tensor mat_b, "
        "bool enable_pdl=False) -> ()",
        equivalent="output = mat_a @ mat_b",
        source="csrc/torch_bindings.cpp, vllm 0.33.0",
        family="matmul",
    ),
    FusedOp(
        names=(
            "vllm._custom_ops.topk_softmax",
            "torch.ops._moe_C.topk_softmax",
        ),
        schema="topk_softmax(Tensor(a!) topk_weights, Tensor(b!) topk_indices, "
        "Tensor(c!) token_expert_indices, Tensor gating_output, "
        "bool renormalize=False, Tensor? bias=None, Tensor? is_padding=None) -> ()",
        equivalent="topk_weights, topk_indices, "
        "token_expert_indices = softmax_topk_rows(gating_output, "
        "topk_indices.shape[-1], renormalize)",
        source="csrc/moe/torch_bindings.cpp, vllm 0.33.0",
        unsupported=(
            "bias",
            "is_padding",
        ),
    ),
    FusedOp(
        names=(
            "vllm.model_executor.layers.fused_moe.fused_topk",
            "vllm.model_executor.layers.fused_moe.fused_moe.fused_topk",
            "vllm.model_executor.layers.fused_moe.router.fused_topk_router.fused_topk",
        ),
        schema="fused_topk(Tensor hidden_states, Tensor gating_output, int topk, "
        "bool renormalize, ScalarType? indices_type=None, "
        "str scoring_func='softmax') -> (Tensor, Tensor, Tensor)",
        equivalent="softmax_topk_rows(gating_output, topk, renormalize)",
        source="vllm/model_executor/layers/fused_moe",
        since="vllm>=0.9",
        unsupported=(
            "indices_type",
            "scoring_func",
        ),
    ),
    FusedOp(
        names=(
            "vllm.model_executor.layers.fused_moe.fused_topk",
            "vllm.model_executor.layers.fused_moe.fused_moe.fused_topk",
        ),
        schema="fused_topk(Tensor hidden_states, Tensor gating_output, int topk, "
        "bool renormalize) -> (Tensor, Tensor)",
        equivalent="softmax_topk(gating_output, topk, renormalize)",
        source="vllm/model_executor/layers/fused_moe/fused_moe.py, vLLM 0.8.5",
        since="vllm<0.9",
    ),
    FusedOp(
        names=_GROUPED_TOPK,
        schema="grouped_topk(Tensor hidden_states, Tensor gating_output, int topk, "
        "bool renormalize, int num_expert_group=0, int topk_group=0, "
        "str scoring_func='softmax', *, float routed_scaling_factor=1.0, "
        "Tensor? e_score_correction_bias=None) -> (Tensor, Tensor)",
        equivalent="grouped_topk(gating_output, topk, renormalize, num_expert_group, "
        "topk_group, scoring_func, routed_scaling_factor, e_score_correction_bias)",
        source="vllm/model_executor/layers/fused_moe/router/grouped_topk_router.py, vllm 0.33.0",
        since="vllm>=0.9",
    ),
    FusedOp(
        names=_GROUPED_TOPK,
        schema="grouped_topk(Tensor hidden_states, Tensor gating_output, int topk, "
        "bool renormalize, int num_expert_group=0, int topk_group=0, "
        "str scoring_func='softmax', Tensor? e_score_correction_bias=None) -> (Tensor, Tensor)",
        equivalent=None,
        source="vllm/model_executor/layers/fused_moe/fused_moe.py, vllm 0.8.5.post1",
        since="vllm<0.9",
        family="moe",
        note="it is written in plain PyTorch, which has its backward",
        cuts=False,
    ),
    FusedOp(
        names=(
            "vllm.model_executor.layers.fused_moe.fused_experts",
            "vllm.model_executor.layers.fused_moe.fused_moe.fused_experts",
            "torch.ops.vllm.fused_experts",
        ),
        schema="fused_experts(Tensor hidden_states, Tensor w1, Tensor w2, "
        "Tensor topk_weights, Tensor topk_ids, Any activation=None, "
        "bool apply_router_weight_on_input=False, int global_num_experts=-1, "
        "Tensor? expert_map=None, Any quant_config=None, bool inplace=False) -> Tensor",
        equivalent="moe_experts(hidden_states, w1, w2, topk_weights, topk_ids)",
        source="vllm/model_executor/layers/fused_moe",
        unsupported=(
            "inplace",
            "activation",
            "apply_router_weight_on_input",
            "expert_map",
            "quant_config",
        ),
        since="vllm>=0.9",
    ),
    FusedOp(
        names=(
            "vllm.model_executor.layers.fused_moe.fused_experts",
            "vllm.model_executor.layers.fused_moe.fused_moe.fused_experts",
        ),
        schema=f"fused_experts({_EXPERTS}, bool inplace=False, {_QUANTIZED_EXPERTS}, "
        "bool allow_deep_gemm=False) -> Tensor",
        equivalent="moe_experts(hidden_states, w1, w2, topk_weights, topk_ids)",
        source="vllm/model_executor/layers/fused_moe/fused_moe.py, vllm 0.8.5.post1",
        since="vllm<0.9",
        unsupported=("inplace", *_NO_QUANTIZED_EXPERTS),
    ),
    # Gone from later releases, some of which had more arguments.
    FusedOp(
        names=(
            "torch.ops.vllm.outplace_fused_experts",
            "vllm.model_executor.layers.fused_moe.fused_moe.outplace_fused_experts",
        ),
        schema=f"outplace_fused_experts({_EXPERTS}, {_QUANTIZED_EXPERTS}) -> Tensor",
        equivalent="moe_experts(hidden_states, w1, w2, topk_weights, topk_ids)",
        source="vllm/model_executor/layers/fused_moe/fused_moe.py, vllm 0.8.5.post1",
        unsupported=_NO_QUANTIZED_EXPERTS,
    ),
    FusedOp(
        names=(
            "torch.ops.vllm.inplace_fused_experts",
            "vllm.model_executor.layers.fused_moe.fused_moe.inplace_fused_experts",
        ),
        schema="inplace_fused_experts("
        f"{_EXPERTS.replace('Tensor', 'Tensor(a!)', 1)}, {_QUANTIZED_EXPERTS}) -> ()",
        equivalent="hidden_states = moe_experts(hidden_states, w1, w2, topk_weights, topk_ids)",
        source="vllm/model_executor/layers/fused_moe/fused_moe.py, vllm 0.8.5.post1",
        unsupported=_NO_QUANTIZED_EXPERTS,
    ),
    FusedOp(
        names=(
            "vllm._custom_ops.moe_sum",
            "torch.ops._moe_C.moe_sum",
        ),
        schema="moe_sum(Tensor input, Tensor(a!) output, Tensor? topk_ids=None, "
        "Tensor? expert_map=None) -> ()",
        equivalent="output = input.sum(1)",
        source="csrc/moe/torch_bindings.cpp, vllm 0.33.0",
        unsupported=(
            "topk_ids",
            "expert_map",
        ),
        family="moe",
    ),
    FusedOp(
        names=("vllm._custom_ops.shuffle_rows",),
        schema="shuffle_rows(Tensor input_tensor, Tensor dst2src_map) -> Tensor",
        equivalent="input_tensor[dst2src_map]",
        source="vllm/_custom_ops.py, vllm 0.33.0",
        family="moe",
    ),
    FusedOp(
        names=("torch.ops._moe_C.shuffle_rows",),
        schema="shuffle_rows(Tensor input_tensor, Tensor dst2src_map, "
        "Tensor(a!) output_tensor) -> ()",
        equivalent="output_tensor = input_tensor[dst2src_map]",
        source="csrc/moe/torch_bindings.cpp, vllm 0.33.0",
        family="moe",
    ),
    FusedOp(
        names=(
            "vllm._custom_ops.vocab_parallel_embedding",
            "torch.ops._C.vocab_parallel_embedding",
        ),
        schema="vocab_parallel_embedding(Tensor(a!) out, Tensor input_ids, Tensor weight, "
        "int org_vocab_start_index, int org_vocab_end_index, "
        "int num_org_vocab_padding, int added_vocab_start_index, "
        "int added_vocab_end_index) -> ()",
        equivalent="out = vocab_parallel_embedding(input_ids, weight, org_vocab_start_index, "
        "org_vocab_end_index, num_org_vocab_padding, added_vocab_start_index, "
        "added_vocab_end_index)",
        source="csrc/torch_bindings.cpp, vllm 0.33.0",
    ),
    FusedOp(
        names=("torch.ops._C.rms_norm_static_fp8_quant",),
        schema="rms_norm_static_fp8_quant(Tensor(a!) result, Tensor input, Tensor weight, "
        "Tensor scale, float epsilon) -> ()",
        equivalent="result = rms_norm_fp8(input, weight, scale, epsilon)",
        look_at="the codes come as floating point, not in 8 bits: what reads them must take that",
        source="csrc/torch_bindings.cpp, vllm 0.33.0",
    ),
    FusedOp(
        names=("torch.ops._C.fused_add_rms_norm_static_fp8_quant",),
        schema="fused_add_rms_norm_static_fp8_quant(Tensor(a!) result, Tensor input, "
        "Tensor(b!) residual, Tensor weight, Tensor scale, float epsilon) -> ()",
        equivalent="result, residual = fused_add_rms_norm_fp8(input, residual, weight, scale, "
        "epsilon)",
        look_at="the codes come as floating point, not in 8 bits: what reads them must take that",
        source="csrc/torch_bindings.cpp, vllm 0.33.0",
    ),
    FusedOp(
        names=("vllm._custom_ops.rms_norm_dynamic_per_token_quant",),
        schema="rms_norm_dynamic_per_token_quant(Tensor input, Tensor weight, "
        "float epsilon, ScalarType quant_dtype, Tensor? scale_ub=None, "
        "Tensor? residual=None) -> (Tensor, Tensor)",
        equivalent="rms_norm_dynamic_quant(input, weight, epsilon, quant_dtype)",
        look_at="the codes come as floating point, not in 8 bits: what reads them must take that",
        source="vllm/_custom_ops.py, vllm 0.33.0",
        unsupported=(
            "scale_ub",
            "residual",
        ),
    ),
    FusedOp(
        names=("torch.ops._C.merge_attn_states",),
        schema="merge_attn_states(Tensor(a!) output, Tensor? output_lse, "
        "Tensor prefix_output, Tensor prefix_lse, Tensor suffix_output, "
        "Tensor suffix_lse, int? prefill_tokens_with_context=None, "
        "Tensor? output_scale=None) -> ()",
        equivalent="output = merge_attn_states(prefix_output, prefix_lse, suffix_output, "
        "suffix_lse)",
        source="csrc/torch_bindings.cpp, vllm 0.33.0",
        unsupported=(
            "output_lse",
            "prefill_tokens_with_context",
            "output_scale",
        ),
    ),
    FusedOp(
        names=(
            "torch.ops._C_cache_ops.concat_mla_q",
            "vllm._custom_ops.concat_mla_q",
        ),
        schema="concat_mla_q(Tensor ql_nope, Tensor q_pe, Tensor(a!) q_out) -> ()",
        equivalent="q_out = torch.cat((ql_nope, q_pe), dim=-1)",
        source="csrc/torch_bindings.cpp, vllm 0.33.0",
        family="attention",
    ),
    # What came after v_descale moved, so only those that call it by name are understood.
    FusedOp(
        names=("vllm.attention.ops.triton_unified_attention.unified_attention",),
        schema="unified_attention(Tensor q, Tensor k, Tensor v, Tensor(a!) out, "
        "Tensor cu_seqlens_q, int max_seqlen_q, Tensor seqused_k, "
        "int max_seqlen_k, float softmax_scale, bool causal, int[2] window_size, "
        "Tensor block_table, float softcap, Tensor? q_descale, Tensor? k_descale, "
        "Tensor? v_descale, *, Tensor? alibi_slopes=None, Tensor? output_scale=None, "
        "Tensor? qq_bias=None, Tensor? sinks=None) -> ()",
        equivalent="out = paged_varlen_attention(q, k, v, cu_seqlens_q, seqused_k, "
        "block_table, softmax_scale, causal, window_size, softcap, sinks)",
        source="vllm/v1/attention/ops/triton_unified_attention.py, vllm 0.33.0, in its old place",
        unsupported=(
            "q_descale",
            "k_descale",
            "v_descale",
            "alibi_slopes",
            "output_scale",
            "qq_bias",
        ),
    ),
    FusedOp(
        names=("vllm.v1.attention.ops.triton_unified_attention.unified_attention",),
        schema="unified_attention(Tensor q, Tensor k, Tensor v, Tensor(a!) out, "
        "Tensor cu_seqlens_q, int max_seqlen_q, Tensor seqused_k, "
        "int max_seqlen_k, float softmax_scale, bool causal, int[2] window_size, "
        "Tensor block_table, float softcap, Tensor? q_descale, Tensor? k_descale, "
        "Tensor? v_descale, int? seq_threshold_3D=None, "
        "int? num_par_softmax_segments=None, Tensor? softmax_segm_output=None, "
        "Tensor? softmax_segm_max=None, Tensor? softmax_segm_expsum=None, "
        "Tensor? alibi_slopes=None, Tensor? output_scale=None, "
        "Tensor? qq_bias=None, Tensor? sinks=None) -> ()",
        equivalent="out = paged_varlen_attention(q, k, v, cu_seqlens_q, seqused_k, "
        "block_table, softmax_scale, causal, window_size, softcap, sinks)",
        source="vllm/v1/attention/ops/triton_unified_attention.py",
        unsupported=(
            "q_descale",
            "k_descale",
            "v_descale",
            "alibi_slopes",
            "output_scale",
            "qq_bias",
        ),
    ),
    FusedOp(
        names=(
            "torch.ops._rocm_C.paged_attention",
            "vllm._custom_ops.paged_attention_rocm",
        ),
        schema="paged_attention(Tensor(a!) out, Tensor exp_sums, Tensor max_logits, "
        "Tensor tmp_out, Tensor query, Tensor key_cache, Tensor value_cache, "
        "int num_kv_heads, float scale, Tensor block_tables, Tensor seq_lens, "
        "Tensor? query_start_loc, int block_size, int max_seq_len, "
        "Tensor? alibi_slopes, str kv_cache_dtype, Tensor k_scale, Tensor v_scale, "
        "Tensor? fp8_out_scale=None, str mfma_type='f16', "
        "bool use_interleaved_v_cache=False) -> ()",
        equivalent="out = paged_attention(query, key_cache, value_cache, block_tables, "
        "seq_lens, scale)",
        source="csrc/rocm/torch_bindings.cpp, vllm 0.33.0",
        unsupported=(
            "query_start_loc",
            "alibi_slopes",
            "fp8_out_scale",
            "use_interleaved_v_cache",
        ),
    ),
    FusedOp(
        names=(
            "vllm.third_party.flash_linear_attention.ops.chunk.chunk_gated_delta_rule",
            "vllm.third_party.flash_linear_attention.ops.chunk_gated_delta_rule",
        ),
        schema="chunk_gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, "
        "Tensor beta, float? scale=None, Tensor? initial_state=None, "
        "bool output_final_state=False, Tensor? cu_seqlens=None, "
        "Tensor? chunk_indices=None, Tensor? chunk_offsets=None, "
        "bool use_qk_l2norm_in_kernel=False, Tensor? core_attn_out=None)"
        " -> (Tensor, Tensor?)",
        equivalent="packed_delta_rule(q, k, v, g, beta, scale, initial_state, "
        "output_final_state, use_qk_l2norm_in_kernel, cu_seqlens)",
        source="vllm/third_party/flash_linear_attention/ops/chunk.py",
        unsupported=("core_attn_out",),
    ),
    # Its kernel also writes its result over v, where v is contiguous.
    FusedOp(
        names=(f"{_FLA}.kda.chunk_kda",),
        schema="chunk_kda(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, "
        "float? scale=None, Tensor? initial_state=None, bool output_final_state=False, "
        "bool use_qk_l2norm_in_kernel=False, Tensor? cu_seqlens=None) -> (Tensor, Tensor?)",
        equivalent="packed_delta_rule(q, k, v, g, beta, scale, initial_state, "
        "output_final_state, use_qk_l2norm_in_kernel, cu_seqlens)",
        source=f"{_FLA_FILES}/kda.py, vllm 0.33.0",
    ),
    FusedOp(
        names=(f"{_FLA}.kda.chunk_kda_with_fused_gate",),
        schema="chunk_kda_with_fused_gate(Tensor q, Tensor k, Tensor v, Tensor raw_g, "
        "Tensor beta, Tensor A_log, Tensor? g_bias, float? scale=None, "
        "Tensor? initial_state=None, bool output_final_state=False, "
        "float? lower_bound=None, bool use_qk_l2norm_in_kernel=False, "
        "Tensor? cu_seqlens=None) -> (Tensor, Tensor?)",
        equivalent="packed_kimi_delta_rule(q, k, v, raw_g, beta, A_log, g_bias, scale, "
        "initial_state, output_final_state, lower_bound, use_qk_l2norm_in_kernel, cu_seqlens)",
        source=f"{_FLA_FILES}/kda.py, vllm 0.33.0",
    ),
    FusedOp(
        names=(f"{_FLA}.kda.fused_kda_gate",),
        schema="fused_kda_gate(Tensor g, Tensor A, int head_k_dim, Tensor? g_bias=None, "
        "float beta=1.0, float threshold=20.0, float? lower_bound=None) -> Tensor",
        equivalent="kimi_delta_gate(g, A, head_k_dim, g_bias, beta, threshold, lower_bound)",
        source=f"{_FLA_FILES}/kda.py, vllm 0.33.0",
    ),
    FusedOp(
        names=(
            f"{_FLA}.fused_gdn_prefill_post_conv.fused_post_conv_prep",
            f"{_FLA}.fused_post_conv_prep",
        ),
        schema="fused_post_conv_prep(Tensor conv_output, Tensor a, Tensor b, Tensor A_log, "
        "Tensor dt_bias, int num_k_heads, int head_k_dim, int head_v_dim, "
        "bool apply_l2norm=True, bool output_g_exp=False) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        equivalent="delta_rule_operands(conv_output, a, b, A_log, dt_bias, num_k_heads, "
        "head_k_dim, head_v_dim, apply_l2norm, output_g_exp)",
        source=f"{_FLA_FILES}/fused_gdn_prefill_post_conv.py, vllm 0.33.0",
    ),
    FusedOp(
        names=(f"{_FLA}.l2norm.l2norm_fwd",),
        schema="l2norm_fwd(Tensor x, float eps=1e-6, ScalarType? output_dtype=None) -> Tensor",
        equivalent="l2_norm(x, eps)",
        source=f"{_FLA_FILES}/l2norm.py, vllm 0.33.0",
        unsupported=("output_dtype",),
    ),
    FusedOp(
        names=(
            "vllm.model_executor.layers.fused_moe.fused_moe",
            "vllm.model_executor.layers.fused_moe.fused_moe.fused_moe",
        ),
        schema="fused_moe(Tensor hidden_states, Tensor w1, Tensor w2, "
        "Tensor gating_output, int topk, bool renormalize, bool inplace=False, "
        "str activation='silu', bool use_grouped_topk=False, "
        "int? num_expert_group=None, int? topk_group=None, "
        "Any custom_routing_function=None) -> Tensor",
        equivalent="fused_moe(hidden_states, w1, w2, gating_output, topk, renormalize)",
        source="vllm/model_executor/layers/fused_moe/fused_moe.py, vllm 0.8.5.post1",
        unsupported=(
            "inplace",
            "activation",
            "use_grouped_topk",
            "custom_routing_function",
        ),
    ),
    FusedOp(
        names=("torch.ops._moe_C.topk_sigmoid", "vllm._custom_ops.topk_sigmoid"),
        schema="topk_sigmoid(Tensor(a!) topk_weights, Tensor(b!) topk_indices, Tensor(c!) "
        "token_expert_indices, Tensor gating_output, bool renormalize=False, Tensor? bias=None, "
        "float routed_scaling_factor=1.0, Tensor? is_padding=None) -> ()",
        equivalent="topk_weights, topk_indices, token_expert_indices = "
        "sigmoid_topk_rows(gating_output, topk_indices.shape[-1], renormalize, bias, "
        "routed_scaling_factor)",
        source="csrc/moe/torch_bindings.cpp, vllm 0.33.0",
        unsupported=("is_padding",),
    ),
    FusedOp(
        names=("torch.ops._moe_C.grouped_topk", "vllm._custom_ops.grouped_topk"),
        schema="grouped_topk(Tensor scores, int n_group, int topk_group, int topk, bool "
        "renormalize, float routed_scaling_factor, Tensor bias, int scoring_func=0) -> (Tensor, "
        "Tensor)",
        equivalent="grouped_topk(scores, topk, renormalize, n_group, topk_group, ('scores', "
        "'sigmoid')[scoring_func], routed_scaling_factor, bias)",
        source="csrc/moe/grouped_topk_kernels.cu, vllm 0.33.0",
        look_at="scores are taken as they are where scoring_func is 0, their sigmoid where it is 1",
    ),
    FusedOp(
        names=("torch.ops._C.cutlass_scaled_mm",),
        schema="cutlass_scaled_mm(Tensor(a!) out, Tensor a, Tensor b, Tensor a_scales, Tensor "
        "b_scales, Tensor? bias) -> ()",
        equivalent="out = scaled_mm(a, b, a_scales, b_scales, out.dtype, bias)",
        source="csrc/torch_bindings.cpp, vllm 0.33.0",
        look_at="scales must be one number, or one for each row and column; the gradient of"
        " fp8 codes is rounded to fp8 as well",
    ),
    FusedOp(
        names=("vllm._custom_ops.dsv3_fused_a_gemm",),
        schema="dsv3_fused_a_gemm(Tensor(a!) output, Tensor mat_a, Tensor mat_b, bool "
        "enable_pdl=False) -> ()",
        equivalent="output = mat_a @ mat_b",
        source="vllm/_custom_ops.py, vllm 0.33.0",
        family="matmul",
    ),
    FusedOp(
        names=("vllm.v1.attention.ops.triton_decode_attention.decode_attention_fwd",),
        schema="decode_attention_fwd(Tensor q, Tensor k_buffer, Tensor v_buffer, Tensor(a!) o, "
        "Tensor(b!) lse, Tensor req_to_token, Tensor b_seq_len, Tensor attn_logits, int "
        "num_kv_splits, float sm_scale, int page_size=1, float logit_cap=0.0, Tensor? "
        "k_scale=None, Tensor? v_scale=None, bool is_mla=False) -> ()",
        equivalent="o, lse = pooled_attention_lse(q, k_buffer, v_buffer, req_to_token, b_seq_len, "
        "sm_scale, page_size, logit_cap)",
        source="vllm/v1/attention/ops/triton_decode_attention.py, vllm 0.33.0",
        unsupported=("k_scale", "v_scale"),
    ),
    FusedOp(
        names=("torch.ops._C.causal_conv1d_update", "vllm._custom_ops.causal_conv1d_update"),
        schema="causal_conv1d_update(Tensor(a!) x, Tensor(b!) conv_state, Tensor weight, Tensor? "
        "bias_, bool silu_activation, Tensor? cache_seqlens_, Tensor? conv_state_indices, int "
        "pad_slot_id) -> ()",
        equivalent="x, conv_state = causal_conv1d_slots(x, conv_state, weight, bias_, 'silu' if "
        "silu_activation else None, conv_state_indices, pad_slot_id)",
        source="csrc/mamba/causal_conv1d.cu, vllm 0.8",
        unsupported=("cache_seqlens_",),
    ),
    # Norms and gates of Qwen3-Next and of DeepSeek's layers for predicting further tokens.
    FusedOp(
        names=("vllm.model_executor.layers.fused_qk_norm_rope.fused_qk_rmsnorm_rope_gate",),
        schema="fused_qk_rmsnorm_rope_gate(Tensor q_gate, Tensor k, Tensor q_weight, "
        "Tensor k_weight, Tensor cos_sin_cache, Tensor positions, float eps, int num_q_heads, "
        "int num_kv_heads, int head_dim, int rotary_dim, int[]? mrope_section=None, "
        "float norm_beta=0.0) -> (Tensor, Tensor, Tensor)",
        equivalent="gated_qk_norm_rope_rows(q_gate, k, q_weight, k_weight, cos_sin_cache, "
        "positions, eps, head_dim, norm_beta)",
        source="vllm/model_executor/layers/fused_qk_norm_rope.py, vllm 0.33.0",
        unsupported=("mrope_section",),
    ),
    FusedOp(
        names=(
            "vllm.models.deepseek_v32.common.kernels.fused_eh_norm",
            "vllm.models.glm5next.nvidia.ops.fused_eh_norm.fused_eh_norm",
        ),
        schema="fused_eh_norm(Tensor positions, Tensor inputs_embeds, Tensor previous_hidden, "
        "Tensor enorm_w, Tensor hnorm_w, float eps) -> Tensor",
        equivalent="joined_norms(inputs_embeds, previous_hidden, enorm_w, hnorm_w, eps, positions)",
        source="vllm/models/deepseek_v32/common/kernels.py, vllm 0.33.0",
    ),
    FusedOp(
        names=("vllm.model_executor.layers.fused_embed_norm.fused_embed_eh_norm",),
        schema="fused_embed_eh_norm(Tensor positions, Tensor input_ids, Tensor embed_table, "
        "Tensor previous_hidden, Tensor enorm_w, Tensor hnorm_w, float eps) -> Tensor",
        equivalent="joined_norms(F.embedding(input_ids.view(-1), embed_table), previous_hidden, "
        "enorm_w, hnorm_w, eps, positions)",
        source="vllm/model_executor/layers/fused_embed_norm.py, vllm 0.33.0",
    ),
    FusedOp(
        names=("vllm.model_executor.determinism.batch_invariant.rms_norm_batch_invariant",),
        schema="rms_norm_batch_invariant(Tensor input, Tensor? weight, float eps=1e-6, "
        "Tensor? residual=None) -> Tensor",
        equivalent="rms_norm(input, weight, eps)",
        source="vllm/model_executor/determinism/batch_invariant.py, vllm 0.33.0",
        unsupported=("residual",),
    ),
    FusedOp(
        names=("vllm.model_executor.determinism.batch_invariant.linear_batch_invariant",),
        schema="linear_batch_invariant(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
        equivalent="F.linear(input, weight, bias)",
        source="vllm/model_executor/determinism/batch_invariant.py, vllm 0.33.0",
        family="matmul",
    ),
    FusedOp(
        names=(
            "torch.ops.vllm.bf16x3_router_gemm",
            "vllm.model_executor.layers.fused_moe.router.bf16x3_router_gemm_cutedsl"
            ".bf16x3_router_gemm",
        ),
        schema="bf16x3_router_gemm(Tensor X, Tensor W) -> Tensor",
        equivalent="F.linear(X.float(), W.float())",
        source="vllm/model_executor/layers/fused_moe/router, vllm 0.33.0",
        family="matmul",
    ),
    FusedOp(
        names=("vllm.model_executor.layers.mamba.ops.causal_conv1d.causal_conv1d_fn",),
        schema="causal_conv1d_fn(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) conv_states, "
        "Tensor query_start_loc, Tensor? cache_indices=None, Tensor? has_initial_state=None, "
        "str? activation='silu', int pad_slot_id=-1, int null_block_id=0, Any metadata=None, "
        "bool validate_data=False) -> Tensor",
        equivalent="_, conv_states = causal_conv1d_packed(x, weight, bias, conv_states, "
        "query_start_loc, cache_indices, has_initial_state, activation, null_block_id)",
        source="vllm/model_executor/layers/mamba/ops/causal_conv1d.py, vllm 0.33.0",
        look_at=_CONV_STATES,
    ),
    FusedOp(
        names=("vllm.model_executor.layers.mamba.ops.causal_conv1d.causal_conv1d_update",),
        schema="causal_conv1d_update(Tensor(a!) x, Tensor(b!) conv_state, Tensor weight, "
        "Tensor? bias=None, str? activation=None, Tensor? conv_state_indices=None, "
        "Tensor? num_accepted_tokens=None, Tensor? query_start_loc=None, "
        "int max_query_len=-1, int null_block_id=0, bool validate_data=False, "
        "Tensor? out=None) -> Tensor(a!)",
        equivalent="x, conv_state = causal_conv1d_slots(x, conv_state, weight, bias, "
        "activation or None, conv_state_indices, null_block_id)",
        source="vllm/model_executor/layers/mamba/ops/causal_conv1d.py, vllm 0.33.0",
        unsupported=("num_accepted_tokens", "query_start_loc", "out"),
        look_at=_CONV_STATES,
    ),
    FusedOp(
        names=(
            "vllm.model_executor.layers.mamba.ops.mamba_ssm.selective_state_update",
            "vllm.model_executor.layers.mamba.ops.ssu_dispatch.selective_state_update",
        ),
        schema="selective_state_update(Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, "
        "Tensor C, Tensor? D, Tensor? dt_bias, Tensor? z=None, bool dt_softplus=False, Tensor? "
        "state_batch_indices=None, Tensor? dst_state_batch_indices=None, int null_block_id=0, "
        "Tensor(b!)? out=None, Tensor? num_accepted_tokens=None, Tensor? cu_seqlens=None, bool "
        "is_blackwell=False, bool enable_stochastic_rounding=False, int cache_philox_rounds=0) "
        "-> ()",
        equivalent="state, out = selective_state_step(state, x, dt, A, B, C, D, z, dt_bias, "
        "dt_softplus, state_batch_indices, null_block_id)",
        source="vllm/model_executor/layers/mamba/ops/mamba_ssm.py, vllm 0.33.0",
        unsupported=(
            "dst_state_batch_indices",
            "num_accepted_tokens",
            "cu_seqlens",
            "enable_stochastic_rounding",
        ),
        look_at="rows of padding must have the index null_block_id",
    ),
)

# Without an equivalent.
OPS += opaque(
    "activation",
    LAYER,
    _READ,
    """
    vllm.model_executor.layers.activation.SiluAndMul(x) -> torch.Tensor
    vllm.model_executor.layers.activation.MulAndSilu(x) -> torch.Tensor
    vllm.model_executor.layers.activation.GeluAndMul(x) -> torch.Tensor
    vllm.model_executor.layers.activation.FatreluAndMul(x) -> torch.Tensor
    vllm.model_executor.layers.activation.SwigluOAIAndMul(x) -> torch.Tensor
    vllm.model_executor.layers.activation.SiluAndMulWithClamp(x) -> torch.Tensor
    vllm.model_executor.layers.activation.NewGELU(x) -> torch.Tensor
    vllm.model_executor.layers.activation.FastGELU(x) -> torch.Tensor
    vllm.model_executor.layers.activation.QuickGELU(x) -> torch.Tensor
    vllm.model_executor.layers.activation.ReLUSquaredActivation(x) -> torch.Tensor
    vllm.model_executor.layers.activation.SituAndMul(x) -> torch.Tensor
    vllm.model_executor.layers.activation.SwigluStepAndMul(x) -> torch.Tensor
    vllm.model_executor.layers.activation.XIELU(input) -> torch.Tensor
    """,
)
OPS += opaque(
    "attention",
    CONTEXT,
    _READ,
    """
    torch.ops.vllm.unified_attention_with_output,
        vllm.attention.layer.unified_attention_with_output,
        vllm.model_executor.layers.attention.attention.unified_attention_with_output(query, key,
        value, output, layer_name, output_scale=None, output_block_scale=None,
        kv_cache_dummy_dep=None) -> None
    torch.ops.vllm.unified_attention, vllm.attention.layer.unified_attention(query, key, value,
        layer_name) -> torch.Tensor
    """,
)
OPS += opaque(
    "attention",
    LAYER,
    _READ,
    """
    vllm.model_executor.layers.attention.Attention, vllm.attention.Attention,
        vllm.attention.layer.Attention,
        vllm.model_executor.layers.attention.PagedAttention(query, key, value,
        output_shape=None, output_dtype=None) -> torch.Tensor
    """,
)
OPS += opaque(
    "cache",
    CACHE,
    _READ,
    """
    torch.ops.vllm.unified_kv_cache_update,
        vllm.model_executor.layers.attention.attention.unified_kv_cache_update(key, value,
        layer_name) -> torch.Tensor
    torch.ops._C_cache_ops.reshape_and_cache, vllm._custom_ops.reshape_and_cache,
        vllm._C.cache_ops.reshape_and_cache(Tensor key, Tensor value, Tensor! key_cache,
        Tensor! value_cache, Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale,
        Tensor v_scale, bool interleaved_v=False) -> ()
    torch.ops._C_cache_ops.reshape_and_cache_flash,
        vllm._custom_ops.reshape_and_cache_flash(Tensor key, Tensor value, Tensor! key_cache,
        Tensor! value_cache, Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale,
        Tensor v_scale) -> ()
    torch.ops._C_cache_ops.concat_and_cache_mla,
        vllm._custom_ops.concat_and_cache_mla(Tensor kv_c, Tensor k_pe, Tensor! kv_cache,
        Tensor slot_mapping, str kv_cache_dtype, Tensor scale, bool skip_scale=False) -> ()
    torch.ops._C_cache_ops.swap_blocks, vllm._custom_ops.swap_blocks,
        vllm._C.cache_ops.swap_blocks(Tensor src, Tensor! dst, int block_size_in_bytes,
        Tensor block_mapping) -> ()
    torch.ops._C_cache_ops.gather_and_maybe_dequant_cache,
        vllm._custom_ops.gather_and_maybe_dequant_cache(Tensor src_cache, Tensor! dst,
        Tensor block_table, Tensor cu_seq_lens, Tensor token_to_seq, int num_tokens,
        str kv_cache_dtype, Tensor scale, Tensor? seq_starts) -> ()
    torch.ops._C_cache_ops.convert_fp8, vllm._custom_ops.convert_fp8(Tensor! dst_cache,
        Tensor src_cache, float scale, str kv_cache_dtype) -> ()
    torch.ops._C_cache_ops.copy_blocks, vllm._custom_ops.copy_blocks(Tensor(a!)[] key_caches,
        Tensor[](b!) value_caches, Tensor block_mapping) -> ()
    torch.ops._C_cache_ops.copy_blocks_mla,
        vllm._custom_ops.copy_blocks_mla(Tensor(a!)[] kv_caches, Tensor block_mapping) -> ()
    torch.ops._C_cache_ops.gather_cache, vllm._custom_ops.gather_cache(Tensor src_cache,
        Tensor! dst, Tensor block_table, Tensor cu_seq_lens, int batch_size,
        Tensor? seq_starts) -> ()
    vllm._C.cache_ops.gather_cached_kv(key, value, key_cache, value_cache, slot_mapping)
    vllm._C.cache_ops.copy_blocks(key_caches, value_caches, block_mapping)
    """,
)
OPS += opaque(
    "matmul",
    FP4,
    _READ,
    """
    torch.ops._C.cutlass_scaled_fp4_mm, vllm._custom_ops.cutlass_scaled_fp4_mm(Tensor! out,
        Tensor a, Tensor b, Tensor block_scale_a, Tensor block_scale_b, Tensor alpha) -> ()
    """,
)
OPS += opaque(
    "matmul",
    GGML,
    _READ,
    """
    torch.ops._C.ggml_mul_mat_vec_a8, vllm._custom_ops.ggml_mul_mat_vec_a8(Tensor W, Tensor X,
        int type, SymInt row) -> Tensor
    torch.ops._C.ggml_mul_mat_a8, vllm._custom_ops.ggml_mul_mat_a8(Tensor W, Tensor X, int type,
        SymInt row) -> Tensor
    """,
)
OPS += opaque(
    "matmul",
    TILED,
    _READ,
    """
    torch.ops._C.marlin_gemm, vllm._custom_ops.marlin_gemm(Tensor a, Tensor? c_or_none,
        Tensor b_q_weight, Tensor? b_bias_or_none, Tensor b_scales, Tensor? a_scales,
        Tensor? global_scale, Tensor? b_zeros_or_none, Tensor workspace, int b_type_id,
        SymInt size_m, SymInt size_n, SymInt size_k, bool use_atomic_add, bool use_fp32_reduce,
        bool is_zp_float) -> Tensor
    torch.ops._C.machete_mm, vllm._custom_ops.machete_mm(Tensor A, Tensor B, int b_type,
        ScalarType? out_type, Tensor? group_scales, Tensor? group_zeros, int? group_size,
        Tensor? channel_scales, Tensor? token_scales, str? schedule) -> Tensor
    torch.ops._C.gptq_marlin_gemm, vllm._custom_ops.gptq_marlin_gemm(Tensor a,
        Tensor b_q_weight, Tensor b_scales, Tensor b_zeros, Tensor g_idx, Tensor perm,
        Tensor workspace, int b_q_type, SymInt size_m, SymInt size_n, SymInt size_k,
        bool is_k_full, bool has_zp, bool use_atomic_add, bool use_fp32_reduce,
        bool is_zp_float) -> Tensor
    torch.ops._C.fp8_marlin_gemm, vllm._custom_ops.fp8_marlin_gemm(Tensor a, Tensor b_q_weight,
        Tensor b_scales, Tensor! workspace, int num_bits, SymInt size_m, SymInt size_n,
        SymInt size_k) -> Tensor
    torch.ops._C.marlin_qqq_gemm, vllm._custom_ops.marlin_qqq_gemm(Tensor a, Tensor b_q_weight,
        Tensor s_tok, Tensor s_ch, Tensor s_group, Tensor! workspace, SymInt size_m,
        SymInt size_n, SymInt size_k) -> Tensor
    torch.ops._C.gptq_marlin_24_gemm, vllm._custom_ops.gptq_marlin_24_gemm(Tensor a,
        Tensor b_q_weight, Tensor b_meta, Tensor b_scales, Tensor workspace, int b_q_type,
        SymInt size_m, SymInt size_n, SymInt size_k) -> Tensor
    torch.ops._C.gptq_gemm, vllm._custom_ops.gptq_gemm(Tensor a, Tensor b_q_weight,
        Tensor b_gptq_qzeros, Tensor b_gptq_scales, bool use_exllama, bool use_v2_format,
        int bit) -> Tensor
    torch.ops._C.cutlass_w4a8_mm, vllm._custom_ops.cutlass_w4a8_mm(Tensor A, Tensor B,
        Tensor group_scales, int group_size, Tensor channel_scales, Tensor token_scales,
        ScalarType? out_type, str? maybe_schedule) -> Tensor
    torch.ops._C.allspark_w8a16_gemm, vllm._custom_ops.allspark_w8a16_gemm(Tensor a,
        Tensor b_qweight, Tensor b_scales, Tensor? b_qzeros, SymInt n, SymInt group_size,
        SymInt sm_count, SymInt sm_version, SymInt CUBLAS_M_THRESHOLD, bool has_zp,
        bool n32k16_reorder) -> Tensor
    vllm._C.ops.gptq_gemm(a, b_q_weight, b_gptq_qzeros, b_gptq_scales, b_g_idx, use_exllama)
    """,
)
OPS += opaque(
    "moe",
    ORDER,
    _READ,
    """
    torch.ops._moe_C.moe_align_block_size,
        vllm._custom_ops.moe_align_block_size(Tensor topk_ids, int num_experts, int block_size,
        Tensor! sorted_token_ids, Tensor! experts_ids, Tensor! num_tokens_post_pad,
        Tensor? maybe_expert_map, Tensor(a!)? scatter_idx=None) -> ()
    """,
)
OPS += opaque(
    "norm",
    LAYER,
    _READ,
    """
    vllm.model_executor.layers.layernorm.RMSNorm
    vllm.model_executor.layers.layernorm.GemmaRMSNorm
    vllm.model_executor.layers.layernorm.LayerNorm
    vllm.model_executor.layers.layernorm.RMSNormGated
    """,
)
OPS += opaque(
    "quantize",
    CODES,
    _READ,
    """
    torch.ops._C.silu_and_mul_quant(Tensor! result, Tensor input, Tensor scale) -> ()
    torch.ops._C.silu_and_mul_per_block_quant(Tensor! out, Tensor input, Tensor! scales,
        int group_size, Tensor? scale_ub=None, bool is_scale_transposed=False) -> ()
    torch.ops._C.situ_and_mul_quant(Tensor! out, Tensor! scale, Tensor input, float beta=1.0,
        float linear_beta=-1.0, int group_size=0, Tensor? num_valid_tokens=None,
        int topk=1) -> ()
    torch.ops._C.persistent_masked_m_silu_mul_quant(Tensor input, Tensor counts, Tensor! y_q,
        Tensor! y_s, bool use_ue8m0) -> ()
    torch.ops._C.masked_moe_activation(Tensor! out, Tensor input, Tensor valid_token_counts,
        str activation, float clamp_limit=0.0, float alpha=1.0, float beta=0.0,
        float situ_beta=1.0, float situ_linear_beta=-1.0) -> ()
    torch.ops._C.silu_and_mul_nvfp4_quant(Tensor! result, Tensor! result_block_scale,
        Tensor input, Tensor input_global_scale) -> ()
    torch.ops._C.static_scaled_fp8_quant, vllm._custom_ops.scaled_fp8_quant(Tensor! result,
        Tensor input, Tensor scale, int[]? group_shape=None) -> ()
    torch.ops._C.dynamic_scaled_fp8_quant(Tensor! result, Tensor input, Tensor! scale) -> ()
    torch.ops._C.dynamic_per_token_scaled_fp8_quant(Tensor! result, Tensor input, Tensor! scale,
        Tensor? scale_ub) -> ()
    torch.ops._C.static_scaled_int8_quant, vllm._custom_ops.scaled_int8_quant(Tensor! result,
        Tensor input, Tensor scale, Tensor? azp) -> ()
    torch.ops._C.dynamic_scaled_int8_quant(Tensor! result, Tensor input, Tensor! scale,
        Tensor!? azp) -> ()
    torch.ops._C.per_token_group_fp8_quant(Tensor input, Tensor! output_q, Tensor! output_s,
        int group_size, float eps, float fp8_min, float fp8_max, bool scale_ue8m0,
        bool dummy_is_scale_transposed, bool dummy_is_tma_aligned) -> ()
    torch.ops._C.per_token_group_quant_int8(Tensor input, Tensor! output_q, Tensor! output_s,
        int group_size, float eps, float int8_min, float int8_max) -> ()
    torch.ops._C.scaled_fp4_quant(Tensor input, Tensor input_scale,
        bool is_sf_swizzled_layout) -> (Tensor, Tensor)
    vllm.model_executor.layers.quantization.utils.fp8_utils.per_token_group_quant_fp8(x,
        group_size, eps=1e-10, dtype=None, column_major_scales=False, tma_aligned_scales=False,
        out_q=None, use_ue8m0=None) -> tuple[torch.Tensor, torch.Tensor]
    vllm._custom_ops.scaled_fp4_quant(Tensor! output, Tensor input, Tensor! output_scale,
        Tensor input_scale) -> ()
    """,
)
OPS += opaque(
    "quantize",
    UNPACK,
    _READ,
    """
    torch.ops._C.awq_dequantize, vllm._custom_ops.awq_dequantize(Tensor _kernel,
        Tensor _scaling_factors, Tensor _zeros, SymInt split_k_iters, int thx,
        int thy) -> Tensor
    vllm.model_executor.layers.quantization.awq_triton.awq_dequantize_triton(qweight, scales,
        zeros, block_size_x=32, block_size_y=32) -> torch.Tensor
    torch.ops._C.ggml_dequantize, vllm._custom_ops.ggml_dequantize(Tensor W, int type, SymInt m,
        SymInt n, ScalarType? dtype) -> Tensor
    torch.ops._C.aqlm_dequant, vllm._custom_ops.aqlm_dequant(Tensor codes, Tensor codebooks,
        int[] codebook_partition_sizes) -> Tensor
    """,
)
OPS += opaque(
    "rope",
    LAYER,
    _READ,
    """
    vllm.model_executor.layers.rotary_embedding.RotaryEmbedding(positions, query,
        key=None) -> tuple[torch.Tensor, torch.Tensor | None]
    vllm.model_executor.layers.rotary_embedding.common.ApplyRotaryEmb(x, cos,
        sin) -> torch.Tensor
    """,
)
OPS += opaque(
    "sampling",
    FILTER,
    _READ,
    """
    torch.ops._C.apply_repetition_penalties_(Tensor! logits, Tensor prompt_mask,
        Tensor output_mask, Tensor repetition_penalties) -> ()
    """,
)
OPS += opaque(
    "sampling",
    TOKENS,
    _READ,
    """
    torch.ops._C.top_k_per_row_prefill,
        vllm._custom_ops.top_k_per_row_prefill(Tensor logits, Tensor rowStarts, Tensor rowEnds,
        Tensor! indices, int numRows, int stride0, int stride1, int topK) -> ()
    torch.ops._C.top_k_per_row_decode,
        vllm._custom_ops.top_k_per_row_decode(Tensor logits, int next_n, Tensor seq_lens,
        Tensor! indices, int numRows, int stride0, int stride1, int topK) -> ()
    torch.ops._C.persistent_topk(Tensor logits, Tensor lengths, Tensor! output,
        Tensor workspace, int k, int max_seq_len) -> ()
    """,
)
OPS += opaque(
    "state_space",
    RAISES,
    _READ,
    """
    vllm.model_executor.layers.lightning_attn.lightning_attention(q, k, v, ed, block_size=256,
        kv_history=None) -> tuple[torch.Tensor, torch.Tensor]
    """,
)
OPS += opaque(
    "attention",
    OPEN,
    _READ,
    """
    vllm.attention.ops.triton_decode_attention.decode_attention_fwd(q, k_buffer, v_buffer, o,
        req_to_token, b_seq_len, attn_logits, num_kv_splits, sm_scale, page_size=1,
        logit_cap=0.0)
    """,
)
OPS += opaque(
    "state_space",
    DIFFERS,
    _READ,
    """
    vllm.model_executor.layers.fla.ops.chunk_gated_delta_rule,
        vllm.model_executor.layers.fla.ops.chunk.chunk_gated_delta_rule(q, k, v, g, beta,
        scale=None, initial_state=None, output_final_state=False, cu_seqlens=None)
    """,
)
OPS += opaque(
    "matmul",
    CODED,
    _READ,
    """
    torch.ops._C.cutlass_scaled_mm_azp, vllm._custom_ops.cutlass_scaled_mm_azp(Tensor! out,
        Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor azp_adj, Tensor? azp,
        Tensor? bias) -> ()
    """,
)
OPS += opaque(
    "matmul",
    UNDOCUMENTED,
    _READ,
    """
    torch.ops._C.fp32_router_gemm, vllm._custom_ops.fp32_router_gemm(Tensor! output,
        Tensor mat_a, Tensor mat_b) -> ()
    """,
)
OPS += opaque(
    "matmul",
    CODEBOOK,
    _READ,
    """
    torch.ops._C.aqlm_gemm, vllm._custom_ops.aqlm_gemm(Tensor input, Tensor codes,
        Tensor codebooks, Tensor scales, int[] codebook_partition_sizes, Tensor? bias) -> Tensor
    vllm._C.ops.squeezellm_gemm(vec, mat, mul, lookup_table)
    """,
)
OPS += opaque(
    "matmul",
    SPARSE,
    _READ,
    """
    torch.ops._C.cutlass_scaled_sparse_mm,
        vllm._custom_ops.cutlass_scaled_sparse_mm(Tensor! out, Tensor a, Tensor bt_nzs,
        Tensor bt_meta, Tensor a_scales, Tensor b_scales, Tensor? bias) -> ()
    """,
)
OPS += opaque(
    "moe",
    TILED,
    _READ,
    """
    torch.ops._moe_C.moe_wna16_gemm, vllm._custom_ops.moe_wna16_gemm(Tensor input,
        Tensor! output, Tensor b_qweight, Tensor b_scales, Tensor? b_qzeros,
        Tensor? topk_weights, Tensor sorted_token_ids, Tensor expert_ids,
        Tensor num_tokens_post_pad, int top_k, int BLOCK_SIZE_M, int BLOCK_SIZE_N,
        int BLOCK_SIZE_K, int bit) -> Tensor
    torch.ops._moe_C.moe_wna16_marlin_gemm, vllm._custom_ops.moe_wna16_marlin_gemm(Tensor! a,
        Tensor? c_or_none, Tensor! b_q_weight, Tensor? b_bias_or_none, Tensor! b_scales,
        Tensor? a_scales, Tensor? global_scale, Tensor? b_zeros_or_none, Tensor! workspace,
        Tensor sorted_token_ids, Tensor! expert_ids, Tensor! num_tokens_past_padded,
        Tensor! topk_weights, int moe_block_size, int top_k, bool mul_topk_weights,
        int b_type_id, int size_m, int size_n, int size_k, bool use_atomic_add,
        bool use_fp32_reduce, bool is_zp_float, int thread_k, int thread_n,
        int blocks_per_sm) -> Tensor
    """,
)
OPS += opaque(
    "moe",
    DIFFERS,
    _READ,
    """
    torch.ops._moe_C.moe_permute(Tensor input, Tensor topk_ids, Tensor token_expert_indices,
        Tensor? expert_map, int n_expert, int n_local_expert, int topk, Tensor! permuted_input,
        Tensor! expert_first_token_offset, Tensor! inv_permuted_idx, Tensor! permuted_idx) -> ()
    torch.ops._moe_C.moe_unpermute(Tensor permuted_hidden_states, Tensor topk_weights,
        Tensor inv_permuted_idx, Tensor? expert_first_token_offset, int topk,
        Tensor! hidden_states) -> ()
    """,
)
OPS += opaque(
    "norm",
    BUFFER,
    _READ,
    """
    torch.ops._C.rms_norm_dynamic_per_token_quant(Tensor! result, Tensor input, Tensor weight,
        Tensor! scale, float epsilon, Tensor? scale_ub, Tensor!? residual) -> ()
    torch.ops._C.rms_norm_per_block_quant,
        vllm._custom_ops.rms_norm_per_block_quant(Tensor! result, Tensor input, Tensor weight,
        Tensor! scale, float epsilon, Tensor? scale_ub, Tensor!? residual, int group_size,
        bool is_scale_transposed) -> ()
    """,
)
OPS += opaque(
    "rope",
    WRITES,
    _READ,
    """
    torch.ops._C_cache_ops.concat_and_cache_mla_rope_fused,
        vllm._custom_ops.concat_and_cache_mla_rope_fused(Tensor positions, Tensor! q_pe,
        Tensor! k_pe, Tensor kv_c, Tensor cos_sin_cache, bool is_neox, Tensor slot_mapping,
        Tensor! kv_cache, str kv_cache_dtype, Tensor kv_cache_scale) -> ()
    """,
)
OPS += opaque(
    "attention",
    UNDOCUMENTED,
    _READ,
    """
    torch.ops._C.sm100_cutlass_mla_decode,
        vllm._custom_ops.sm100_cutlass_mla_decode(Tensor! out, Tensor! lse, Tensor q_nope,
        Tensor q_pe,
        Tensor kv_c_and_k_pe_cache, Tensor seq_lens, Tensor page_table, Tensor workspace,
        float scale, int num_kv_splits) -> ()
    """,
)
OPS += opaque(
    "attention",
    WRITES,
    _READ,
    """
    vllm.v1.attention.ops.prefix_prefill.context_attention_fwd,
        vllm.attention.ops.prefix_prefill.context_attention_fwd(q, k, v, o, kv_cache_dtype,
        k_cache, v_cache, b_loc, b_start_loc, b_seq_len, max_seq_len, max_input_len, k_scale,
        v_scale, alibi_slopes=None, sliding_window=None, sm_scale=None, skip_decode=False,
        fp8_out_scale=None, sinks=None, is_block_table_ptr=False, interleaved_v_pack_factor=0,
        causal=True)
    vllm.v1.attention.ops.chunked_prefill_paged_decode.chunked_prefill_paged_decode,
        vllm.attention.ops.chunked_prefill_paged_decode.chunked_prefill_paged_decode(query, key,
        value, output, kv_cache_dtype, key_cache, value_cache, block_table, query_start_loc,
        seq_lens, max_seq_len, max_query_len, k_scale, v_scale, alibi_slopes=None,
        sliding_window=None, sm_scale=None, output_scale=None, sinks=None,
        is_block_table_ptr=False, use_interleaved_v_cache=False, causal=True)
    torch.ops._vllm_fa2_C.fwd_kvcache(Tensor! q, Tensor kcache, Tensor vcache, Tensor? k,
        Tensor? v, Tensor? seqlens_k, Tensor? rotary_cos, Tensor? rotary_sin,
        Tensor? cache_batch_idx, Tensor? leftpad_k, Tensor? block_table, Tensor? alibi_slopes,
        Tensor!? out, float softmax_scale, bool is_causal, int window_size_left,
        int window_size_right, float softcap, bool is_rotary_interleaved,
        int num_splits) -> Tensor[]
    """,
)
OPS += opaque(
    "attention",
    OPTIONS,
    _READ,
    """
    torch.ops._vllm_fa3_C.fwd(q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k,
        cu_seqlens_k=None, seqused_k=None, q_v=None, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=None, softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None, return_softmax_lse=False, out=None,
        scheduler_metadata=None, q_descale=None, k_descale=None, v_descale=None, num_splits=0,
        output_scale=None, fa_version=DEFAULT_FA_VERSION, s_aux=None, cp_world_size=1,
        cp_rank=0, cp_tot_seqused_k=None, mask_mod=None, block_sparse_tensors=None,
        aux_tensors=None, aux_tensor_leading_dims=None, dynamic_causal=None,
        gather_kv_indices=None, gather_kv_valid_length=None)
    """,
)
OPS += opaque(
    "state_space",
    STATES,
    _READ,
    """
    torch.ops._C.selective_scan_fwd, vllm._custom_ops.selective_scan_fwd(Tensor! u,
        Tensor! delta, Tensor! A, Tensor! B, Tensor! C, Tensor? D_, Tensor!? z_,
        Tensor? delta_bias_, bool delta_softplus, Tensor? query_start_loc,
        Tensor? cache_indices, Tensor? has_initial_state, Tensor! ssm_states, int null_block_id,
        int block_size, Tensor? block_idx_first_scheduled_token,
        Tensor? block_idx_last_scheduled_token, Tensor? initial_state_idx,
        Tensor? cu_chunk_seqlen, Tensor? last_chunk_indices) -> ()
    vllm.model_executor.layers.mamba.ops.mamba_ssm.selective_scan_fn(u, ssm_states, delta, A, B,
        C, D=None, z=None, delta_bias=None, delta_softplus=False, query_start_loc=None,
        cache_indices=None, has_initial_state=None, null_block_id=NULL_BLOCK_ID,
        block_size=1024, block_idx_first_scheduled_token=None,
        block_idx_last_scheduled_token=None, initial_state_idx=None, cu_chunk_seqlen=None,
        last_chunk_indices=None) -> torch.Tensor
    vllm.model_executor.layers.mamba.ops.ssd_combined.mamba_chunk_scan_combined(x, dt, A, B, C,
        chunk_size, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None,
        chunk_indices=None, chunk_offsets=None, cu_seqlens=None, dt_softplus=False,
        dt_limit=(0.0, float("inf")), return_final_states=False, return_varlen_states=False)
    vllm.model_executor.layers.mamba.ops.ssd_combined.mamba_chunk_scan_combined_varlen(x, dt, A,
        B, C, chunk_size, cu_seqlens, cu_chunk_seqlens, last_chunk_indices, seq_idx, out,
        D=None, z=None, dt_bias=None, initial_states=None, dt_softplus=False, dt_limit=(0.0,
        float('inf')), return_intermediate_states=False, state_dtype=None,
        final_states_out=None, final_state_indices=None)
    torch.ops._C.causal_conv1d_fwd, vllm._custom_ops.causal_conv1d_fwd(Tensor! x, Tensor! weight,
        Tensor? bias_,
        Tensor!? conv_states, Tensor? query_start_loc, Tensor? cache_indices,
        Tensor? has_initial_state, bool silu_activation, int pad_slot_id) -> ()
    """,
)
OPS += opaque(
    "state_space",
    STEPS,
    _READ,
    """
    vllm.third_party.flash_linear_attention.ops.fused_recurrent.fused_recurrent_gated_delta_rule,
        vllm.third_party.flash_linear_attention.ops.fused_recurrent_gated_delta_rule,
        vllm.model_executor.layers.fla.ops.fused_recurrent_gated_delta_rule,
        vllm.model_executor.layers.fla.ops.fused_recurrent.fused_recurrent_gated_delta_rule(q, k,
        v, g, beta=None, scale=None, initial_state=None, inplace_final_state=True,
        cu_seqlens=None, ssm_state_indices=None, num_accepted_tokens=None,
        use_qk_l2norm_in_kernel=False) -> tuple[torch.Tensor, torch.Tensor]
    vllm.third_party.flash_linear_attention.ops.fused_recurrent.fused_recurrent_gated_delta_rule_packed_decode,
        vllm.third_party.flash_linear_attention.ops.fused_recurrent_gated_delta_rule_packed_decode(
        mixed_qkv, a, b, A_log, dt_bias, scale, initial_state, out, ssm_state_indices,
        use_qk_l2norm_in_kernel=False)
    vllm.third_party.flash_linear_attention.ops.fused_sigmoid_gating.fused_sigmoid_gating_delta_rule_update,
        vllm.third_party.flash_linear_attention.ops.fused_sigmoid_gating_delta_rule_update(A_log,
        a, b, dt_bias, q, k, v, beta=1.0, threshold=20.0, scale=None, initial_state=None,
        inplace_final_state=True, cu_seqlens=None, ssm_state_indices=None,
        num_accepted_tokens=None, use_qk_l2norm_in_kernel=False, is_kda=False)
    vllm.third_party.flash_linear_attention.ops.kda.fused_recurrent_kda(q, k, v, g, beta=None,
        scale=None, initial_state=None, inplace_final_state=True, use_qk_l2norm_in_kernel=True,
        cu_seqlens=None, ssm_state_indices=None)
    """,
)
OPS += opaque(
    "attention",
    INDEXER,
    _READ,
    """
    torch.ops.vllm.sparse_attn_indexer,
        vllm.model_executor.layers.sparse_attn_indexer.sparse_attn_indexer
    vllm.model_executor.layers.sparse_attn_indexer.fused_indexer_q_rope_quant
    """,
)
OPS += opaque(
    "moe",
    FP4_EXPERTS,
    _READ,
    """
    torch.ops._C.cutlass_fp4_group_mm, vllm._custom_ops.cutlass_fp4_moe_mm
    torch.ops._C.cutlass_mxfp4_group_mm, vllm._custom_ops.cutlass_mxfp4_moe_mm
    torch.ops._C.cutlass_w4a8_moe_mm, vllm._custom_ops.cutlass_w4a8_moe_mm
    vllm.model_executor.layers.fused_moe.experts.gpt_oss_triton_kernels_moe.triton_kernel_moe_forward
    vllm.model_executor.layers.fused_moe.experts.gpt_oss_triton_kernels_moe.triton_kernel_fused_experts
    """,
)
OPS += opaque(
    "moe",
    FP8_PRODUCT,
    _READ,
    """
    torch.ops._C.cutlass_moe_mm, vllm._custom_ops.cutlass_moe_mm
    """,
)
OPS += opaque(
    "cache",
    CACHE,
    _READ,
    """
    torch.ops._C_cache_ops.indexer_k_quant_and_cache, vllm._custom_ops.indexer_k_quant_and_cache
    torch.ops._C_cache_ops.cp_gather_cache, vllm._custom_ops.cp_gather_cache
    torch.ops._C_cache_ops.cp_gather_indexer_k_quant_cache,
        vllm._custom_ops.cp_gather_indexer_k_quant_cache
    torch.ops._C_cache_ops.cp_gather_and_upconvert_fp8_kv_cache,
        vllm._custom_ops.cp_gather_and_upconvert_fp8_kv_cache
    """,
)
