"""DeepSpeed's inference kernels in Triton, which their package hands on from its modules.

Its CUDA kernels are reached through modules and an op builder, not by a name.
"""

from . import FusedOp, opaque
from .reasons import BUILDER, CONTEXT, LAYER, UNDOCUMENTED, UNPACK

_READ = "deepspeed 38327e07f6cd"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=(
            "deepspeed.ops.transformer.inference.triton.layer_norm.layer_norm",
            "deepspeed.ops.transformer.inference.triton.layer_norm",
        ),
        schema="layer_norm(Tensor a, Tensor weight, Tensor bias, float eps) -> Tensor",
        equivalent="layer_norm(a, weight, bias, eps)",
        source="deepspeed/ops/transformer/inference/triton/layer_norm.py",
    ),
    FusedOp(
        names=(
            "deepspeed.ops.transformer.inference.triton.softmax.softmax",
            "deepspeed.ops.transformer.inference.triton.softmax",
        ),
        schema="softmax(Tensor input, Tensor? mask=None, int dim=-1) -> Tensor",
        equivalent="softmax(input)",
        source="deepspeed/ops/transformer/inference/triton/softmax.py",
        unsupported=("mask", "dim"),
    ),
    FusedOp(
        names=(
            "deepspeed.ops.transformer.inference.triton.layer_norm.layer_norm_residual",
            "deepspeed.ops.transformer.inference.triton.layer_norm_residual",
        ),
        schema="layer_norm_residual(Tensor a, Tensor? input_bias, Tensor residual, Tensor weight, "
        "Tensor bias, float eps) -> Tensor",
        equivalent="layer_norm_of_sum(a, input_bias, residual, weight, bias, eps)",
        source="deepspeed/ops/transformer/inference/triton/layer_norm.py",
    ),
    FusedOp(
        names=(
            "deepspeed.ops.transformer.inference.triton.residual_add.residual_add_bias",
            "deepspeed.ops.transformer.inference.triton.residual_add_bias",
        ),
        schema="residual_add_bias(Tensor hidden_state, Tensor residual, Tensor attn_output, "
        "Tensor attn_bias, Tensor final_bias, int mp_size, bool mlp_after_attn, bool "
        "add_attn_bias, bool pre_attn_norm) -> Tensor",
        equivalent="residual_add_bias(hidden_state, residual, attn_output, attn_bias, final_bias, "
        "mp_size, mlp_after_attn, add_attn_bias, pre_attn_norm)",
        source="deepspeed/ops/transformer/inference/triton/residual_add.py",
    ),
)

