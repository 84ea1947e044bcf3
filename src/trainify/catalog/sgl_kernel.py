"""SGLang's kernels: the wheels ``sglang-kernel`` 0.4.10 and ``sgl-kernel`` 0.3.21.

Both install the module ``sgl_kernel``.  Its Python functions take ``(input, ..., out=None)`` and
return the result; the registered ops below them take the output first.  As in flashinfer, from
which most of them stem, norms and activations compute in float32 and round once.
"""

from . import FusedOp

_NEW = "sgl_kernel/elementwise.py, sglang-kernel 0.4.10"
_OPS = "TORCH_LIBRARY(sgl_kernel), sglang-kernel 0.4.10"
_OLD = "sgl_kernel/elementwise.py, sgl-kernel 0.3.21"
_FLASH = "sgl_kernel/flash_attn.py, sglang-kernel 0.4.10"

OPS = (
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
        equivalent="varlen_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, "
        "window_size, softcap)",
        source=_FLASH,
        unsupported=(
            "seqused_q",
            "seqused_k",
            "page_table",
            "qv",
            "q_descale",
            "k_descale",
            "v_descale",
            "attention_chunk",
            "only_qv",
            "return_softmax_lse",
            "sinks",
            "score_mod",
        ),
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
        equivalent="cached_attention(q, k_cache, v_cache, cache_seqlens, page_table, "
        "softmax_scale, causal, window_size, softcap)",
        source=_FLASH,
        unsupported=(
            "k",
            "v",
            "qv",
            "rotary_cos",
            "rotary_sin",
            "cache_batch_idx",
            "cache_leftpad",
            "cu_seqlens_q",
            "q_descale",
            "k_descale",
            "v_descale",
            "attention_chunk",
            "only_qv",
            "return_softmax_lse",
            "sinks",
            "score_mod",
        ),
    ),
)
