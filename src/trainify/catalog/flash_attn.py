"""flash-attention's forward-only entry points, at 0251105a2fb1.

``flash_attn_func`` and its relatives are autograd functions and not listed.  The raw bindings below
them, and attention over a key-value cache, have no backward.
"""

from . import FusedOp

_RAW = "csrc/flash_attn/flash_api.cpp"
_INTERFACE = "flash_attn/flash_attn_interface.py"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=(
            "flash_attn.flash_attn_with_kvcache",
            "flash_attn.flash_attn_interface.flash_attn_with_kvcache",
        ),
        schema="flash_attn_with_kvcache(Tensor q, Tensor k_cache, Tensor v_cache, "
        "Tensor? k=None, Tensor? v=None, Tensor? rotary_cos=None, Tensor? rotary_sin=None, "
        "Tensor? cache_seqlens=None, Tensor? cache_batch_idx=None, Tensor? cache_leftpad=None, "
        "Tensor? block_table=None, float? softmax_scale=None, bool causal=False, "
        "int[2] window_size=(-1, -1), float softcap=0.0, bool rotary_interleaved=True, "
        "Tensor? alibi_slopes=None, int num_splits=0, bool return_softmax_lse=False) -> Tensor",
        equivalent="cached_attention(q, k_cache, v_cache, cache_seqlens, block_table, "
        "softmax_scale, causal, window_size, softcap)",
        source=_INTERFACE,
        unsupported=(
            "k",
            "v",
            "rotary_cos",
            "rotary_sin",
            "cache_batch_idx",
            "cache_leftpad",
            "alibi_slopes",
            "return_softmax_lse",
        ),
    ),
    FusedOp(
        names=("flash_attn_interface.flash_attn_with_kvcache",),
        schema="flash_attn_with_kvcache(Tensor q, Tensor k_cache, Tensor v_cache, "
        "Tensor? k=None, Tensor? v=None, Tensor? qv=None, Tensor? rotary_cos=None, "
        "Tensor? rotary_sin=None, Tensor? cache_seqlens=None, Tensor? cache_batch_idx=None, "
        "Tensor? cache_leftpad=None, Tensor? page_table=None, Tensor? cu_seqlens_q=None, "
        "Tensor? cu_seqlens_k_new=None, int? max_seqlen_q=None, Tensor? rotary_seqlens=None, "
        "Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None, "
        "float? softmax_scale=None, bool causal=False, int[2] window_size=(-1, -1), "
        "int attention_chunk=0, float softcap=0.0, bool rotary_interleaved=True, "
        "Tensor? scheduler_metadata=None, int num_splits=0, bool? pack_gqa=None, "
        "int sm_margin=0, bool return_softmax_lse=False) -> Tensor",
        equivalent="cached_or_packed_attention(q, k_cache, v_cache, cache_seqlens, page_table, "
        "cu_seqlens_q, softmax_scale, causal, window_size, softcap)",
        source="hopper/flash_attn_interface.py",
        unsupported=(
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
            "return_softmax_lse",
        ),
    ),
    # The bindings give all arguments without defaults.  The ones written here let a call say by
    # its literals that it asks for nothing beyond the equivalent.
    FusedOp(
        names=("flash_attn_2_cuda.varlen_fwd",),
        schema="varlen_fwd(Tensor q, Tensor k, Tensor v, Tensor? out, Tensor cu_seqlens_q, "
        "Tensor cu_seqlens_k, Tensor? seqused_k, Tensor? leftpad_k, Tensor? block_table, "
        "Tensor? alibi_slopes, int max_seqlen_q, int max_seqlen_k, float p_dropout=0.0, "
        "float softmax_scale=1.0, bool zero_tensors=False, bool is_causal=False, "
        "int window_size_left=-1, int window_size_right=-1, float softcap=0.0, "
        "bool return_softmax=False, Generator? gen=None) -> (Tensor, Tensor, Tensor, Tensor)",
        equivalent="varlen_attention_fwd(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, "
        "is_causal, window_size_left, window_size_right, softcap, seqused_k, block_table)",
        source=_RAW,
        unsupported=(
            "out",
            "leftpad_k",
            "alibi_slopes",
            "p_dropout",
            "return_softmax",
        ),
    ),
    FusedOp(
        names=("flash_attn_2_cuda.fwd",),
        schema="fwd(Tensor q, Tensor k, Tensor v, Tensor? out, Tensor? alibi_slopes, "
        "float p_dropout=0.0, float softmax_scale=1.0, bool is_causal=False, "
        "int window_size_left=-1, int window_size_right=-1, float softcap=0.0, "
        "bool return_softmax=False, Generator? gen=None) -> (Tensor, Tensor, Tensor, Tensor)",
        equivalent="attention_fwd(q, k, v, softmax_scale, is_causal, window_size_left, "
        "window_size_right, softcap)",
        source=_RAW,
        unsupported=("out", "alibi_slopes", "p_dropout", "return_softmax"),
    ),
    FusedOp(
        names=(
            "flash_attn.flash_attn_interface._flash_attn_forward",
            "flash_attn.flash_attn_interface._wrapped_flash_attn_forward",
            "torch.ops.flash_attn._flash_attn_forward",
        ),
        schema="_flash_attn_forward(Tensor q, Tensor k, Tensor v, float dropout_p=0.0, "
        "float softmax_scale=1.0, bool causal=False, int window_size_left=-1, "
        "int window_size_right=-1, float softcap=0.0, Tensor? alibi_slopes=None, "
        "bool return_softmax=False) -> (Tensor, Tensor, Tensor, Tensor)",
        equivalent="attention_fwd(q, k, v, softmax_scale, causal, window_size_left, "
        "window_size_right, softcap)",
        source=f"{_INTERFACE}, since flash-attn 2.7",
        unsupported=("dropout_p", "alibi_slopes", "return_softmax"),
    ),
    FusedOp(
        names=(
            "flash_attn.flash_attn_interface._flash_attn_varlen_forward",
            "flash_attn.flash_attn_interface._wrapped_flash_attn_varlen_forward",
            "torch.ops.flash_attn._flash_attn_varlen_forward",
        ),
        schema="_flash_attn_varlen_forward(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, "
        "Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, float dropout_p=0.0, "
        "float softmax_scale=1.0, bool causal=False, int window_size_left=-1, "
        "int window_size_right=-1, float softcap=0.0, Tensor? alibi_slopes=None, "
        "bool return_softmax=False, Tensor? block_table=None, Tensor? leftpad_k=None, "
        "Tensor? seqused_k=None) -> (Tensor, Tensor, Tensor, Tensor)",
        equivalent="varlen_attention_fwd(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, "
        "causal, window_size_left, window_size_right, softcap, seqused_k, block_table)",
        source=f"{_INTERFACE}, since flash-attn 2.7",
        unsupported=(
            "dropout_p",
            "alibi_slopes",
            "return_softmax",
            "leftpad_k",
        ),
    ),
    FusedOp(
        names=("flash_attn.ops.triton.rotary.apply_rotary",),
        schema="apply_rotary(Tensor x, Tensor cos, Tensor sin, Any seqlen_offsets=0, "
        "Tensor? cu_seqlens=None, int? max_seqlen=None, bool interleaved=False, "
        "bool inplace=False, bool conjugate=False) -> Tensor",
        equivalent="apply_rotary(x, cos, sin, seqlen_offsets, interleaved, conjugate)",
        source="flash_attn/ops/triton/rotary.py",
        unsupported=("cu_seqlens", "inplace"),
    ),
    FusedOp(
        names=("rotary_emb.apply_rotary",),
        schema="apply_rotary(Tensor x1, Tensor x2, Tensor cos, Tensor sin, Tensor(a!) out1, "
        "Tensor(b!) out2, bool conj) -> ()",
        equivalent="out1, out2 = rotate_two_halves(x1, x2, cos, sin, conj)",
        source="csrc/rotary/rotary.cpp",
    ),
    FusedOp(
        names=("dropout_layer_norm.dropout_add_ln_fwd",),
        schema="dropout_add_ln_fwd(Tensor x0, Tensor? residual, Tensor gamma, Tensor? beta, "
        "Tensor? rowscale, Tensor? colscale, Tensor? x0_subset, Tensor? z_subset, "
        "float dropout_p=0.0, float epsilon=1e-5, float rowscale_const=1.0, int z_numrows=0, "
        "Generator? gen=None, bool residual_in_fp32=False, bool is_rms_norm=False)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        equivalent="dropout_add_norm(x0, residual, gamma, beta, epsilon, residual_in_fp32, "
        "is_rms_norm)",
        source="csrc/layer_norm/ln_api.cpp",
        unsupported=(
            "rowscale",
            "colscale",
            "x0_subset",
            "z_subset",
            "dropout_p",
            "rowscale_const",
            "z_numrows",
        ),
    ),
    FusedOp(
        names=("flash_attn_interface.flash_attn_combine",),
        schema="flash_attn_combine(Tensor out_partial, Tensor lse_partial, "
        "Tensor? out=None, ScalarType? out_dtype=None) -> (Tensor, Tensor)",
        equivalent="combine(out_partial, lse_partial)",
        source="hopper/flash_attn_interface.py",
        unsupported=(
            "out",
            "out_dtype",
        ),
    ),
    FusedOp(
        names=("flash_attn.cute.flash_attn_combine",),
        schema="flash_attn_combine(Tensor out_partial, Tensor lse_partial, "
        "Tensor? out=None, ScalarType? out_dtype=None, Tensor? cu_seqlens=None, "
        "Tensor? seqused=None, Tensor? virtual_batch_idx=None, "
        "bool return_lse=True) -> (Tensor, Tensor)",
        equivalent="combine(out_partial, lse_partial)",
        source="flash_attn/cute/interface.py",
        unsupported=(
            "out",
            "out_dtype",
            "cu_seqlens",
            "seqused",
            "virtual_batch_idx",
            "return_lse",
        ),
    ),
)
