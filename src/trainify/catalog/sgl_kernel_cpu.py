"""SGLang's kernels for CPUs: ``sgl-kernel/csrc/cpu``, ops of ``torch.ops.sgl_kernel``.

They take tensors of 16 bits, compute in float32 and round once.
"""

from . import FusedOp

_ACTIVATION = "sgl-kernel/csrc/cpu/activation.cpp"
_NORM = "sgl-kernel/csrc/cpu/norm.cpp"
_TOPK = "sgl-kernel/csrc/cpu/topk.cpp"
_ROPE = "sgl-kernel/csrc/cpu/rope.cpp"
_RETURNED = "query and key themselves may be rotated too: only what is returned may be read"

ROWS: tuple[FusedOp, ...] = (
    FusedOp(
        names=("torch.ops.sgl_kernel.silu_and_mul_cpu",),
        schema="silu_and_mul_cpu(Tensor input) -> Tensor",
        equivalent="silu_and_mul_fp32(input)",
        source=_ACTIVATION,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.gelu_and_mul_cpu",),
        schema="gelu_and_mul_cpu(Tensor input) -> Tensor",
        equivalent="gelu_and_mul_fp32(input)",
        source=_ACTIVATION,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.gelu_tanh_and_mul_cpu",),
        schema="gelu_tanh_and_mul_cpu(Tensor input) -> Tensor",
        equivalent="gelu_tanh_and_mul_fp32(input)",
        source=_ACTIVATION,
    ),
    # Releases before took a third argument, and returned the result.
    FusedOp(
        names=("torch.ops.sgl_kernel.fused_sigmoid_mul_cpu",),
        schema="fused_sigmoid_mul_cpu(Tensor(a!) input, Tensor gate) -> ()",
        equivalent="input = sigmoid_gated(input, gate)",
        source=_ACTIVATION,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.rmsnorm_cpu",),
        schema="rmsnorm_cpu(Tensor input, Tensor weight, float eps) -> Tensor",
        equivalent="rms_norm(input, weight, eps)",
        source=_NORM,
    ),
    FusedOp(  # of Llama 4, which calls by this name what divides by the root of the mean
        names=("torch.ops.sgl_kernel.l2norm_cpu",),
        schema="l2norm_cpu(Tensor input, float eps) -> Tensor",
        equivalent="rms_norm(input, None, eps)",
        source=_NORM,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.fused_add_rmsnorm_cpu",),
        schema="fused_add_rmsnorm_cpu(Tensor(a!) input, Tensor(b!) residual, Tensor weight, "
        "float eps) -> ()",
        equivalent="input, residual = fused_add_rms_norm_fp32(input, residual, weight, eps)",
        source=_NORM,
    ),
    FusedOp(
        names=(
            "torch.ops.sgl_kernel.gemma_rmsnorm_cpu",
            "torch.ops.sgl_kernel.gemma3_rmsnorm_cpu",
        ),
        schema="gemma_rmsnorm_cpu(Tensor input, Tensor weight, float eps) -> Tensor",
        equivalent="gemma_rms_norm(input, weight, eps)",
        source=_NORM,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.gemma4_rmsnorm_cpu",),
        schema="gemma4_rmsnorm_cpu(Tensor input, Tensor weight, float eps, float scale_shift, "
        "bool with_scale) -> Tensor",
        equivalent="shifted_rms_norm(input, weight, eps, scale_shift, with_scale)",
        source=_NORM,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.gemma_fused_add_rmsnorm_cpu",),
        schema="gemma_fused_add_rmsnorm_cpu(Tensor(a!) input, Tensor(b!) residual, "
        "Tensor weight, float eps) -> ()",
        equivalent="input, residual = gemma_fused_add_rms_norm(input, residual, weight, eps)",
        source=_NORM,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.layernorm_cpu",),
        schema="layernorm_cpu(Tensor input, Tensor weight, Tensor? bias, float eps) -> Tensor",
        equivalent="layer_norm(input, weight, bias, eps)",
        source=_NORM,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.fused_rmsnorm_gated_cpu",),
        schema="fused_rmsnorm_gated_cpu(Tensor input, Tensor weight, Tensor gate, float eps)"
        " -> Tensor",
        equivalent="gated_rms_norm(input, gate, weight, eps)",
        source=_NORM,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.fused_qk_rmsnorm_cpu",),
        schema="fused_qk_rmsnorm_cpu(Tensor q, Tensor k, Tensor q_weight, Tensor k_weight, "
        "float eps) -> (Tensor, Tensor)",
        equivalent="qk_rms_norm(q, k, q_weight, k_weight, eps)",
        source=_NORM,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.fused_qk_gemma_rmsnorm_with_gate_cpu",),
        schema="fused_qk_gemma_rmsnorm_with_gate_cpu(Tensor q_gate, Tensor k, Tensor q_weight, "
        "Tensor k_weight, float eps, int head_dim, int num_head) -> (Tensor, Tensor, Tensor)",
        equivalent="gemma_norm_of_gated_heads(q_gate, k, q_weight, k_weight, eps, head_dim)",
        source=_NORM,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.topk_softmax_cpu",),
        schema="topk_softmax_cpu(Tensor hidden_states, Tensor gating_output, int topk, "
        "bool renormalize, Tensor? correction_bias=None) -> (Tensor, Tensor)",
        equivalent="softmax_topk(gating_output, topk, renormalize)",
        source=_TOPK,
        unsupported=("correction_bias",),
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.topk_sigmoid_cpu",),
        schema="topk_sigmoid_cpu(Tensor hidden_states, Tensor gating_output, int topk, "
        "bool renormalize, Tensor? correction_bias=None) -> (Tensor, Tensor)",
        equivalent="sigmoid_topk(gating_output, topk, renormalize)",
        source=_TOPK,
        unsupported=("correction_bias",),
    ),
    FusedOp(  # raises for another scale than 1, and for shared experts
        names=("torch.ops.sgl_kernel.grouped_topk_cpu",),
        schema="grouped_topk_cpu(Tensor hidden_states, Tensor gating_output, int topk, "
        "bool renormalize, int num_expert_group, int topk_group, int num_fused_shared_experts, "
        "float? routed_scaling_factor, Tensor? num_token_non_padded) -> (Tensor, Tensor)",
        equivalent="grouped_topk(gating_output, topk, renormalize, num_expert_group, topk_group)",
        source=_TOPK,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.biased_grouped_topk_cpu",),
        schema="biased_grouped_topk_cpu(Tensor hidden_states, Tensor gating_output, "
        "Tensor correction_bias, int topk, bool renormalize, int num_expert_group, "
        "int topk_group, int num_fused_shared_experts, float? routed_scaling_factor, "
        "Tensor? num_token_non_padded) -> (Tensor, Tensor)",
        equivalent="grouped_topk(gating_output, topk, renormalize, num_expert_group, topk_group, "
        "'sigmoid', 1.0, correction_bias, 2)",
        source=_TOPK,
        unsupported=("routed_scaling_factor",),  # which only newer releases multiply by
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.rotary_embedding_cpu",),
        schema="rotary_embedding_cpu(Tensor positions, Tensor query, Tensor key, int head_size, "
        "Tensor cos_sin_cache, bool is_neox) -> (Tensor, Tensor)",
        equivalent="rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)",
        source=_ROPE,
        look_at=_RETURNED,
    ),
    FusedOp(
        names=("torch.ops.sgl_kernel.apply_rotary_pos_emb_cpu",),
        schema="apply_rotary_pos_emb_cpu(Tensor query, Tensor key, Tensor cos, Tensor sin)"
        " -> (Tensor, Tensor)",
        equivalent="rotate_query_key_fp32(query, key, cos, sin, 1)",
        source=_ROPE,
        look_at=_RETURNED,
    ),
)
