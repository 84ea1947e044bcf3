"""torch_npu's ops without a derivative, from ``op_plugin_functions.yaml``.

The others have one (``derivatives.yaml``) and are not listed.
"""

from . import FusedOp, opaque
from .reasons import (
    CACHE,
    CODED,
    CODES,
    FILTER,
    OPTIONS,
    QUANTIZES,
    TILED,
    UNDOCUMENTED,
    WRITES,
)

_READ = "torch_npu 517f2e7d0f20"
_NPU = "op_plugin/config/op_plugin_functions.yaml"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=("torch_npu.npu_add_rms_norm", "torch.ops.npu.npu_add_rms_norm"),
        schema="npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-6)"
        " -> (Tensor, Tensor, Tensor)",
        equivalent="add_rms_norm_with_scale(x1, x2, gamma, epsilon)",
        source=_NPU,
    ),
    FusedOp(
        names=("torch_npu.npu_gemma_rms_norm", "torch.ops.npu.npu_gemma_rms_norm"),
        schema="npu_gemma_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-6)"
        " -> (Tensor, Tensor)",
        equivalent="gemma_rms_norm_with_scale(self, gamma, epsilon)",
        source=_NPU,
    ),
    FusedOp(
        names=("torch_npu.npu_apply_rotary_pos_emb", "torch.ops.npu.npu_apply_rotary_pos_emb"),
        schema="npu_apply_rotary_pos_emb(Tensor query, Tensor key, Tensor cos, Tensor sin, "
        "str layout='BSND', str rotary_mode='half') -> (Tensor, Tensor)",
        equivalent="apply_rotary_pos_emb(query, key, cos, sin)",
        source=_NPU,
        unsupported=("layout", "rotary_mode"),
    ),
    FusedOp(
        names=("torch_npu.npu_clipped_swiglu", "torch.ops.npu.npu_clipped_swiglu"),
        schema="npu_clipped_swiglu(Tensor x, *, Tensor? group_index=None, int dim=-1, "
        "float alpha=1.702, float limit=7.0, float bias=1.0, bool interleaved=True) -> Tensor",
        equivalent="swigluoai_and_mul(x, alpha, limit)",
        source=_NPU,
        unsupported=("group_index", "dim", "bias", "interleaved"),
    ),
    FusedOp(
        names=(
            "torch_npu.npu_silu_",
            "torch.ops.npu.npu_silu_",
        ),
        schema="npu_silu_(Tensor(a!) self) -> Tensor(a!)",
        equivalent="self = F.silu(self)",
        source="op_plugin/config/op_plugin_functions.yaml",
        family="activation",
    ),
    FusedOp(
        names=("torch_npu.npu_interleave_rope", "torch.ops.npu.npu_interleave_rope"),
        schema="npu_interleave_rope(Tensor x, Tensor cos, Tensor sin) -> Tensor",
        equivalent="rotate_interleaved_to_halves(x, cos, sin)",
        source="op_plugin's documentation of npu_interleave_rope",
        look_at="where the kernel rounds is not documented",
    ),
    FusedOp(
        names=(
            "torch_npu.npu_moe_gating_top_k_softmax",
            "torch.ops.npu.npu_moe_gating_top_k_softmax",
        ),
        schema="npu_moe_gating_top_k_softmax(Tensor x, Tensor? finished=None, int k=1) -> "
        "(Tensor, Tensor, Tensor)",
        equivalent="softmax_topk_rows(x, k, False, x.dtype)",
        source="op_plugin's documentation of npu_moe_gating_top_k_softmax",
        unsupported=("finished",),
        look_at="where the kernel rounds is not documented",
    ),
)

