"""SageAttention: attention over int8 queries and keys."""

from . import FusedOp

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=("sageattention.sageattn",),
        schema="sageattn(Tensor q, Tensor k, Tensor v, str tensor_layout='HND', "
        "bool is_causal=False, float? sm_scale=None, bool return_lse=False)"
        " -> Tensor",
        equivalent="attention_in_layout(q, k, v, tensor_layout, is_causal, sm_scale)",
        source="sageattention/core.py",
        unsupported=("return_lse",),
    ),
    FusedOp(
        names=("sageattention.sageattn_qk_int8_pv_fp16_triton",),
        schema="sageattn_qk_int8_pv_fp16_triton(Tensor q, Tensor k, Tensor v, "
        "str tensor_layout='HND', str quantization_backend='triton', "
        "bool is_causal=False, Tensor? attn_mask=None, float? sm_scale=None, "
        "bool smooth_k=True, bool return_lse=False) -> Tensor",
        equivalent="attention_in_layout(q, k, v, tensor_layout, is_causal, sm_scale)",
        source="sageattention/core.py",
        unsupported=(
            "return_lse",
            "attn_mask",
        ),
    ),
    FusedOp(
        names=("sageattention.sageattn_qk_int8_pv_fp16_cuda",),
        schema="sageattn_qk_int8_pv_fp16_cuda(Tensor q, Tensor k, Tensor v, "
        "str tensor_layout='HND', bool is_causal=False, "
        "str qk_quant_gran='per_thread', float? sm_scale=None, "
        "str pv_accum_dtype='fp32', bool smooth_k=True, bool smooth_v=False, "
        "bool return_lse=False) -> Tensor",
        equivalent="attention_in_layout(q, k, v, tensor_layout, is_causal, sm_scale)",
        source="sageattention/core.py",
        unsupported=("return_lse",),
    ),
    FusedOp(
        names=("sageattention.sageattn_qk_int8_pv_fp8_cuda",),
        schema="sageattn_qk_int8_pv_fp8_cuda(Tensor q, Tensor k, Tensor v, "
        "str tensor_layout='HND', bool is_causal=False, "
        "str qk_quant_gran='per_thread', float? sm_scale=None, "
        "str pv_accum_dtype='fp32+fp16', bool smooth_k=True, bool smooth_v=False, "
        "bool return_lse=False) -> Tensor",
        equivalent="attention_in_layout(q, k, v, tensor_layout, is_causal, sm_scale)",
        source="sageattention/core.py",
        unsupported=("return_lse",),
    ),
    FusedOp(
        names=("sageattention.sageattn_qk_int8_pv_fp8_cuda_sm90",),
        schema="sageattn_qk_int8_pv_fp8_cuda_sm90(Tensor q, Tensor k, Tensor v, "
        "str tensor_layout='HND', bool is_causal=False, "
        "str qk_quant_gran='per_thread', float? sm_scale=None, "
        "str pv_accum_dtype='fp32+fp32', bool smooth_k=True, bool return_lse=False)"
        " -> Tensor",
        equivalent="attention_in_layout(q, k, v, tensor_layout, is_causal, sm_scale)",
        source="sageattention/core.py",
        unsupported=("return_lse",),
    ),
    FusedOp(
        names=("sageattention.sageattn_varlen",),
        schema="sageattn_varlen(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, "
        "Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, "
        "bool is_causal=False, float? sm_scale=None, bool smooth_k=True) -> Tensor",
        equivalent="varlen_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, sm_scale, is_causal)",
        source="sageattention/core.py",
    ),
)
