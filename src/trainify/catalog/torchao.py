"""torchao's quantized products."""

from . import FusedOp, opaque
from .reasons import CODED, CODES, LAYER, SPARSE, TILED, UNPACK

_READ = "torchao 36027d82d1ad"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=("torchao.float8.inference.addmm_float8_unwrapped_inference",),
        schema="addmm_float8_unwrapped_inference(Tensor a_data, Tensor a_scale, "
        "Tensor b_data, Tensor b_scale, ScalarType output_dtype, "
        "Tensor? output_scale=None, Tensor? bias=None, bool use_fast_accum=False)"
        " -> Tensor",
        equivalent="scaled_mm(a_data, b_data, a_scale, b_scale, output_dtype, bias)",
        source="torchao/float8/inference.py",
        unsupported=("output_scale",),
    ),
)

# Without an equivalent.
OPS += opaque(
    "matmul",
    LAYER,
    _READ,
    """
    torchao.quantization.linear_quant_modules.Int8DynActInt4WeightLinear(input)
    torchao.quantization.linear_quant_modules.WeightOnlyInt4Linear(input)
    """,
)
OPS += opaque(
    "quantize",
    CODES,
    _READ,
    """
    torchao.quantization.quant_primitives.quantize_affine(input, block_size, scale, zero_point,
        output_dtype, quant_min=None, quant_max=None) -> torch.Tensor
    torchao.quantization.quant_primitives.choose_qparams_affine(input, mapping_type, block_size,
        target_dtype, quant_min=None, quant_max=None, eps=None, scale_dtype=None,
        zero_point_dtype=torch.int32, keepdim=False) -> Tuple[torch.Tensor, torch.Tensor]
    """,
)
OPS += opaque(
    "quantize",
    UNPACK,
    _READ,
    """
    torchao.ops.da8w4_linear_prepack_cpu, torch.ops.torchao.da8w4_linear_prepack_cpu(weight,
        scales, qzeros) -> Tensor
    torchao.ops.float8_linear_prepack_cpu, torch.ops.torchao.float8_linear_prepack_cpu(weight,
        scales) -> Tensor
    torchao.quantization.quant_primitives.dequantize_affine(input, block_size, scale,
        zero_point, input_dtype, quant_min=None, quant_max=None, *,
        output_dtype=torch.float32) -> torch.Tensor
    """,
)
OPS += opaque(
    "matmul",
    SPARSE,
    _READ,
    """
    torchao.ops.rowwise_scaled_linear_sparse_cutlass_f8f8,
        torch.ops.torchao.rowwise_scaled_linear_sparse_cutlass_f8f8(input, input_scale, weight,
        weight_meta, weight_scale, bias=None, out_dtype=None) -> Tensor
    """,
)
OPS += opaque(
    "matmul",
    TILED,
    _READ,
    """
    torchao.ops.da8w4_linear_cpu, torch.ops.torchao.da8w4_linear_cpu(input, input_scales,
        input_qzeros, weight, weight_scales, weight_qzeros, compensation, bias, out_dtype)
    torchao.ops.float8_linear_cpu, torch.ops.torchao.float8_linear_cpu(input, input_scales,
        weight, weight_scales, bias, out_dtype)
    """,
)
OPS += opaque(
    "attention",
    CODED,
    _READ,
    """
    torchao.ops.qscaled_dot_product, torch.ops.torchao.qscaled_dot_product(query, key, value,
        attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, q_scale=1.0, q_zp=0,
        k_scale=1.0, k_zp=0, v_scale=1.0, v_zp=0, a_scale=1.0, a_zp=0, o_scale=1.0,
        o_zp=0) -> Tensor
    """,
)
