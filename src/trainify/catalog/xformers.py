"""xformers' forward-only ops, which raise where a gradient is asked for."""

from . import FusedOp, opaque
from .reasons import CONTEXT, UNDOCUMENTED

_READ = "xformers ca6d2aa0d432"

OPS: tuple[FusedOp, ...] = (
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
        equivalent="_, x = fused_add_rms_norm_xformers(x, y, weight, eps)",
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

# Without an equivalent.
OPS += opaque(
    "rope",
    CONTEXT,
    _READ,
    """
    xformers.ops.rope_padded(xq, xk, xv, cache_k, cache_v, attn_bias, *, theta=10000.0,
        linear_scale=1.0, use_dynamic_scaling=False, dynamic_old_context_len=8192.0,
        dynamic_scale_factor=16.0, dynamic_low_freq_factor=1.0, dynamic_high_freq_factor=32.0,
        out_q=None, first_seqpos=None, seqpos=None, adjacents=True, internal_dtype='')
    """,
)
OPS += opaque(
    "attention",
    UNDOCUMENTED,
    _READ,
    """
    xformers.ops.memory_efficient_attention_forward_requires_grad,
        mslk.attention.fmha.memory_efficient_attention_forward_requires_grad,
        xformers.ops.fmha.memory_efficient_attention_forward_requires_grad(query, key, value,
        attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None) -> (out, lse)
    """,
)
