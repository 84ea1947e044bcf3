"""PyTorch's own forward-only ops: ``aten``, ``quantized``, ``mkldnn`` and their like.

Most of them raise in backward or give a result that requires no gradient.
"""

from . import FusedOp, opaque
from .reasons import CODES, FUNCTIONAL, HANDLE, TILED, UNPACK

_READ = "torch 2.13.0"
_ROUNDED = "the gradient of fp8 codes is rounded to fp8 as well"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=(
            "torch.ops.aten._weight_int8pack_mm",
            "torch._weight_int8pack_mm",
        ),
        schema="_weight_int8pack_mm(Tensor self, Tensor mat2, Tensor scales) -> Tensor",
        equivalent="(self @ mat2.t().to(self.dtype)) * scales",
        codes=("mat2",),
        source="native_functions.yaml, torch 2.13.0",
        family="matmul",
    ),
    FusedOp(
        names=(
            "torch.ops.aten._add_relu.Tensor",
            "torch._add_relu",
        ),
        schema="_add_relu(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        equivalent="F.relu(self + alpha * other)",
        source="native_functions.yaml, torch 2.13.0",
        family="activation",
    ),
    FusedOp(
        names=(
            "torch.ops.aten._addmm_activation",
            "torch._addmm_activation",
        ),
        schema="_addmm_activation(Tensor self, Tensor mat1, Tensor mat2, *, "
        "Scalar beta=1, Scalar alpha=1, bool use_gelu=False) -> Tensor",
        equivalent="F.relu(torch.addmm(self, mat1, mat2, beta=beta, alpha=alpha))",
        source="native_functions.yaml, torch 2.13.0",
        unsupported=("use_gelu",),
        family="matmul",
    ),
    FusedOp(
        names=("torch.ops.mkl._mkl_linear",),
        schema="_mkl_linear(Tensor X, Tensor MKL_W, Tensor ORI_W, Tensor? B, "
        "int batch_size) -> Tensor",
        equivalent="F.linear(X, ORI_W, B)",
        source="aten/src/ATen/native/mkl, torch 2.13.0",
        family="matmul",
    ),
    FusedOp(
        names=("torch.ops.aten.mm.dtype",),
        schema="mm(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor",
        equivalent="torch.mm(self.to(out_dtype), mat2.to(out_dtype))",
        source="native_functions.yaml, torch 2.13.0",
        family="matmul",
    ),
    FusedOp(
        names=("torch.ops.aten.bmm.dtype",),
        schema="bmm(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor",
        equivalent="torch.bmm(self.to(out_dtype), mat2.to(out_dtype))",
        source="native_functions.yaml, torch 2.13.0",
        family="matmul",
    ),
    FusedOp(
        names=("torch.ops.aten._triton_scaled_dot_attention",),
        schema="_triton_scaled_dot_attention(Tensor q, Tensor k, Tensor v, "
        "float dropout_p=0.0) -> Tensor",
        equivalent="F.scaled_dot_product_attention(q, k, v)",
        source="native_functions.yaml, torch 2.13.0",
        unsupported=("dropout_p",),
        family="attention",
    ),
    FusedOp(
        names=("torch.ops.aten._scaled_mm", "torch._scaled_mm"),
        schema="_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, "
        "Tensor? bias=None, Tensor? scale_result=None, ScalarType? out_dtype=None, "
        "bool use_fast_accum=False) -> Tensor",
        equivalent="scaled_mm(self, mat2, scale_a, scale_b, "
        "self.dtype if out_dtype is None else out_dtype, bias)",
        source="native_functions.yaml, torch 2.13.0",
        unsupported=("scale_result",),
        look_at=f"scales must be one number, or one for each row and column; {_ROUNDED}",
    ),
    FusedOp(
        names=("torch.nn.functional.scaled_mm",),
        schema="scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scale_a, Any scale_recipe_a, "
        "Tensor scale_b, Any scale_recipe_b, Any swizzle_a=None, Any swizzle_b=None, "
        "Tensor? bias=None, ScalarType? output_dtype=torch.bfloat16, int[] contraction_dim=(), "
        "bool use_fast_accum=False) -> Tensor",
        equivalent="scaled_mm(mat_a, mat_b, scale_a, scale_b, output_dtype, bias)",
        source="torch/nn/functional.py, torch 2.13.0",
        unsupported=("swizzle_a", "swizzle_b", "contraction_dim"),
        look_at=f"the recipes must be TensorWise or RowWise; {_ROUNDED}",
    ),
    FusedOp(
        names=("torch.ops.aten._scaled_mm_v2", "torch._scaled_mm_v2"),
        schema="_scaled_mm_v2(Tensor self, Tensor mat2, Tensor[] scale_a, int[] recipe_a, "
        "int[] swizzle_a, Tensor[] scale_b, int[] recipe_b, int[] swizzle_b, Tensor? bias, "
        "ScalarType? out_dtype, int[] contraction_dim=[], bool use_fast_accum=False) -> Tensor",
        equivalent="scaled_mm(self, mat2, scale_a[0], scale_b[0], "
        "self.dtype if out_dtype is None else out_dtype, bias)",
        source="native_functions.yaml, torch 2.13.0",
        unsupported=("contraction_dim",),
        look_at=f"the recipes must be 0 or 1, TensorWise or RowWise, without a swizzle; {_ROUNDED}",
    ),
    FusedOp(
        names=("torch.ops.aten._scaled_grouped_mm", "torch._scaled_grouped_mm"),
        schema="_scaled_grouped_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, "
        "Tensor? offs=None, Tensor? bias=None, Tensor? scale_result=None, "
        "ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor",
        equivalent="scaled_grouped_mm(self, mat2, scale_a, scale_b, offs, "
        "torch.bfloat16 if out_dtype is None else out_dtype)",
        source="native_functions.yaml, aten/src/ATen/native/cuda/GroupedBlas.cpp, torch 2.13.0",
        unsupported=("bias", "scale_result"),
        look_at=f"the groups must be of rows, with a matrix each; {_ROUNDED}",
    ),
    FusedOp(
        names=("torch.ops.aten._scaled_dot_product_flash_attention.quantized",),
        schema="_scaled_dot_product_flash_attention.quantized(Tensor query, Tensor key, "
        "Tensor value, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, "
        "float dropout_p=0., bool is_causal=False, bool return_debug_mask=False, *, "
        "float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor cum_seq_q, "
        "Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor rng_state, Tensor unused, "
        "Tensor debug_attn_mask)",
        equivalent="quantized_attention_results(query, key, value, q_descale, k_descale, "
        "v_descale, is_causal, scale)",
        source="torch/nn/attention/_fa3.py, torch 2.13.0",
        unsupported=("dropout_p", "return_debug_mask"),
        look_at=_ROUNDED,
    ),
    FusedOp(
        names=("torch.ops.aten._flash_attention_forward.quantized",),
        schema="_flash_attention_forward.quantized(Tensor query, Tensor key, Tensor value, "
        "Tensor? cum_seq_q, Tensor? cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, "
        "bool is_causal, bool return_debug_mask, Tensor? q_descale, Tensor? k_descale, "
        "Tensor? v_descale, *, float? scale=None, SymInt? window_size_left=None, "
        "SymInt? window_size_right=None, Tensor? seqused_k=None, Tensor? alibi_slopes=None) -> "
        "(Tensor output, Tensor softmax_logsumexp, Tensor rng_state, Tensor unused, "
        "Tensor debug_attn_mask)",
        equivalent="quantized_flash_attention(query, key, value, q_descale, k_descale, v_descale, "
        "is_causal, scale)",
        source="torch/nn/attention/_fa3.py, torch 2.13.0",
        unsupported=(
            *("cum_seq_q", "cum_seq_k", "window_size_left", "window_size_right", "seqused_k"),
            "alibi_slopes",
        ),
        look_at=f"dropout_p must be 0, and queries as many as keys; {_ROUNDED}",
    ),
    # These two have gradients for query, key and value alone.
    FusedOp(
        names=("torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",),
        schema="_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, "
        "Tensor value, float dropout_p=0.0, bool is_causal=False, *, Tensor? attn_mask=None, "
        "float? scale=None) -> (Tensor output, Tensor logsumexp)",
        equivalent="biased_attention(query, key, value, attn_mask, is_causal, scale)",
        source="derivatives.yaml, torch 2.13.0",
        unsupported=("dropout_p",),
        loses=("attn_mask",),
    ),
    FusedOp(
        names=("torch.ops.aten._scaled_dot_product_cudnn_attention",),
        schema="_scaled_dot_product_cudnn_attention(Tensor query, Tensor key, Tensor value, "
        "Tensor? attn_bias, bool compute_log_sumexp, float dropout_p=0.0, bool is_causal=False, "
        "bool return_debug_mask=False, *, float? scale=None) -> (Tensor output, "
        "Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, int max_q, int max_k, "
        "Tensor philox_seed, Tensor philox_offset, Tensor debug_attn_mask)",
        equivalent="biased_attention_results(query, key, value, attn_bias, is_causal, scale)",
        source="derivatives.yaml, torch 2.13.0",
        unsupported=("dropout_p", "return_debug_mask"),
        loses=("attn_bias",),
    ),
    FusedOp(
        names=("torch.ops.aten.scatter.reduce",),
        schema="reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor",
        equivalent="torch.scatter_reduce(self, dim, index, src, 'sum' if reduce == 'add' else "
        "'prod')",
        codes=("index",),
        source="native_functions.yaml, torch 2.13.0",
        family="tensor",
    ),
    FusedOp(
        names=("torch.ops.aten._stack",),
        schema="_stack(Tensor[] tensors, int dim=0) -> Tensor",
        equivalent="torch.stack(tensors, dim)",
        source="native_functions.yaml, torch 2.13.0",
        family="tensor",
    ),
    FusedOp(
        names=("torch.ops.aten._logcumsumexp",),
        schema="_logcumsumexp(Tensor self, int dim) -> Tensor",
        equivalent="torch.logcumsumexp(self, dim)",
        source="native_functions.yaml, torch 2.13.0",
        family="tensor",
    ),
    FusedOp(
        names=("torch.ops.prims.add",),
        schema="add(Tensor self, Tensor other) -> Tensor",
        equivalent="torch.add(self, other)",
        source="torch/_prims/__init__.py, torch 2.13.0",
        family="tensor",
    ),
    FusedOp(
        names=("torch.ops.aten._embedding_bag_forward_only",),
        schema="_embedding_bag_forward_only(Tensor weight, Tensor indices, Tensor offsets, bool "
        "scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? "
        "per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> "
        "(Tensor, Tensor, Tensor, Tensor)",
        equivalent="torch.ops.aten._embedding_bag(weight, indices, offsets, scale_grad_by_freq, "
        "mode, sparse, per_sample_weights, include_last_offset, padding_idx)",
        source="native_functions.yaml, torch 2.13.0",
        family="embedding",
    ),
    FusedOp(
        names=("torch.ops.aten.addmm.dtype",),
        schema="addmm(Tensor self, Tensor mat1, Tensor mat2, ScalarType out_dtype, *, Scalar "
        "beta=1, Scalar alpha=1) -> Tensor",
        equivalent="torch.addmm(self.to(out_dtype), mat1.to(out_dtype), mat2.to(out_dtype), "
        "beta=beta, alpha=alpha)",
        source="native_functions.yaml, torch 2.13.0",
        family="matmul",
    ),
    FusedOp(
        names=("torch.ops.aten.baddbmm.dtype",),
        schema="baddbmm(Tensor self, Tensor batch1, Tensor batch2, ScalarType out_dtype, *, "
        "Scalar beta=1, Scalar alpha=1) -> Tensor",
        equivalent="torch.baddbmm(self.to(out_dtype), batch1.to(out_dtype), batch2.to(out_dtype), "
        "beta=beta, alpha=alpha)",
        source="native_functions.yaml, torch 2.13.0",
        family="matmul",
    ),
    FusedOp(
        names=("torch.ops.aten._transform_bias_rescale_qkv",),
        schema="_transform_bias_rescale_qkv(Tensor qkv, Tensor qkv_bias, int num_heads) -> "
        "(Tensor, Tensor, Tensor)",
        equivalent="split_and_scale(qkv, qkv_bias, num_heads)",
        source="native_functions.yaml, torch 2.13.0",
    ),
    FusedOp(
        names=("torch.ops.aten._native_multi_head_attention",),
        schema="_native_multi_head_attention(Tensor query, Tensor key, Tensor value, int "
        "embed_dim, int num_head, Tensor qkv_weight, Tensor qkv_bias, Tensor proj_weight, Tensor "
        "proj_bias, Tensor? mask=None, bool need_weights=True, bool average_attn_weights=True, "
        "int? mask_type=None) -> (Tensor, Tensor)",
        equivalent="multi_head_attention(query, key, value, num_head, qkv_weight, qkv_bias, "
        "proj_weight, proj_bias, need_weights, average_attn_weights)",
        source="native_functions.yaml, torch 2.13.0",
        unsupported=("mask", "mask_type"),
    ),
    FusedOp(
        names=("torch.ops.aten._transformer_encoder_layer_fwd",),
        schema="_transformer_encoder_layer_fwd(Tensor src, int embed_dim, int num_heads, Tensor "
        "qkv_weight, Tensor qkv_bias, Tensor proj_weight, Tensor proj_bias, bool use_gelu, bool "
        "norm_first, float eps, Tensor norm_weight_1, Tensor norm_bias_1, Tensor norm_weight_2, "
        "Tensor norm_bias_2, Tensor ffn_weight_1, Tensor ffn_bias_1, Tensor ffn_weight_2, Tensor "
        "ffn_bias_2, Tensor? mask=None, int? mask_type=None) -> Tensor",
        equivalent="transformer_encoder_layer(src, num_heads, qkv_weight, qkv_bias, proj_weight, "
        "proj_bias, use_gelu, norm_first, eps, norm_weight_1, norm_bias_1, norm_weight_2, "
        "norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2)",
        source="native_functions.yaml, torch 2.13.0",
        unsupported=("mask", "mask_type"),
    ),
    FusedOp(
        names=("torch.ops.aten._triton_multi_head_attention",),
        schema="_triton_multi_head_attention(Tensor query, Tensor key, Tensor value, int "
        "embed_dim, int num_head, Tensor qkv_weight, Tensor qkv_bias, Tensor proj_weight, Tensor "
        "proj_bias, Tensor? mask=None) -> Tensor",
        equivalent="self_attention(query, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias)",
        source="native_functions.yaml, torch 2.13.0",
        unsupported=("mask",),
    ),
)