# Without an equivalent.
OPS += opaque(
    "activation",
    LAYER,
    _READ,
    """
    deepspeed.ops.transformer.inference.op_binding.bias_gelu.BiasGeluOp(activation, bias)
    deepspeed.ops.transformer.inference.op_binding.bias_relu.BiasReluOp(activation, bias)
    deepspeed.ops.transformer.inference.op_binding.residual_add.ResidualAddOp(hidden_state,
        residual, add_bias, attention_output=None, residual_add=None, attention_bias=None,
        final_bias=None)
    """,
)
OPS += opaque(
    "attention",
    CONTEXT,
    _READ,
    """
    deepspeed.ops.op_builder.InferenceBuilder().load().softmax_context_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().softmax_context_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().softmax_context_bf16
    """,
)
OPS += opaque(
    "attention",
    LAYER,
    _READ,
    """
    deepspeed.ops.transformer.inference.op_binding.softmax_context.SoftmaxContextOp(
        query_key_value, attn_mask, heads, num_kv, norm_factor, no_masking, layer_id,
        num_layers, alibi, is_prompt, token_idx, position_ids)
    """,
)
OPS += opaque(
    "matmul",
    LAYER,
    _READ,
    """
    deepspeed.ops.transformer.inference.op_binding.qkv_gemm.QKVGemmOp(input, weight, bias,
        gamma, beta)
    deepspeed.ops.transformer.inference.op_binding.mlp_gemm.MLPGemmOp(input, residual,
        weight_interm, weight_out, input_bias=None, bias=None, gamma=None, beta=None)
    deepspeed.ops.transformer.inference.op_binding.linear.LinearOp(input, weight, bias,
        add_bias, do_flash_attn, num_heads, external_cache=None, num_layers=None)
    deepspeed.ops.transformer.inference.op_binding.vector_matmul.VectorMatMulOp(input, weight,
        async_op=False)
    deepspeed.ops.transformer.inference.op_binding.gelu_gemm.GELUGemmOp(input, weight, bias,
        weight_out)
    """,
)
OPS += opaque(
    "misc",
    LAYER,
    _READ,
    """
    deepspeed.ops.transformer.inference.op_binding.gated_activation.GatedActivationOp(activation,
        bias, activation_func_type)
    deepspeed.ops.transformer.inference.op_binding.bias_add.BiasAddOp(activation, bias)
    deepspeed.ops.transformer.inference.op_binding.bias_residual.BiasResidualOp(output,
        residual, bias)
    deepspeed.ops.transformer.inference.op_binding.einsum_sec_sm_ecm.EinsumSecSmEcmOp(Q, W)
    deepspeed.ops.transformer.inference.op_binding.pad_transform.PadTransformOp(query, key,
        value, heads, do_flash_attn)
    deepspeed.ops.transformer.inference.op_binding.vector_add.VectorAddOp(a, b, gamma)
    """,
)
OPS += opaque(
    "moe",
    LAYER,
    _READ,
    """
    deepspeed.ops.transformer.inference.op_binding.moe_res_matmul.MoEResMatmulOp(residual, coef,
        output)
    """,
)
OPS += opaque(
    "norm",
    LAYER,
    _READ,
    """
    deepspeed.ops.transformer.inference.op_binding.rms_norm.RMSNormOp(vals, gamma, epsilon)
    deepspeed.ops.transformer.inference.op_binding.pre_rms_norm.PreRMSNormOp(vals, residual,
        gamma, epsilon)
    deepspeed.ops.transformer.inference.op_binding.layer_norm.LayerNormOp(vals, gamma, beta,
        epsilon)
    """,
)
OPS += opaque(
    "quantize",
    UNPACK,
    _READ,
    """
    deepspeed.ops.op_builder.InferenceBuilder().load().dequantize_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().dequantize_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().dequantize_bf16
    """,
)
OPS += opaque(
    "softmax",
    LAYER,
    _READ,
    """
    deepspeed.ops.transformer.inference.op_binding.softmax.SoftmaxOp(attn_scores, attn_mask,
        alibi, triangular, recompute, local_attention, window_size, async_op, layer_scale,
        head_offset)
    """,
)
OPS += opaque(
    "activation",
    BUILDER,
    _READ,
    """
    deepspeed.ops.op_builder.InferenceBuilder().load().bias_gelu_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().bias_gelu_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().bias_gelu_bf16
    deepspeed.ops.op_builder.InferenceBuilder().load().bias_relu_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().bias_relu_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().bias_relu_bf16
    deepspeed.ops.op_builder.InferenceBuilder().load().bias_add_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().bias_add_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().bias_add_bf16
    deepspeed.ops.op_builder.InferenceBuilder().load().bias_residual_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().bias_residual_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().bias_residual_bf16
    deepspeed.ops.op_builder.InferenceBuilder().load().gated_activation(activation, bias,
        actFun)
    deepspeed.ops.op_builder.InferenceBuilder().load().residual_add_bias_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().residual_add_bias_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().residual_add_bias_bf16
    deepspeed.ops.op_builder.InferenceBuilder().load()._vector_add(a, b, gamma)
    """,
)
OPS += opaque(
    "activation",
    UNDOCUMENTED,
    _READ,
    """
    deepspeed.ops.transformer.inference.triton.gelu.gelu,
        deepspeed.ops.transformer.inference.triton.gelu(activations) -> torch.Tensor
    """,
)
OPS += opaque(
    "matmul",
    BUILDER,
    _READ,
    """
    deepspeed.ops.op_builder.InferenceBuilder().load().qkv_gemm_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().qkv_gemm_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().qkv_gemm_bf16
    deepspeed.ops.op_builder.InferenceBuilder().load().rms_qkv_gemm_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().rms_qkv_gemm_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().rms_qkv_gemm_bf16
    deepspeed.ops.op_builder.InferenceBuilder().load().mlp_gemm_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().mlp_gemm_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().mlp_gemm_bf16
    deepspeed.ops.op_builder.InferenceBuilder().load().rms_mlp_gemm_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().rms_mlp_gemm_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().rms_mlp_gemm_bf16
    deepspeed.ops.op_builder.InferenceBuilder().load().vector_matmul_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().vector_matmul_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().vector_matmul_bf16
    deepspeed.ops.op_builder.InferenceBuilder().load().linear_layer_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().linear_layer_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().linear_layer_bf16
    deepspeed.ops.op_builder.InferenceBuilder().load().fused_gemm_gelu_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().fused_gemm_gelu_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().fused_gemm_gelu_bf16
    """,
)
OPS += opaque(
    "misc",
    BUILDER,
    _READ,
    """
    deepspeed.ops.op_builder.InferenceBuilder().load().pad_transform_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().pad_transform_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().pad_transform_bf16
    """,
)
OPS += opaque(
    "moe",
    BUILDER,
    _READ,
    """
    deepspeed.ops.op_builder.InferenceBuilder().load().moe_res_matmul(moe_res, coef, output)
    deepspeed.ops.op_builder.InferenceBuilder().load().einsum_sec_sm_ecm_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().einsum_sec_sm_ecm_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().einsum_sec_sm_ecm_bf16
    """,
)
OPS += opaque(
    "norm",
    BUILDER,
    _READ,
    """
    deepspeed.ops.op_builder.InferenceBuilder().load().rms_norm(input, gamma, epsilon)
    deepspeed.ops.op_builder.InferenceBuilder().load().pre_rms_norm(input, residual, gamma,
        epsilon)
    deepspeed.ops.op_builder.InferenceBuilder().load().layer_norm(input, gamma, beta, epsilon)
    deepspeed.ops.op_builder.InferenceBuilder().load()._layer_norm_residual(input, bias,
        residual, gamma, beta, epsilon)
    deepspeed.ops.op_builder.InferenceBuilder().load().layer_norm_residual_store_pre_ln_res(input,
        bias, residual, gamma, beta, epsilon)
    """,
)
OPS += opaque(
    "rope",
    BUILDER,
    _READ,
    """
    deepspeed.ops.op_builder.InferenceBuilder().load().apply_rotary_pos_emb(mixed_query,
        key_layer, rotary_dim, offset, num_heads, rotate_half, rope_theta)
    """,
)
OPS += opaque(
    "softmax",
    BUILDER,
    _READ,
    """
    deepspeed.ops.op_builder.InferenceBuilder().load().softmax_fp32,
        deepspeed.ops.op_builder.InferenceBuilder().load().softmax_fp16,
        deepspeed.ops.op_builder.InferenceBuilder().load().softmax_bf16
    """,
)
