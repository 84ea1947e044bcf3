"""exllamav2's extension: ``exllamav2/exllamav2_ext``.  The output stands last, or is the input."""

from . import FusedOp, opaque
from .reasons import CACHE, CODES, FILTER, HANDLE, LAYER, TOKENS, UNPACK

_READ = "exllamav2 da07facd10b5"
_EXLLAMA = "exllamav2/exllamav2_ext"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=("exllamav2_ext.rms_norm", "exllamav2.ext.exllamav2_ext.rms_norm"),
        schema="rms_norm(Tensor x, Tensor w, Tensor(a!) y, float epsilon) -> ()",
        equivalent="y = rms_norm_clamped(x, w, epsilon, y.dtype)",
        source=_EXLLAMA,
    ),
    FusedOp(
        names=("exllamav2_ext.rms_norm_", "exllamav2.ext.exllamav2_ext.rms_norm_"),
        schema="rms_norm_(Tensor(a!) x, Tensor w, float epsilon) -> ()",
        equivalent="x = rms_norm_clamped(x, w, epsilon, x.dtype)",
        source=_EXLLAMA,
    ),
    FusedOp(
        names=("exllamav2_ext.layer_norm", "exllamav2.ext.exllamav2_ext.layer_norm"),
        schema="layer_norm(Tensor x, Tensor w, Tensor b, Tensor(a!) y, float epsilon) -> ()",
        equivalent="y = layer_norm(x, w, None if b.is_meta else b, epsilon)",
        source=_EXLLAMA,
    ),
    FusedOp(
        names=("exllamav2_ext.layer_norm_", "exllamav2.ext.exllamav2_ext.layer_norm_"),
        schema="layer_norm_(Tensor(a!) x, Tensor w, Tensor b, float epsilon) -> ()",
        equivalent="x = layer_norm(x, w, None if b.is_meta else b, epsilon)",
        source=_EXLLAMA,
    ),
    FusedOp(
        names=("exllamav2_ext.softcap_", "exllamav2.ext.exllamav2_ext.softcap_"),
        schema="softcap_(Tensor(a!) x, float scale) -> ()",
        equivalent="x = soft_cap(x, scale)",
        source=_EXLLAMA,
    ),
    FusedOp(
        names=("exllamav2_ext.head_norm", "exllamav2.ext.exllamav2_ext.head_norm"),
        schema="head_norm(Tensor x, Tensor w, Tensor? b, Tensor(a!) y, float epsilon, bool "
        "rms=False) -> ()",
        equivalent="y = head_layer_norm_clamped(x, w, b, epsilon)",
        source="exllamav2/exllamav2_ext/cuda/head_norm.cu",
        unsupported=("rms",),
    ),
    FusedOp(
        names=("exllamav2_ext.head_norm_", "exllamav2.ext.exllamav2_ext.head_norm_"),
        schema="head_norm_(Tensor(a!) x, Tensor w, Tensor? b, float epsilon, bool rms=False) -> ()",
        equivalent="x = head_layer_norm_clamped(x, w, b, epsilon)",
        source="exllamav2/exllamav2_ext/cuda/head_norm.cu",
        unsupported=("rms",),
    ),
    FusedOp(
        names=("exllamav2_ext.rope_", "exllamav2.ext.exllamav2_ext.rope_"),
        schema="rope_(Tensor(a!) x, Tensor sin, Tensor cos, int past_len, int num_heads, int "
        "head_dim, Tensor? offsets, bool neox_style) -> ()",
        equivalent="x = rotate_fp16(x, sin, cos, past_len, num_heads, head_dim, offsets, "
        "neox_style)",
        source="exllamav2/exllamav2_ext/cuda/rope.cu",
    ),
    FusedOp(
        names=(
            "exllamav2_ext.gemm_half_half_half",
            "exllamav2.ext.exllamav2_ext.gemm_half_half_half",
        ),
        schema="gemm_half_half_half(Tensor a, Tensor b, Tensor(a!) c, float alpha, float beta, "
        "bool force_cublas) -> ()",
        equivalent="c = torch.addmm(c, a, b, beta=beta, alpha=alpha)",
        source="exllamav2/exllamav2_ext/ext_gemm.cpp",
        family="matmul",
        look_at="the kernel may add up in 16 bits",
    ),
)

