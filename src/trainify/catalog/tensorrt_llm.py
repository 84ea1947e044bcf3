"""TensorRT-LLM's custom ops around flashinfer."""

from . import FusedOp

_TRTLLM = "tensorrt_llm/_torch/custom_ops/flashinfer_custom_ops.py"

OPS = (
    FusedOp(
        names=("torch.ops.trtllm.flashinfer_rmsnorm",),
        schema="flashinfer_rmsnorm(Tensor input, Tensor weight, float eps) -> Tensor",
        equivalent="rms_norm(input, weight, eps)",
        source=_TRTLLM,
    ),
    FusedOp(
        names=("torch.ops.trtllm.flashinfer_gemma_rmsnorm",),
        schema="flashinfer_gemma_rmsnorm(Tensor input, Tensor weight, float eps) -> Tensor",
        equivalent="gemma_rms_norm(input, weight, eps)",
        source=_TRTLLM,
    ),
    FusedOp(
        names=("torch.ops.trtllm.flashinfer_fused_add_rmsnorm",),
        schema="flashinfer_fused_add_rmsnorm(Tensor(a!) input, Tensor(b!) residual, "
        "Tensor weight, float eps) -> ()",
        equivalent="input, residual = fused_add_rms_norm_fp32(input, residual, weight, eps)",
        source=_TRTLLM,
    ),
    FusedOp(
        names=("torch.ops.trtllm.flashinfer_gemma_fused_add_rmsnorm",),
        schema="flashinfer_gemma_fused_add_rmsnorm(Tensor(a!) input, Tensor(b!) residual, "
        "Tensor weight, float eps) -> ()",
        equivalent="input, residual = gemma_fused_add_rms_norm(input, residual, weight, eps)",
        source=_TRTLLM,
    ),
    FusedOp(
        names=("torch.ops.trtllm.flashinfer_silu_and_mul",),
        schema="flashinfer_silu_and_mul(Tensor x) -> Tensor",
        equivalent="silu_and_mul_fp32(x)",
        source=_TRTLLM,
    ),
    FusedOp(
        names=("torch.ops.trtllm.flashinfer_gelu_tanh_and_mul",),
        schema="flashinfer_gelu_tanh_and_mul(Tensor x) -> Tensor",
        equivalent="gelu_tanh_and_mul_fp32(x)",
        source=_TRTLLM,
    ),
    FusedOp(
        names=("torch.ops.trtllm.flashinfer_apply_rope_with_cos_sin_cache_inplace",),
        schema="flashinfer_apply_rope_with_cos_sin_cache_inplace(Tensor positions, "
        "Tensor(a!) query, Tensor(b!) key, int head_size, Tensor cos_sin_cache, "
        "bool is_neox=True) -> ()",
        equivalent="query, key = "
        "rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)",
        source=_TRTLLM,
    ),
)
