"""aiter, AMD's kernels.  Norms and activations compute in float32 and round once."""

from . import FusedOp, opaque
from .reasons import BUFFER, CACHE, CODED, CODES, OPTIONS, STATES, TOKENS, UNDOCUMENTED

_READ = "aiter e4048607a535"
_AITER = "aiter/ops at e4048607a535"

OPS: tuple[FusedOp, ...] = (
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
        equivalent="out = silu_and_mul_up_to(input, limit)",
        source="csrc/kernels/activation_kernels.cu, aiter 02d69c399518",
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
    FusedOp(
        names=(
            "aiter.ops.activation.gelu_fast",
            "aiter.gelu_fast",
        ),
        schema="gelu_fast(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = gelu_fast(input)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.ops.groupnorm.groupnorm_run",
            "aiter.groupnorm_run",
        ),
        schema="groupnorm_run(Tensor input, int num_groups, Tensor weight, Tensor bias, "
        "float eps) -> Tensor",
        equivalent="group_norm(input, num_groups, weight, bias, eps)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.ops.gemm_op_a8w8.gemm_a8w8_blockscale",
            "aiter.gemm_a8w8_blockscale",
        ),
        schema="gemm_a8w8_blockscale(Tensor XQ, Tensor WQ, Tensor x_scale, "
        "Tensor w_scale, ScalarType dtype=torch.bfloat16, "
        "bool isBpreshuffled=False) -> Tensor",
        equivalent="block_scaled_mm(XQ, WQ, x_scale, w_scale, 128, 128, dtype)",
        source="aiter/ops at e4048607a535",
        unsupported=("isBpreshuffled",),
    ),
    FusedOp(
        names=(
            "aiter.rope_fwd",
            "aiter.ops.rope.rope_fwd",
        ),
        schema="rope_fwd(Tensor input, Tensor freqs, int rotate_style, "
        "bool reuse_freqs_front_part, bool nope_first, bool transpose_output=False)"
        " -> Tensor",
        equivalent="rotate_by_angles(input, freqs, rotate_style, reuse_freqs_front_part, "
        "nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_fwd_inplace",
            "aiter.ops.rope.rope_fwd_inplace",
        ),
        schema="rope_fwd_inplace(Tensor(a!) input, Tensor freqs, int rotate_style, "
        "bool reuse_freqs_front_part, bool nope_first) -> Tensor(a!)",
        equivalent="input = rotate_by_angles(input, freqs, rotate_style, "
        "reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_fwd_impl",
            "aiter.ops.rope.rope_fwd_impl",
        ),
        schema="rope_fwd_impl(Tensor(a!) output, Tensor input, Tensor freqs, "
        "int rotate_style, bool reuse_freqs_front_part, bool nope_first) -> ()",
        equivalent="output = rotate_by_angles(input, freqs, rotate_style, "
        "reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_2c_fwd",
            "aiter.ops.rope.rope_2c_fwd",
        ),
        schema="rope_2c_fwd(Tensor input_x, Tensor input_y, Tensor freqs, "
        "int rotate_style, bool reuse_freqs_front_part, bool nope_first, "
        "bool transpose_output=False) -> (Tensor, Tensor)",
        equivalent="rotate_both_by_angles(input_x, input_y, freqs, rotate_style, "
        "reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_2c_fwd_inplace",
            "aiter.ops.rope.rope_2c_fwd_inplace",
        ),
        schema="rope_2c_fwd_inplace(Tensor(a!) input_x, Tensor(b!) input_y, Tensor freqs, "
        "int rotate_style, bool reuse_freqs_front_part, bool nope_first)"
        " -> (Tensor(a!), Tensor(b!))",
        equivalent="input_x, input_y = rotate_both_by_angles(input_x, input_y, freqs, "
        "rotate_style, reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_2c_fwd_impl",
            "aiter.ops.rope.rope_2c_fwd_impl",
        ),
        schema="rope_2c_fwd_impl(Tensor(a!) output_x, Tensor(b!) output_y, "
        "Tensor input_x, Tensor input_y, Tensor freqs, int rotate_style, "
        "bool reuse_freqs_front_part, bool nope_first) -> ()",
        equivalent="output_x, output_y = rotate_both_by_angles(input_x, input_y, freqs, "
        "rotate_style, reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_fwd",
            "aiter.ops.rope.rope_cached_fwd",
        ),
        schema="rope_cached_fwd(Tensor input, Tensor cos, Tensor sin, int rotate_style, "
        "bool reuse_freqs_front_part, bool nope_first, bool transpose_output=False)"
        " -> Tensor",
        equivalent="rotate_by_style(input, cos, sin, rotate_style, reuse_freqs_front_part, "
        "nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_fwd_inplace",
            "aiter.ops.rope.rope_cached_fwd_inplace",
        ),
        schema="rope_cached_fwd_inplace(Tensor(a!) input, Tensor cos, Tensor sin, "
        "int rotate_style, bool reuse_freqs_front_part, bool nope_first)"
        " -> Tensor(a!)",
        equivalent="input = rotate_by_style(input, cos, sin, rotate_style, "
        "reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_fwd_impl",
            "aiter.ops.rope.rope_cached_fwd_impl",
        ),
        schema="rope_cached_fwd_impl(Tensor(a!) output, Tensor input, Tensor cos, "
        "Tensor sin, int rotate_style, bool reuse_freqs_front_part, "
        "bool nope_first) -> ()",
        equivalent="output = rotate_by_style(input, cos, sin, rotate_style, "
        "reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_2c_fwd",
            "aiter.ops.rope.rope_cached_2c_fwd",
        ),
        schema="rope_cached_2c_fwd(Tensor input_x, Tensor input_y, Tensor cos, "
        "Tensor sin, int rotate_style, bool reuse_freqs_front_part, "
        "bool nope_first, bool transpose_output=False) -> (Tensor, Tensor)",
        equivalent="rotate_both_by_style(input_x, input_y, cos, sin, rotate_style, "
        "reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_2c_fwd_inplace",
            "aiter.ops.rope.rope_cached_2c_fwd_inplace",
        ),
        schema="rope_cached_2c_fwd_inplace(Tensor(a!) input_x, Tensor(b!) input_y, "
        "Tensor cos, Tensor sin, int rotate_style, bool reuse_freqs_front_part, "
        "bool nope_first) -> (Tensor(a!), Tensor(b!))",
        equivalent="input_x, input_y = rotate_both_by_style(input_x, input_y, cos, sin, "
        "rotate_style, reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_2c_fwd_impl",
            "aiter.ops.rope.rope_cached_2c_fwd_impl",
        ),
        schema="rope_cached_2c_fwd_impl(Tensor(a!) output_x, Tensor(b!) output_y, "
        "Tensor input_x, Tensor input_y, Tensor cos, Tensor sin, int rotate_style, "
        "bool reuse_freqs_front_part, bool nope_first) -> ()",
        equivalent="output_x, output_y = rotate_both_by_style(input_x, input_y, cos, sin, "
        "rotate_style, reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_positions_fwd",
            "aiter.ops.rope.rope_cached_positions_fwd",
        ),
        schema="rope_cached_positions_fwd(Tensor input, Tensor cos, Tensor sin, "
        "Tensor positions, int rotate_style, bool reuse_freqs_front_part, "
        "bool nope_first, bool transpose_output=False) -> Tensor",
        equivalent="rotate_at_positions(input, cos, sin, positions, rotate_style, "
        "reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_positions_fwd_inplace",
            "aiter.ops.rope.rope_cached_positions_fwd_inplace",
        ),
        schema="rope_cached_positions_fwd_inplace(Tensor(a!) input, Tensor cos, "
        "Tensor sin, Tensor positions, int rotate_style, "
        "bool reuse_freqs_front_part, bool nope_first) -> Tensor(a!)",
        equivalent="input = rotate_at_positions(input, cos, sin, positions, rotate_style, "
        "reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_positions_fwd_impl",
            "aiter.ops.rope.rope_cached_positions_fwd_impl",
        ),
        schema="rope_cached_positions_fwd_impl(Tensor(a!) output, Tensor input, "
        "Tensor cos, Tensor sin, Tensor positions, int rotate_style, "
        "bool reuse_freqs_front_part, bool nope_first) -> ()",
        equivalent="output = rotate_at_positions(input, cos, sin, positions, rotate_style, "
        "reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_positions_2c_fwd",
            "aiter.ops.rope.rope_cached_positions_2c_fwd",
        ),
        schema="rope_cached_positions_2c_fwd(Tensor input_x, Tensor input_y, Tensor cos, "
        "Tensor sin, Tensor positions, int rotate_style, "
        "bool reuse_freqs_front_part, bool nope_first, bool transpose_output=False)"
        " -> (Tensor, Tensor)",
        equivalent="rotate_both_at_positions(input_x, input_y, cos, sin, positions, "
        "rotate_style, reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_positions_2c_fwd_inplace",
            "aiter.ops.rope.rope_cached_positions_2c_fwd_inplace",
        ),
        schema="rope_cached_positions_2c_fwd_inplace(Tensor(a!) input_x, "
        "Tensor(b!) input_y, Tensor cos, Tensor sin, Tensor positions, "
        "int rotate_style, bool reuse_freqs_front_part, bool nope_first)"
        " -> (Tensor(a!), Tensor(b!))",
        equivalent="input_x, input_y = rotate_both_at_positions(input_x, input_y, cos, sin, "
        "positions, rotate_style, reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_positions_2c_fwd_impl",
            "aiter.ops.rope.rope_cached_positions_2c_fwd_impl",
        ),
        schema="rope_cached_positions_2c_fwd_impl(Tensor(a!) output_x, "
        "Tensor(b!) output_y, Tensor input_x, Tensor input_y, Tensor cos, "
        "Tensor sin, Tensor positions, int rotate_style, "
        "bool reuse_freqs_front_part, bool nope_first) -> ()",
        equivalent="output_x, output_y = rotate_both_at_positions(input_x, input_y, cos, sin, "
        "positions, rotate_style, reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_positions_offsets_fwd",
            "aiter.ops.rope.rope_cached_positions_offsets_fwd",
        ),
        schema="rope_cached_positions_offsets_fwd(Tensor input, Tensor cos, Tensor sin, "
        "Tensor positions, Tensor offsets, int rotate_style, "
        "bool reuse_freqs_front_part, bool nope_first, bool transpose_output=False)"
        " -> Tensor",
        equivalent="rotate_at_positions(input, cos, sin, positions + offsets, rotate_style, "
        "reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_positions_offsets_fwd_inplace",
            "aiter.ops.rope.rope_cached_positions_offsets_fwd_inplace",
        ),
        schema="rope_cached_positions_offsets_fwd_inplace(Tensor(a!) input, Tensor cos, "
        "Tensor sin, Tensor positions, Tensor offsets, int rotate_style, "
        "bool reuse_freqs_front_part, bool nope_first) -> Tensor(a!)",
        equivalent="input = rotate_at_positions(input, cos, sin, positions + offsets, "
        "rotate_style, reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_positions_offsets_fwd_impl",
            "aiter.ops.rope.rope_cached_positions_offsets_fwd_impl",
        ),
        schema="rope_cached_positions_offsets_fwd_impl(Tensor(a!) output, Tensor input, "
        "Tensor cos, Tensor sin, Tensor positions, Tensor offsets, "
        "int rotate_style, bool reuse_freqs_front_part, bool nope_first) -> ()",
        equivalent="output = rotate_at_positions(input, cos, sin, positions + offsets, "
        "rotate_style, reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_positions_offsets_2c_fwd",
            "aiter.ops.rope.rope_cached_positions_offsets_2c_fwd",
        ),
        schema="rope_cached_positions_offsets_2c_fwd(Tensor input_x, Tensor input_y, "
        "Tensor cos, Tensor sin, Tensor positions, Tensor offsets, "
        "int rotate_style, bool reuse_freqs_front_part, bool nope_first, "
        "bool transpose_output=False) -> (Tensor, Tensor)",
        equivalent="rotate_both_at_positions(input_x, input_y, cos, sin, positions + offsets, "
        "rotate_style, reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_positions_offsets_2c_fwd_inplace",
            "aiter.ops.rope.rope_cached_positions_offsets_2c_fwd_inplace",
        ),
        schema="rope_cached_positions_offsets_2c_fwd_inplace(Tensor(a!) input_x, "
        "Tensor(b!) input_y, Tensor cos, Tensor sin, Tensor positions, "
        "Tensor offsets, int rotate_style, bool reuse_freqs_front_part, "
        "bool nope_first) -> (Tensor(a!), Tensor(b!))",
        equivalent="input_x, input_y = rotate_both_at_positions(input_x, input_y, cos, sin, "
        "positions + offsets, rotate_style, reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.rope_cached_positions_offsets_2c_fwd_impl",
            "aiter.ops.rope.rope_cached_positions_offsets_2c_fwd_impl",
        ),
        schema="rope_cached_positions_offsets_2c_fwd_impl(Tensor(a!) output_x, "
        "Tensor(b!) output_y, Tensor input_x, Tensor input_y, Tensor cos, "
        "Tensor sin, Tensor positions, Tensor offsets, int rotate_style, "
        "bool reuse_freqs_front_part, bool nope_first) -> ()",
        equivalent="output_x, output_y = rotate_both_at_positions(input_x, input_y, cos, sin, "
        "positions + offsets, rotate_style, reuse_freqs_front_part, nope_first)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=(
            "aiter.gemm_a8w8",
            "aiter.ops.gemm_op_a8w8.gemm_a8w8",
        ),
        schema="gemm_a8w8(Tensor XQ, Tensor WQ, Tensor x_scale, Tensor w_scale, "
        "Tensor? bias=None, ScalarType dtype=torch.bfloat16, int? splitK=None)"
        " -> Tensor",
        equivalent="scaled_mm(XQ, WQ.t(), x_scale, w_scale, dtype, bias)",
        source="aiter/ops at e4048607a535",
    ),
    FusedOp(
        names=("aiter.ops.activation.swiglu_and_mul", "aiter.swiglu_and_mul"),
        schema="swiglu_and_mul(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = swigluoai_halves_and_mul(input, 1.702, 7.0)",
        source="csrc/kernels/activation_kernels.cu, aiter e4048607a535",
    ),
    FusedOp(
        names=("aiter.rope_thd_fwd", "aiter.ops.rope.rope_thd_fwd"),
        schema="rope_thd_fwd(Tensor input, Tensor cu_seqlens, Tensor freqs, int rotate_style, "
        "bool reuse_freqs_front_part, bool nope_first) -> Tensor",
        equivalent="rotate_packed(input, cu_seqlens, freqs, rotate_style, reuse_freqs_front_part, "
        "nope_first)",
        source="op_tests/test_rope.py and aiter/ops/rope.py, aiter e4048607a535",
    ),
    FusedOp(
        names=("aiter.rope_thd_fwd_inplace", "aiter.ops.rope.rope_thd_fwd_inplace"),
        schema="rope_thd_fwd_inplace(Tensor(a!) input, Tensor cu_seqlens, Tensor freqs, int "
        "rotate_style, bool reuse_freqs_front_part, bool nope_first) -> Tensor(a!)",
        equivalent="input = rotate_packed(input, cu_seqlens, freqs, rotate_style, "
        "reuse_freqs_front_part, nope_first)",
        source="op_tests/test_rope.py and aiter/ops/rope.py, aiter e4048607a535",
    ),
    FusedOp(
        names=("aiter.rope_thd_fwd_impl", "aiter.ops.rope.rope_thd_fwd_impl"),
        schema="rope_thd_fwd_impl(Tensor(a!) output, Tensor input, Tensor cu_seqlens, Tensor "
        "freqs, int rotate_style, bool reuse_freqs_front_part, bool nope_first) -> ()",
        equivalent="output = rotate_packed(input, cu_seqlens, freqs, rotate_style, "
        "reuse_freqs_front_part, nope_first)",
        source="op_tests/test_rope.py and aiter/ops/rope.py, aiter e4048607a535",
    ),
    FusedOp(
        names=("aiter.rope_2d_fwd", "aiter.ops.rope.rope_2d_fwd"),
        schema="rope_2d_fwd(Tensor input, Tensor cos_h, Tensor sin_h, Tensor cos_w, Tensor sin_w, "
        "int img_height, int img_width, int rotate_style, bool reuse_freqs_front_part, bool "
        "nope_first) -> Tensor",
        equivalent="rotate_image(input, cos_h, sin_h, cos_w, sin_w, img_height, img_width, "
        "rotate_style, reuse_freqs_front_part)",
        source="op_tests/test_rope.py and aiter/ops/rope.py, aiter e4048607a535",
    ),
    FusedOp(
        names=("aiter.rope_2d_fwd_inplace", "aiter.ops.rope.rope_2d_fwd_inplace"),
        schema="rope_2d_fwd_inplace(Tensor(a!) input, Tensor cos_h, Tensor sin_h, Tensor cos_w, "
        "Tensor sin_w, int img_height, int img_width, int rotate_style, bool "
        "reuse_freqs_front_part, bool nope_first) -> Tensor(a!)",
        equivalent="input = rotate_image(input, cos_h, sin_h, cos_w, sin_w, img_height, "
        "img_width, rotate_style, reuse_freqs_front_part)",
        source="op_tests/test_rope.py and aiter/ops/rope.py, aiter e4048607a535",
    ),
    FusedOp(
        names=("aiter.rope_2d_fwd_impl", "aiter.ops.rope.rope_2d_fwd_impl"),
        schema="rope_2d_fwd_impl(Tensor(a!) output, Tensor input, Tensor cos_h, Tensor sin_h, "
        "Tensor cos_w, Tensor sin_w, int img_height, int img_width, int rotate_style, bool "
        "reuse_freqs_front_part, bool nope_first) -> ()",
        equivalent="output = rotate_image(input, cos_h, sin_h, cos_w, sin_w, img_height, "
        "img_width, rotate_style, reuse_freqs_front_part)",
        source="op_tests/test_rope.py and aiter/ops/rope.py, aiter e4048607a535",
    ),
    FusedOp(
        names=("aiter.grouped_topk", "aiter.ops.topk.grouped_topk"),
        schema="grouped_topk(Tensor gating_output, Tensor(a!) topk_weights, Tensor(b!) topk_ids, "
        "int num_expert_group, int topk_group, bool need_renorm, bool is_softmax=True, float "
        "routed_scaling_factor=1.0) -> ()",
        equivalent="topk_weights, topk_ids = grouped_topk(gating_output, topk_ids.shape[-1], "
        "need_renorm, num_expert_group, topk_group, 'softmax' if is_softmax else 'sigmoid', "
        "routed_scaling_factor)",
        source="aiter/ops/topk.py, aiter e4048607a535",
    ),
    FusedOp(
        names=("aiter.biased_grouped_topk", "aiter.ops.topk.biased_grouped_topk"),
        schema="biased_grouped_topk(Tensor gating_output, Tensor correction_bias, Tensor(a!) "
        "topk_weights, Tensor(b!) topk_ids, int num_expert_group, int topk_group, bool "
        "need_renorm, float routed_scaling_factor=1.0) -> ()",
        equivalent="topk_weights, topk_ids = grouped_topk(gating_output, topk_ids.shape[-1], "
        "need_renorm, num_expert_group, topk_group, 'sigmoid', routed_scaling_factor, "
        "correction_bias)",
        source="aiter/ops/topk.py, aiter e4048607a535",
    ),
)

