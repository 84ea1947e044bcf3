"""DeepGEMM: products of fp8 and fp4 codes, and the scores of DeepSeek-V3.2's indexer."""

from . import FusedOp, opaque
from .reasons import FP8_PRODUCT, INDEXER

_READ = "as vllm 0.33.0 and sglang 0.5.23 call it"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=("deep_gemm.bf16_gemm_nt",),
        schema="bf16_gemm_nt(Tensor a, Tensor b, Tensor(a!) d, Tensor? c=None, "
        "str compiled_dims='nk') -> ()",
        equivalent="d = F.linear(a, b)",
        source=_READ,
        unsupported=("c",),
        family="matmul",
    ),
)

# Without an equivalent.
OPS += opaque(
    "matmul",
    FP8_PRODUCT,
    _READ,
    """
    deep_gemm.fp8_gemm_nt, vllm.utils.deep_gemm.fp8_gemm_nt
    deep_gemm.fp8_fp4_gemm_nt
    deep_gemm.fp8_einsum, vllm.utils.deep_gemm.fp8_einsum
    """,
)
OPS += opaque(
    "moe",
    FP8_PRODUCT,
    _READ,
    """
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous,
        vllm.utils.deep_gemm.m_grouped_fp8_gemm_nt_contiguous
    vllm.utils.deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous
    deep_gemm.fp8_m_grouped_gemm_nt_masked, vllm.utils.deep_gemm.fp8_m_grouped_gemm_nt_masked
    deep_gemm.fp8_fp4_mega_moe
    """,
)
OPS += opaque(
    "attention",
    INDEXER,
    _READ,
    """
    deep_gemm.fp8_mqa_logits
    deep_gemm.fp8_paged_mqa_logits
    vllm.utils.deep_gemm.fp8_fp4_mqa_logits
    vllm.utils.deep_gemm.fp8_fp4_paged_mqa_logits
    """,
)