# Without an equivalent.
OPS += opaque(
    "cache",
    CACHE,
    _READ,
    """
    torch_npu.npu_scatter_pa_kv_cache, torch.ops.npu.npu_scatter_pa_kv_cache(Tensor key,
        Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_mapping, *,
        Tensor? compress_lens=None, Tensor? compress_seq_offsets=None, Tensor? seq_lens=None,
        str? cache_mode='PA_NZ') -> ()
    """,
)
OPS += opaque(
    "quantize",
    CODES,
    _READ,
    """
    torch_npu.npu_dynamic_quant, torch.ops.npu.npu_dynamic_quant(Tensor input, *,
        Tensor? smooth_scales=None, Tensor? group_index=None, int? dst_type=None,
        str quant_mode="pertoken", float dst_type_max=0.0) -> (Tensor, Tensor)
    torch_npu.npu_quantize, torch.ops.npu.npu_quantize(Tensor self, Tensor scales,
        Tensor? zero_points, int dtype, int axis=1, bool div_mode=True) -> Tensor
    """,
)
OPS += opaque(
    "sampling",
    FILTER,
    _READ,
    """
    torch_npu.npu_top_k_top_p, torch.ops.npu.npu_top_k_top_p(Tensor logits, Tensor? p=None,
        Tensor? k=None) -> Tensor
    """,
)
OPS += opaque(
    "activation",
    UNDOCUMENTED,
    _READ,
    """
    torch_npu.npu_gelu_mul, torch.ops.npu.npu_gelu_mul(Tensor input, *,
        str approximate='none') -> Tensor
    """,
)
OPS += opaque(
    "matmul",
    OPTIONS,
    _READ,
    """
    torch_npu.npu_ffn, torch.ops.npu.npu_ffn(Tensor x, Tensor weight1, Tensor weight2,
        str activation, *, int[]? expert_tokens=None, int[]? expert_tokens_index=None,
        Tensor? bias1=None, Tensor? bias2=None, Tensor? scale=None, Tensor? offset=None,
        Tensor? deq_scale1=None, Tensor? deq_scale2=None, Tensor? antiquant_scale1=None,
        Tensor? antiquant_scale2=None, Tensor? antiquant_offset1=None,
        Tensor? antiquant_offset2=None, int? inner_precise=None,
        ScalarType? output_dtype=None) -> Tensor
    """,
)
OPS += opaque(
    "matmul",
    CODED,
    _READ,
    """
    torch_npu.npu_quant_matmul, torch.ops.npu.npu_quant_matmul(Tensor x1, Tensor x2,
        Tensor scale, *, Tensor? offset=None, Tensor? pertoken_scale=None, Tensor? bias=None,
        int? output_dtype=None, int? x1_dtype=None, int? x2_dtype=None,
        int? pertoken_scale_dtype=None, int? scale_dtype=None, int[]? group_sizes=None,
        Tensor? y_scale=None) -> Tensor
    """,
)
OPS += opaque(
    "matmul",
    TILED,
    _READ,
    """
    torch_npu.npu_weight_quant_batchmatmul, torch.ops.npu.npu_weight_quant_batchmatmul(Tensor x,
        Tensor weight, Tensor antiquant_scale, Tensor? antiquant_offset=None,
        Tensor? quant_scale=None, Tensor? quant_offset=None, Tensor? bias=None,
        int antiquant_group_size=0, int inner_precise=0, int? weight_dtype=None) -> Tensor
    """,
)
OPS += opaque(
    "moe",
    OPTIONS,
    _READ,
    """
    torch_npu.npu_grouped_matmul, torch.ops.npu.npu_grouped_matmul(Tensor[] x, Tensor[] weight,
        *, Tensor[]? bias=None, Tensor[]? scale=None, Tensor[]? offset=None,
        Tensor[]? antiquant_scale=None, Tensor[]? antiquant_offset=None,
        Tensor[]? per_token_scale=None, Tensor? group_list=None,
        Tensor[]? activation_input=None, Tensor[]? activation_quant_scale=None,
        Tensor[]? activation_quant_offset=None, int? split_item=0, int? group_type=None,
        int? group_list_type=0, int? act_type=0, int[]? tuning_config=None,
        int? output_dtype=None, int? x_dtype=None, int? weight_dtype=None,
        int? scale_dtype=None, int? per_token_scale_dtype=None) -> Tensor[]
    """,
)
OPS += opaque(
    "norm",
    UNDOCUMENTED,
    _READ,
    """
    torch_npu.npu_add_rms_norm_v2, torch.ops.npu.npu_add_rms_norm_v2(Tensor(a!) x1,
        Tensor(b!) x2, Tensor gamma, float epsilon=1e-06) -> Tensor
    torch_npu.npu_add_rms_norm_cast, torch.ops.npu.npu_add_rms_norm_cast(Tensor x1, Tensor x2,
        Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor, Tensor, Tensor)
    """,
)
OPS += opaque(
    "norm",
    QUANTIZES,
    _READ,
    """
    torch_npu.npu_rms_norm_quant, torch.ops.npu.npu_rms_norm_quant(Tensor x, Tensor gamma,
        Tensor beta, Tensor scale, Tensor offset, float epsilon=1e-06, *,
        int? dst_dtype=None) -> Tensor
    torch_npu.npu_add_rms_norm_quant, torch.ops.npu.npu_add_rms_norm_quant(Tensor x1, Tensor x2,
        Tensor gamma, Tensor scales1, Tensor? zero_points1, Tensor? beta=None,
        Tensor? scales2=None, Tensor? zero_points2=None, *, int axis=-1, float epsilon=1e-06,
        bool div_mode=True, int? dst_type=None) -> (Tensor, Tensor, Tensor)
    """,
)
OPS += opaque(
    "rope",
    WRITES,
    _READ,
    """
    torch_npu.npu_kv_rmsnorm_rope_cache, torch.ops.npu.npu_kv_rmsnorm_rope_cache(Tensor kv,
        Tensor gamma, Tensor cos, Tensor sin, Tensor index, Tensor k_cache, Tensor ckv_cache, *,
        Tensor? k_rope_scale=None, Tensor? c_kv_scale=None, Tensor? k_rope_offset=None,
        Tensor? c_kv_offset=None, Tensor? v=None, float epsilon=1e-5, str cache_mode='Norm',
        bool is_output_kv=False) -> (Tensor, Tensor, Tensor, Tensor)
    """,
)
OPS += opaque(
    "rope",
    UNDOCUMENTED,
    _READ,
    """
    torch_npu.npu_mrope, torch.ops.npu.npu_mrope(Tensor positions, Tensor query, Tensor key,
        Tensor cos_sin_cache, int head_size, *, int[]? mrope_section=None,
        str? rotary_mode='half', str? cache_mode='default') -> (Tensor, Tensor)
    """,
)
OPS += opaque(
    "attention",
    OPTIONS,
    _READ,
    """
    torch_npu.npu_fused_infer_attention_score,
        torch.ops.npu.npu_fused_infer_attention_score(Tensor query, Tensor key, Tensor value, *,
        Tensor? pse_shift=None, Tensor? atten_mask=None, SymInt[]? actual_seq_lengths=None,
        SymInt[]? actual_seq_lengths_kv=None, Tensor? dequant_scale1=None,
        Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? quant_scale2=None,
        Tensor? quant_offset2=None, Tensor? antiquant_scale=None, Tensor? antiquant_offset=None,
        Tensor? key_antiquant_scale=None, Tensor? key_antiquant_offset=None,
        Tensor? value_antiquant_scale=None, Tensor? value_antiquant_offset=None,
        Tensor? block_table=None, Tensor? query_padding_size=None, Tensor? kv_padding_size=None,
        Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None,
        SymInt[]? actual_shared_prefix_len=None, Tensor? query_rope=None, Tensor? key_rope=None,
        Tensor? key_rope_antiquant_scale=None, int num_heads=1, float scale=1.0,
        int pre_tokens=2147483647, int next_tokens=2147483647, str input_layout="BSH",
        int num_key_value_heads=0, int sparse_mode=0, int inner_precise=0, int block_size=0,
        int antiquant_mode=0, int key_antiquant_mode=0, int value_antiquant_mode=0,
        bool softmax_lse_flag=False) -> (Tensor, Tensor)
    torch_npu.npu_fused_infer_attention_score_v2,
        torch.ops.npu.npu_fused_infer_attention_score_v2(Tensor query, Tensor key, Tensor value,
        *, Tensor? query_rope=None, Tensor? key_rope=None, Tensor? pse_shift=None,
        Tensor? atten_mask=None, SymInt[]? actual_seq_qlen=None,
        SymInt[]? actual_seq_kvlen=None, Tensor? block_table=None,
        Tensor? dequant_scale_query=None, Tensor? dequant_scale_key=None,
        Tensor? dequant_offset_key=None, Tensor? dequant_scale_value=None,
        Tensor? dequant_offset_value=None, Tensor? dequant_scale_key_rope=None,
        Tensor? quant_scale_out=None, Tensor? quant_offset_out=None, Tensor? quant_scale_p=None,
        Tensor? learnable_sink=None, int num_query_heads=1, int num_key_value_heads=0,
        float softmax_scale=1.0, int pre_tokens=2147483647, int next_tokens=2147483647,
        str input_layout="BSH", int sparse_mode=0, int block_size=0, int query_quant_mode=0,
        int key_quant_mode=0, int value_quant_mode=0, int inner_precise=0,
        bool return_softmax_lse=False, int? query_dtype=None, int? key_dtype=None,
        int? value_dtype=None, int? query_rope_dtype=None, int? key_rope_dtype=None,
        int? key_shared_prefix_dtype=None, int? value_shared_prefix_dtype=None,
        int? dequant_scale_query_dtype=None, int? dequant_scale_key_dtype=None,
        int? dequant_scale_value_dtype=None, int? dequant_scale_key_rope_dtype=None,
        int? out_dtype=None) -> (Tensor, Tensor)
    torch_npu.npu_incre_flash_attention, torch.ops.npu.npu_incre_flash_attention(Tensor query,
        Tensor key, Tensor value, *, Tensor? padding_mask=None, Tensor? atten_mask=None,
        Tensor? pse_shift=None, SymInt[]? actual_seq_lengths=None, Tensor? antiquant_scale=None,
        Tensor? antiquant_offset=None, Tensor? block_table=None, Tensor? dequant_scale1=None,
        Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? quant_scale2=None,
        Tensor? quant_offset2=None, Tensor? kv_padding_size=None, int num_heads=1,
        float scale_value=1.0, str input_layout="BSH", int num_key_value_heads=0,
        int block_size=0, int inner_precise=1) -> Tensor
    torch_npu.npu_prompt_flash_attention, torch.ops.npu.npu_prompt_flash_attention(Tensor query,
        Tensor key, Tensor value, *, Tensor? padding_mask=None, Tensor? atten_mask=None,
        Tensor? pse_shift=None, int[]? actual_seq_lengths=None, Tensor? deq_scale1=None,
        Tensor? quant_scale1=None, Tensor? deq_scale2=None, Tensor? quant_scale2=None,
        Tensor? quant_offset2=None, int num_heads=1, float scale_value=1.0,
        int pre_tokens=2147483647, int next_tokens=0, str input_layout="BSH",
        int num_key_value_heads=0, int[]? actual_seq_lengths_kv=None,
        int sparse_mode=0) -> Tensor
    """,
)