# Without an equivalent.
OPS += opaque(
    "matmul",
    CODES,
    _READ,
    """
    torch.ops.aten._int_mm(Tensor self, Tensor mat2) -> Tensor
    """,
)
OPS += opaque(
    "misc",
    CODES,
    _READ,
    """
    torch.ops.aten.floor_divide(Tensor self, Tensor other) -> Tensor
    """,
)
OPS += opaque(
    "misc",
    UNPACK,
    _READ,
    """
    torch.ops.aten.detach_copy(Tensor self) -> Tensor
    """,
)
OPS += opaque(
    "matmul",
    TILED,
    _READ,
    """
    torch.ops.aten._weight_int4pack_mm(Tensor self, Tensor mat2, int qGroupSize,
        Tensor qScaleAndZeros) -> Tensor
    torch.ops.aten._weight_int4pack_mm_for_cpu(Tensor self, Tensor mat2, int qGroupSize,
        Tensor qScaleAndZeros) -> Tensor
    torch.ops.aten._weight_int4pack_mm_with_scales_and_zeros(Tensor self, Tensor mat2,
        int qGroupSize, Tensor qScale, Tensor qZeros) -> Tensor
    torch.ops.aten._dyn_quant_matmul_4bit(Tensor inp, Tensor packed_weights, int block_size,
        int in_features, int out_features) -> Tensor
    torch.ops.aten._mixed_dtypes_linear(Tensor input, Tensor weight, Tensor scale, *,
        Tensor? bias=None, str? activation=None) -> Tensor
    torch.ops.mkldnn._linear_pointwise(Tensor X, Tensor W, Tensor? B, str attr,
        Scalar?[] scalars, str? algorithm) -> Tensor Y
    torch.ops.onednn.qlinear_pointwise(Tensor qx, float x_scale, int x_zero_point, Tensor qw,
        Tensor w_scale, Tensor w_zero_point, Tensor? bias, float output_scale,
        int output_zero_point, ScalarType? output_dtype, str post_op_name,
        Scalar?[] post_op_args, str post_op_algorithm) -> Tensor
    torch.ops.onednn.linear_dynamic_fp16(Tensor x, Tensor w, Tensor? bias) -> Tensor
    """,
)
OPS += opaque(
    "matmul",
    HANDLE,
    _READ,
    """
    torch.ops.quantized.linear_dynamic(Tensor X,
        __torch__.torch.classes.quantized.LinearPackedParamsBase W_prepack,
        bool reduce_range=False) -> Tensor Y
    torch.ops.quantized.linear_relu_dynamic(Tensor X,
        __torch__.torch.classes.quantized.LinearPackedParamsBase W_prepack,
        bool reduce_range=False) -> Tensor Y
    torch.ops.quantized.linear_dynamic_fp16(Tensor X,
        __torch__.torch.classes.quantized.LinearPackedParamsBase W_prepack) -> Tensor Y
    torch.ops.quantized.linear(Tensor X,
        __torch__.torch.classes.quantized.LinearPackedParamsBase W_prepack, float Y_scale_i,
        int Y_zero_point_i) -> Tensor Y
    """,
)
OPS += opaque(
    "misc",
    FUNCTIONAL,
    _READ,
    """
    torch.ops.aten.copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor
    """,
)
