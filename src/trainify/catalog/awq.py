"""AutoAWQ's extension ``awq_ext``, at c7b0e88c3276.

Its kernels are copies of vLLM's early ones and of FasterTransformer's.
"""

from . import FusedOp

OPS = (
    FusedOp(
        # An RMSNorm, whatever its name says.
        names=("awq_ext.layernorm_forward_cuda",),
        schema="layernorm_forward_cuda(Tensor input, Tensor gamma, Tensor(a!) out, float eps)"
        " -> ()",
        equivalent="out = rms_norm_saturated(input, gamma, eps)",
        source="awq_ext/layernorm/layernorm.cu",
    ),
    FusedOp(
        names=("awq_ext.rotary_embedding_neox",),
        schema="rotary_embedding_neox(Tensor positions, Tensor(a!) query, Tensor(b!) key, "
        "int head_size, Tensor cos_sin_cache) -> ()",
        equivalent="query, key = "
        "rotary_embedding_rounded(positions, query, key, head_size, cos_sin_cache, True)",
        source="awq_ext/pybind_awq.cpp",
    ),
    FusedOp(
        names=("awq_ext.silu_and_mul",),
        schema="silu_and_mul(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = silu_and_mul(input)",
        source="awq_ext/pybind_awq.cpp",
    ),
)