# Without an equivalent.
OPS += opaque(
    "attention",
    HANDLE,
    _READ,
    """
    exllamav2_ext.q_attn_forward_1, exllamav2.ext.exllamav2_ext.q_attn_forward_1(q_attn, x,
        batch_size, q_len, past_len, past_lens, q_temp, k_temp, v_temp, sin, cos, loras,
        loras_temp)
    exllamav2_ext.q_attn_forward_2, exllamav2.ext.exllamav2_ext.q_attn_forward_2(q_attn, x,
        attn_output, batch_size, q_len, loras, loras_temp)
    exllamav2_ext.tp_attn_forward_, exllamav2.ext.exllamav2_ext.tp_attn_forward_(tp_context,
        hidden_states, temp_bc0, temp_bc1, temp_bc2, temp_q, temp_k, temp_v, temp_o, k_cache,
        v_cache, pre_layernorm, norm_epsilon, q_proj, k_proj, v_proj, o_proj, head_dim,
        rope_style, batch_size, q_len, sin, cos, past_len_tp, scaling)
    exllamav2_ext.tp_attn_forward_paged_,
        exllamav2.ext.exllamav2_ext.tp_attn_forward_paged_(... past_lens, block_index, scaling)
    """,
)
OPS += opaque(
    "attention",
    LAYER,
    _READ,
    """
    exllamav2.ExLlamaV2Attention(hidden_states, cache=None, attn_params=None, past_len=None,
        intermediates=False, loras=None, **kwargs)
    """,
)
OPS += opaque(
    "cache",
    CACHE,
    _READ,
    """
    exllamav2_ext.fp16_to_q_kv, exllamav2.ext.exllamav2_ext.fp16_to_q_kv(k_in, k_out, k_scales,
        v_in, v_out, v_scales, batch_size, offset, width, page_size, cache_seqlens, block_table,
        wbits)
    exllamav2_ext.q_to_fp16_kv, exllamav2.ext.exllamav2_ext.q_to_fp16_kv(k_in, k_out, k_scales,
        v_in, v_out, v_scales, batch_size, offset, width, page_size, cache_seqlens, block_table,
        wbits)
    exllamav2_ext.fp16_to_fp8, exllamav2.ext.exllamav2_ext.fp16_to_fp8(in_tensor, out_tensor,
        batch_size, offset, width)
    exllamav2_ext.fp8_to_fp16, exllamav2.ext.exllamav2_ext.fp8_to_fp16(in_tensor, out_tensor,
        batch_size, offset, width)
    """,
)
OPS += opaque(
    "matmul",
    HANDLE,
    _READ,
    """
    exllamav2_ext.gemm_half_q_half, exllamav2.ext.exllamav2_ext.gemm_half_q_half(a, b_handle, c,
        force_cuda)
    exllamav2_ext.q_mlp_forward_, exllamav2.ext.exllamav2_ext.q_mlp_forward_(q_mlp, x, loras,
        loras_temp)
    exllamav2_ext.tp_mlp_forward_, exllamav2.ext.exllamav2_ext.tp_mlp_forward_(tp_context,
        hidden_states, temp_bc0, temp_bc1, temp_bc2, temp_gate, temp_up, temp_down,
        pre_layernorm, norm_epsilon, gate, up, down, act_gelu)
    exllamav2_ext.gemm_half_q_half_tp, exllamav2.ext.exllamav2_ext.gemm_half_q_half_tp(a[], b[],
        c[], force_cuda, tp_context, t_device=-1)
    """,
)
OPS += opaque(
    "matmul",
    LAYER,
    _READ,
    """
    exllamav2.ExLlamaV2Linear(hidden_states, cache=None, attn_params=None, past_len=None,
        intermediates=False, loras=None, force_recons=False, force_cuda=False, **kwargs)
    exllamav2.ExLlamaV2MLP(hidden_states, cache=None, attn_params=None, past_len=None,
        intermediates=False, loras=None, **kwargs)
    """,
)
OPS += opaque(
    "moe",
    HANDLE,
    _READ,
    """
    exllamav2_ext.q_moe_mlp_forward_, exllamav2.ext.exllamav2_ext.q_moe_mlp_forward_(q_moe_mlp,
        x)
    """,
)
OPS += opaque(
    "moe",
    LAYER,
    _READ,
    """
    exllamav2.ExLlamaV2MoEMLP(hidden_states, cache=None, attn_params=None, past_len=None,
        intermediates=False, loras=None, **kwargs)
    """,
)
OPS += opaque(
    "norm",
    LAYER,
    _READ,
    """
    exllamav2.ExLlamaV2RMSNorm(hidden_states, cache=None, attn_params=None, past_len=None,
        intermediates=False, loras=None, output_fp32=False, **kwargs)
    exllamav2.ExLlamaV2LayerNorm(hidden_states, cache=None, attn_params=None, past_len=None,
        intermediates=False, loras=None, output_fp32=False, **kwargs)
    exllamav2.ExLlamaV2HeadNorm(hidden_states, cache=None, attn_params=None, past_len=None,
        intermediates=False, loras=None, **kwargs)
    """,
)
OPS += opaque(
    "quantize",
    CODES,
    _READ,
    """
    exllamav2_ext.matrix_fp16_to_q4, exllamav2.ext.exllamav2_ext.matrix_fp16_to_q4(in, out,
        scales)
    """,
)
OPS += opaque(
    "quantize",
    UNPACK,
    _READ,
    """
    exllamav2_ext.reconstruct, exllamav2.ext.exllamav2_ext.reconstruct(q_handle, output)
    exllamav2_ext.had_paley, exllamav2.ext.exllamav2_ext.had_paley(h)
    exllamav2_ext.matrix_q4_to_fp16, exllamav2.ext.exllamav2_ext.matrix_q4_to_fp16(in, scales,
        out)
    exllamav2_ext.make_q_matrix, exllamav2.ext.exllamav2_ext.make_q_matrix(q_weight, q_perm,
        q_invperm, q_scale, q_scale_max, q_groups, q_group_map, gptq_qzeros, gptq_scales,
        gptq_g_idx, bias, temp_dq, max_dq_rows) -> handle
    """,
)
OPS += opaque(
    "sampling",
    FILTER,
    _READ,
    """
    exllamav2_ext.apply_rep_penalty, exllamav2.ext.exllamav2_ext.apply_rep_penalty(sequence,
        penalty_max, sustain, decay, alpha_frequency, alpha_presence, logits)
    exllamav2_ext.logit_filter_exclusive,
        exllamav2.ext.exllamav2_ext.logit_filter_exclusive(filter, exclusive_lists)
    """,
)
OPS += opaque(
    "sampling",
    TOKENS,
    _READ,
    """
    exllamav2_ext.sample_basic, exllamav2.ext.exllamav2_ext.sample_basic(...)
    """,
)
OPS += opaque(
    "norm",
    HANDLE,
    _READ,
    """
    exllamav2_ext.rms_norm_tp, exllamav2.ext.exllamav2_ext.rms_norm_tp(x[], w[], y[], epsilon,
        tp_context)
    """,
)
