"""SGLang's own kernels: ``sglang/kernels`` of sglang 0.5.23; see also :mod:`.sgl_kernel`."""

from . import FusedOp

_ACTIVATION = "sglang/kernels/ops/activation/activation.py"
_ROPE = "sglang/kernels/ops/attention/rope.py"
_MOE = (
    "Tensor? expert_ids=None, int expert_step=1, *, Tensor? sorted_token_ids=None, "
    "Tensor? num_tokens_post_padded=None, int num_valid_tokens=0"
)


def _gated(name: str, equivalent: str) -> FusedOp:
    return FusedOp(
        names=(f"sglang.kernels.ops.activation.activation.{name}",),
        schema=f"{name}(Tensor input, Tensor(a!)? out=None, {_MOE}) -> Tensor(a!)",
        equivalent=equivalent,
        source=_ACTIVATION,
        unsupported=("expert_ids", "sorted_token_ids", "num_tokens_post_padded"),
    )


OPS = (
    _gated("silu_and_mul", "silu_and_mul_fp32(input)"),
    _gated("gelu_and_mul", "gelu_and_mul_fp32(input)"),
    _gated("gelu_tanh_and_mul", "gelu_tanh_and_mul_fp32(input)"),
    FusedOp(
        names=("sglang.kernels.ops.activation.activation.silu_and_mul_with_activation_rounding",),
        schema="silu_and_mul_with_activation_rounding(Tensor input, Tensor(a!)? out=None, *, "
        "float clamp_limit=0.0) -> Tensor(a!)",
        equivalent="silu_and_mul(input)",
        source=_ACTIVATION,
        unsupported=("clamp_limit",),
    ),
    FusedOp(
        names=("sglang.kernels.ops.activation.activation.gelu_and_mul_with_activation_rounding",),
        schema="gelu_and_mul_with_activation_rounding(Tensor input, Tensor(a!)? out=None)"
        " -> Tensor(a!)",
        equivalent="gelu_and_mul(input)",
        source=_ACTIVATION,
    ),
    FusedOp(
        names=("sglang.kernels.ops.activation.activation.relu2",),
        schema="relu2(Tensor input, Tensor(a!)? out=None, *, bool fast_math=True) -> Tensor(a!)",
        equivalent="relu_squared(input)",
        source=_ACTIVATION,
    ),
    FusedOp(
        names=("sglang.kernels.ops.activation.softcap.softcap_inplace_logits",),
        schema="softcap_inplace_logits(Tensor(a!) full_logits, float final_logit_softcapping)"
        " -> ()",
        equivalent="full_logits = soft_cap(full_logits, final_logit_softcapping)",
        source="sglang/kernels/ops/activation/softcap.py",
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.rope.rotary_embedding",),
        schema="rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!)? key, "
        "int head_size, Tensor cos_sin_cache, bool is_neox=True) -> ()",
        equivalent="query, key = "
        "rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)",
        source=_ROPE,
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.rope.apply_rope_inplace",),
        schema="apply_rope_inplace(Tensor(a!) q, Tensor(b!) k, Tensor cos_sin_cache, "
        "Tensor positions, *, bool is_neox, int rope_dim=0) -> ()",
        equivalent="q, k = rotary_embedding(positions, q, k, q.shape[-1], cos_sin_cache, is_neox)",
        source=_ROPE,
        unsupported=("rope_dim",),
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.rope.apply_rope_with_cos_sin_cache_inplace",),
        schema="apply_rope_with_cos_sin_cache_inplace(Tensor(a!) q, Tensor(b!) k, "
        "Tensor cos_sin_cache, Tensor positions, *, bool is_neox, int rope_dim=0, "
        "Any fused_args=None) -> ()",
        equivalent="q, k = rotary_embedding(positions, q, k, q.shape[-1], cos_sin_cache, is_neox)",
        source=_ROPE,
        unsupported=("rope_dim", "fused_args"),
    ),
    FusedOp(
        names=("sglang.kernels.ops.layernorm.fused_rmsnorm.fused_rmsnorm",),
        schema="fused_rmsnorm(Tensor x, Tensor weight, float eps, bool inplace=False) -> Tensor",
        equivalent="rms_norm(x, weight, eps)",
        source="sglang/kernels/ops/layernorm/fused_rmsnorm.py",
        unsupported=("inplace",),
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.fla.l2norm.l2norm",),
        schema="l2norm(Tensor x, float eps=1e-6, Any output_dtype=None) -> Tensor",
        equivalent="l2_norm(x, eps)",
        source="sglang/kernels/ops/attention/fla/l2norm.py",
        unsupported=("output_dtype",),
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.fla.fused_norm_gate.rms_norm_gated",),
        schema="rms_norm_gated(Tensor x, Tensor g, Tensor weight, Tensor? bias, "
        "str activation='swish', Tensor? residual=None, bool prenorm=False, "
        "bool residual_in_fp32=False, float eps=1e-6) -> Tensor",
        equivalent="gated_rms_norm(x, g, weight, eps)",
        source="sglang/kernels/ops/attention/fla/fused_norm_gate.py",
        unsupported=("bias", "activation", "residual", "prenorm"),
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.prefill_attention.context_attention_fwd",),
        schema="context_attention_fwd(Tensor q, Tensor k, Tensor v, Tensor(a!) o, "
        "Tensor b_start_loc, Tensor b_seq_len, int max_input_len, bool is_causal=True, "
        "float? sm_scale=None) -> ()",
        equivalent="o = prefill_attention(q, k, v, b_seq_len, sm_scale, is_causal)",
        source="sglang/kernels/ops/attention/prefill_attention.py",
    ),
)