# Without an equivalent.
OPS += opaque(
    "cache",
    CACHE,
    _READ,
    """
    aiter.reshape_and_cache, aiter.ops.cache.reshape_and_cache(key, value, key_cache,
        value_cache, slot_mapping, kv_cache_dtype, k_scale=None, v_scale=None,
        asm_layout=False) -> None
    aiter.reshape_and_cache_flash, aiter.ops.cache.reshape_and_cache_flash(key, value,
        key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale) -> None
    aiter.concat_and_cache_mla, aiter.ops.cache.concat_and_cache_mla(kv_c, k_pe, kv_cache,
        slot_mapping, kv_cache_dtype, scale) -> None
    """,
)
OPS += opaque(
    "quantize",
    CODES,
    _READ,
    """
    aiter.scaled_silu_and_mul, aiter.ops.activation.scaled_silu_and_mul(out, input,
        scale) -> None
    aiter.silu_and_mul_quant, aiter.ops.activation.silu_and_mul_quant(out, input, scale,
        group_size, limit=0.0, shuffle_scale=False) -> None
    """,
)
OPS += opaque(
    "sampling",
    TOKENS,
    _READ,
    """
    aiter.greedy_sample, aiter.ops.sample.greedy_sample(out, input) -> None
    aiter.random_sample, aiter.ops.sample.random_sample(out, input, temperatures, lambd=1.0,
        generator=None, eps=1e-10) -> None
    """,
)
OPS += opaque(
    "moe",
    UNDOCUMENTED,
    _READ,
    """
    aiter.topk_gating, aiter.ops.topk.topk_gating(topk_weights, topk_indices, gating_output,
        correction_bias=None, need_renorm=True, routed_scaling_factor=1.0,
        score_func='sqrtsoftplus') -> None
    """,
)
OPS += opaque(
    "norm",
    BUFFER,
    _READ,
    """
    aiter.rmsnorm2d_fwd_with_smoothquant, aiter.ops.rmsnorm.rmsnorm2d_fwd_with_smoothquant(out,
        input, xscale, yscale, weight, epsilon, use_model_sensitive_rmsnorm=0) -> None
    aiter.rmsnorm2d_fwd_with_dynamicquant,
        aiter.ops.rmsnorm.rmsnorm2d_fwd_with_dynamicquant(out, input, yscale, weight, epsilon,
        use_model_sensitive_rmsnorm=0, group_size=0, shuffle_scale=False) -> None
    aiter.rmsnorm2d_fwd_with_add_dynamicquant,
        aiter.ops.rmsnorm.rmsnorm2d_fwd_with_add_dynamicquant(out, input, residual_in,
        residual_out, yscale, weight, epsilon, use_model_sensitive_rmsnorm=0, group_size=0,
        shuffle_scale=False) -> None
    aiter.rmsnorm_quant, aiter.ops.rmsnorm.rmsnorm_quant(out, input, scale, weight, epsilon,
        group_size=0, shuffle_scale=False, gemma_norm=False) -> None
    aiter.add_rmsnorm_quant, aiter.ops.rmsnorm.add_rmsnorm_quant(out, input, residual_in,
        residual_out, scale, weight, epsilon, group_size=0, shuffle_scale=False,
        gemma_norm=False) -> None
    """,
)
OPS += opaque(
    "rope",
    UNDOCUMENTED,
    _READ,
    """
    aiter.rotary_embedding_fwd, aiter.ops.pos_encoding.rotary_embedding_fwd(positions, query,
        key, head_size, cos_cache, sin_cache, is_neox, is_nope_first) -> None
    aiter.batched_rotary_embedding, aiter.ops.pos_encoding.batched_rotary_embedding(positions,
        query, key, head_size, cos_cache, sin_cache, is_neox, is_nope_first, rot_dim,
        cos_sin_cache_offsets) -> None
    """,
)
OPS += opaque(
    "attention",
    OPTIONS,
    _READ,
    """
    aiter.paged_attention_v1, aiter.ops.attention.paged_attention_v1(out, workspace_buffer,
        query, key_cache, value_cache, scale, block_tables, cu_query_lens, context_lens,
        max_context_len, alibi_slopes, kv_cache_dtype, kv_cache_layout, logits_soft_cap,
        k_scale, v_scale, fp8_out_scale=None, partition_size=256, mtp=1,
        sliding_window=0) -> torch.Tensor
    aiter.paged_attention_rocm, aiter.ops.attention.paged_attention_rocm(out, exp_sums,
        max_logits, tmp_out, query, key_cache, value_cache, num_kv_heads, scale, block_tables,
        context_lens, block_size, max_context_len, alibi_slopes, kv_cache_dtype, k_scale,
        v_scale, fp8_out_scale=None, partition_size=256, mtp=1, q_scale=None) -> torch.Tensor
    aiter.paged_attention_ragged, aiter.ops.attention.paged_attention_ragged(out,
        workspace_buffer, query, key_cache, value_cache, scale, kv_indptr, kv_page_indices,
        kv_last_page_lens, block_size, max_num_partitions, alibi_slopes, kv_cache_dtype,
        kv_cache_layout, logits_soft_cap, k_scale, v_scale, fp8_out_scale=None,
        partition_size=256, mtp=1) -> torch.Tensor
    aiter.mha_batch_prefill_func(q, k, v, cu_seqlens_q, kv_indptr, kv_page_indices,
        max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, logits_soft_cap=0.0,
        causal=False, window_size=(-1, -1), alibi_slopes=None, deterministic=False,
        return_lse=False, return_attn_probs=False, out=None, kv_last_page_lens=None,
        block_table=None, seqlen_k=None, q_descale=None, k_descale=None, v_descale=None,
        kv_block_descale=None, sink_ptr=None, sink_size=0)
    """,
)
OPS += opaque(
    "attention",
    UNDOCUMENTED,
    _READ,
    """
    aiter.pa_fwd_asm, aiter.ops.attention.pa_fwd_asm(Q, K, V, block_tables, context_lens,
        block_tables_stride0, max_qlen=1, K_QScale=None, V_QScale=None, out_=None,
        qo_indptr=None, high_precision=1, kernelName=None) -> torch.Tensor
    """,
)
OPS += opaque(
    "attention",
    CODED,
    _READ,
    """
    aiter.flash_attn_fp8_pertensor_func(q, k, v, q_descale, k_descale, v_descale, causal=False,
        window_size=(-1, -1, 0), softmax_scale=None, sink_ptr=None)
    """,
)
OPS += opaque(
    "state_space",
    STATES,
    _READ,
    """
    aiter.causal_conv1d_update, aiter.ops.causal_conv1d_update.causal_conv1d_update(x,
        conv_state, weight, bias, out, use_silu, cache_seqlens, conv_state_indices,
        pad_slot_id) -> None
    """,
)
