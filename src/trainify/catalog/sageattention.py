"""SageAttention: attention over int8 queries and keys."""

from . import FusedOp, opaque
from .reasons import OPEN

_READ = "sageattention d1a57a546c3d"

OPS: tuple[FusedOp, ...] = ()

# Without an equivalent.
OPS += opaque(
    "attention",
    OPEN,
    _READ,
    """
    sageattention.sageattn(q, k, v, tensor_layout='HND', is_causal=False, sm_scale=None,
        return_lse=False, **kwargs)
    sageattention.sageattn_qk_int8_pv_fp16_triton(q, k, v, tensor_layout='HND',
        quantization_backend='triton', is_causal=False, attn_mask=None, sm_scale=None,
        smooth_k=True, return_lse=False, **kwargs) -> torch.Tensor
    sageattention.sageattn_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
        max_seqlen_k, is_causal=False, sm_scale=None, smooth_k=True, **kwargs) -> torch.Tensor
    sageattention.sageattn_qk_int8_pv_fp16_cuda(q, k, v, tensor_layout='HND', is_causal=False,
        qk_quant_gran='per_thread', sm_scale=None, pv_accum_dtype='fp32', smooth_k=True,
        smooth_v=False, return_lse=False, **kwargs) -> torch.Tensor
    sageattention.sageattn_qk_int8_pv_fp8_cuda(q, k, v, tensor_layout='HND', is_causal=False,
        qk_quant_gran='per_thread', sm_scale=None, pv_accum_dtype='fp32+fp16', smooth_k=True,
        smooth_v=False, return_lse=False, **kwargs) -> torch.Tensor
    sageattention.sageattn_qk_int8_pv_fp8_cuda_sm90(q, k, v, tensor_layout='HND',
        is_causal=False, qk_quant_gran='per_thread', sm_scale=None, pv_accum_dtype='fp32+fp32',
        smooth_k=True, return_lse=False, **kwargs) -> torch.Tensor
    """,
)
