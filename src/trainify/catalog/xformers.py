"""xformers' forward-only ops, which raise where a gradient is asked for."""

from . import FusedOp

OPS = (
    FusedOp(
        names=("xformers.ops.rms_norm", "xformers.ops.rmsnorm.rms_norm"),
        schema="rms_norm(Tensor x, Tensor? weight, float eps=1e-6) -> Tensor",
        equivalent="rms_norm(x, weight, eps)",
        source="xformers/ops/rmsnorm.py",
    ),
    FusedOp(
        # Adds y to x in place and returns the norm of the sum.
        names=("xformers.ops.rms_norm_add", "xformers.ops.rmsnorm.rms_norm_add"),
        schema="rms_norm_add(Tensor(a!) x, Tensor y, Tensor? weight, float eps=1e-6) -> Tensor",
        equivalent=None,
        source="xformers/ops/rmsnorm.py",
    ),
    FusedOp(
        names=(
            "xformers.ops.memory_efficient_attention_forward",
            "xformers.ops.fmha.memory_efficient_attention_forward",
            "mslk.attention.fmha.memory_efficient_attention_forward",
        ),
        schema="memory_efficient_attention_forward(Tensor query, Tensor key, Tensor value, "
        "Any attn_bias=None, float p=0.0, float? scale=None, *, Any op=None, "
        "Any output_dtype=None) -> Tensor",
        equivalent="attention(query, key, value, scale)",
        source="xformers/ops/fmha/__init__.py",
        unsupported=("attn_bias", "p", "output_dtype"),
    ),
)
