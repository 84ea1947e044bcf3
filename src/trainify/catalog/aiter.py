"""aiter, AMD's kernels.  Norms and activations compute in float32 and round once."""

from . import FusedOp

_AITER = "aiter/ops at e4048607a535"

OPS = (
    FusedOp(
        names=("aiter.ops.rmsnorm.rms_norm", "aiter.rms_norm"),
        schema="rms_norm(Tensor input, Tensor weight, float epsilon, "
        "int use_model_sensitive_rmsnorm=0) -> Tensor",
        equivalent="rms_norm(input, weight, epsilon)",
        source=_AITER,
        unsupported=("use_model_sensitive_rmsnorm",),
    ),
    FusedOp(
        names=("aiter.ops.rmsnorm.rmsnorm2d_fwd", "aiter.rmsnorm2d_fwd"),
        schema="rmsnorm2d_fwd(Tensor input, Tensor weight, float epsilon, "
        "int use_model_sensitive_rmsnorm=0) -> Tensor",
        equivalent="rms_norm(input, weight, epsilon)",
        source=_AITER,
        unsupported=("use_model_sensitive_rmsnorm",),
    ),
    FusedOp(
        names=("aiter.ops.rmsnorm.rms_norm_cu", "aiter.rms_norm_cu"),
        schema="rms_norm_cu(Tensor(a!) out, Tensor input, Tensor weight, float epsilon) -> ()",
        equivalent="out = rms_norm(input, weight, epsilon)",
        source=_AITER,
    ),
    FusedOp(
        names=("aiter.ops.rmsnorm.rmsnorm", "aiter.rmsnorm"),
        schema="rmsnorm(Tensor(a!) out, Tensor input, Tensor weight, float epsilon, "
        "bool gemma_norm=False) -> ()",
        equivalent="out = rms_norm(input, weight, epsilon)",
        source=_AITER,
        unsupported=("gemma_norm",),
    ),
    FusedOp(
        names=("aiter.ops.rmsnorm.fused_add_rms_norm_cu", "aiter.fused_add_rms_norm_cu"),
        schema="fused_add_rms_norm_cu(Tensor(a!) input, Tensor(b!) residual_in, Tensor weight, "
        "float epsilon) -> ()",
        equivalent="input, residual_in = "
        "fused_add_rms_norm_fp32(input, residual_in, weight, epsilon)",
        source=_AITER,
    ),
    FusedOp(
        names=("aiter.ops.rmsnorm.rmsnorm2d_fwd_with_add", "aiter.rmsnorm2d_fwd_with_add"),
        schema="rmsnorm2d_fwd_with_add(Tensor(a!) out, Tensor input, Tensor residual_in, "
        "Tensor(b!) residual_out, Tensor weight, float epsilon, bool gemma_norm=False, "
        "int use_model_sensitive_rmsnorm=0) -> ()",
        equivalent="out, residual_out = "
        "fused_add_rms_norm_fp32(input, residual_in, weight, epsilon)",
        source=_AITER,
        unsupported=("gemma_norm", "use_model_sensitive_rmsnorm"),
    ),
    FusedOp(
        names=("aiter.ops.rmsnorm.add_rmsnorm", "aiter.add_rmsnorm"),
        schema="add_rmsnorm(Tensor(a!) out, Tensor input, Tensor residual_in, "
        "Tensor(b!) residual_out, Tensor weight, float epsilon, bool gemma_norm=False) -> ()",
        equivalent="out, residual_out = "
        "fused_add_rms_norm_fp32(input, residual_in, weight, epsilon)",
        source=_AITER,
        unsupported=("gemma_norm",),
    ),
    FusedOp(
        names=("aiter.ops.activation.silu_and_mul", "aiter.silu_and_mul"),
        schema="silu_and_mul(Tensor(a!) out, Tensor input, float limit=0.0) -> ()",
        equivalent="out = silu_and_mul_fp32(input)",
        source=_AITER,
        unsupported=("limit",),
    ),
    FusedOp(
        names=("aiter.ops.activation.gelu_and_mul", "aiter.gelu_and_mul"),
        schema="gelu_and_mul(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = gelu_and_mul_fp32(input)",
        source=_AITER,
    ),
    FusedOp(
        names=("aiter.ops.activation.gelu_tanh_and_mul", "aiter.gelu_tanh_and_mul"),
        schema="gelu_tanh_and_mul(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = gelu_tanh_and_mul_fp32(input)",
        source=_AITER,
    ),
    FusedOp(
        names=("aiter.ops.norm.layer_norm", "aiter.layer_norm"),
        schema="layer_norm(Tensor input, Tensor? weight=None, Tensor? bias=None, "
        "float epsilon=1e-5, Tensor? x_bias=None) -> Tensor",
        equivalent="layer_norm(input, weight, bias, epsilon)",
        source=_AITER,
        unsupported=("x_bias",),
    ),
    FusedOp(
        names=("aiter.ops.norm.layernorm2d_fwd", "aiter.layernorm2d_fwd"),
        schema="layernorm2d_fwd(Tensor input, Tensor weight, Tensor bias, float epsilon=1e-5, "
        "Tensor? x_bias=None) -> Tensor",
        equivalent="layer_norm(input, weight, bias, epsilon)",
        source=_AITER,
        unsupported=("x_bias",),
    ),
    FusedOp(
        names=("aiter.ops.norm.layernorm2d_fwd_with_add", "aiter.layernorm2d_fwd_with_add"),
        schema="layernorm2d_fwd_with_add(Tensor(a!) out, Tensor input, Tensor residual_in, "
        "Tensor(b!) residual_out, Tensor weight, Tensor bias, float epsilon, "
        "Tensor? x_bias=None) -> ()",
        equivalent="out, residual_out = "
        "fused_add_layer_norm(input, residual_in, weight, bias, epsilon)",
        source=_AITER,
        unsupported=("x_bias",),
    ),
)
