"""Intel Extension for PyTorch."""

from . import FusedOp, opaque
from .reasons import CACHE, CONTEXT, LAYER, UNDOCUMENTED

_READ = "intel_extension_for_pytorch 6d3ba89cf9c4"
_IPEX = "intel_extension_for_pytorch/llm/functional/fusions.py"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=("intel_extension_for_pytorch.llm.functional.rms_norm",),
        schema="rms_norm(Tensor hidden_states, Tensor weight, float eps) -> Tensor",
        equivalent="rms_norm(hidden_states, weight, eps)",
        source=_IPEX,
    ),
    FusedOp(
        names=("torch.ops.torch_ipex.rmsnorm",),
        schema="rmsnorm(Tensor input, Tensor weight, float eps) -> Tensor",
        equivalent="rms_norm(input, weight, eps)",
        source="csrc/cpu/aten/RMSNorm.cpp",
    ),
    FusedOp(
        # add_back writes the sum into residual, which the op's own schema does not declare.
        names=("intel_extension_for_pytorch.llm.functional.add_rms_norm",),
        schema="add_rms_norm(Tensor residual, Tensor x, Tensor weight, Tensor? bias, float eps, "
        "bool add_back=False) -> Tensor",
        equivalent="rms_norm(residual + x, weight, eps)",
        source=_IPEX,
        unsupported=("bias", "add_back"),
    ),
    FusedOp(
        names=("intel_extension_for_pytorch.llm.functional.add_layer_norm",),
        schema="add_layer_norm(Tensor residual, Tensor x, Tensor weight, Tensor? bias, float eps, "
        "bool add_back=False) -> Tensor",
        equivalent="layer_norm(residual + x, weight, bias, eps)",
        source=_IPEX,
        unsupported=("add_back",),
    ),
    FusedOp(
        names=("intel_extension_for_pytorch.llm.functional.silu_mul",),
        schema="silu_mul(Tensor x, Tensor y, Tensor(a!)? out=None) -> Tensor(a!)",
        equivalent="F.silu(x) * y",
        family="activation",
        source=_IPEX,
    ),
    FusedOp(
        names=("intel_extension_for_pytorch.llm.functional.gelu_mul",),
        schema="gelu_mul(Tensor x, Tensor y, Tensor(a!)? out=None, str approximate='none')"
        " -> Tensor(a!)",
        equivalent="F.gelu(x, approximate=approximate) * y",
        family="activation",
        source=_IPEX,
    ),
    FusedOp(
        names=("intel_extension_for_pytorch.llm.functional.fast_layer_norm",),
        schema="fast_layer_norm(Tensor hidden_states, int[] normalized_shape, "
        "Tensor weight, Tensor bias, float eps) -> Tensor",
        equivalent="F.layer_norm(hidden_states, normalized_shape, weight, bias, eps)",
        source="intel_extension_for_pytorch/llm/functional/fusions.py",
        family="norm",
    ),
    FusedOp(
        names=("torch.ops.torch_ipex.add_rmsnorm",),
        schema="add_rmsnorm(Tensor input, Tensor input1, Tensor weight, float eps, "
        "bool add_back=False) -> Tensor",
        equivalent="rms_norm(input + input1, weight, eps)",
        source="csrc/cpu/aten/AddLayerNorm.cpp",
        unsupported=("add_back",),
    ),
    FusedOp(
        names=("intel_extension_for_pytorch.llm.functional.varlen_attention",),
        schema="varlen_attention(Tensor query, Tensor key, Tensor value, Tensor(a!) out, "
        "Tensor seqlen_q, Tensor seqlen_k, Tensor? alibi_slopes, int max_seqlen_q, "
        "int max_seqlen_k, float pdropout=0.0, float softmax_scale=1.0, "
        "bool zero_tensors=False, bool is_causal=False, bool return_softmax=False, "
        "Any gen_=None, int window_size_left=-1, int window_size_right=-1, "
        "float softcap=-1.0) -> ()",
        equivalent="out = varlen_attention(query, key, value, seqlen_q, seqlen_k, "
        "softmax_scale, is_causal)",
        source="intel_extension_for_pytorch/llm/functional/fusions.py",
        unsupported=(
            "alibi_slopes",
            "pdropout",
            "return_softmax",
            "window_size_left",
            "window_size_right",
            "softcap",
        ),
    ),
    FusedOp(
        names=("intel_extension_for_pytorch.llm.functional.bgmv_shrink",),
        schema="bgmv_shrink(Tensor input, Tensor lora_weights, Tensor(a!) output, Tensor "
        "token_lora_mapping, float scaling) -> ()",
        equivalent="output = lora_shrink(input, lora_weights, output, token_lora_mapping, scaling)",
        source="csrc/cpu/aten/kernels/PunicaKrnl.cpp, intel_extension_for_pytorch 2.6",
    ),
    FusedOp(
        names=("intel_extension_for_pytorch.llm.functional.bgmv_expand",),
        schema="bgmv_expand(Tensor input, Tensor lora_weights, Tensor(a!) output, Tensor "
        "token_lora_mapping, bool add_inputs) -> ()",
        equivalent="output = lora_expand(input, lora_weights, output, token_lora_mapping, 0, "
        "add_inputs)",
        source="csrc/cpu/aten/kernels/PunicaKrnl.cpp, intel_extension_for_pytorch 2.6",
    ),
    FusedOp(
        names=("intel_extension_for_pytorch.llm.functional.bgmv_expand_slice",),
        schema="bgmv_expand_slice(Tensor input, Tensor lora_weights, Tensor(a!) output, Tensor "
        "token_lora_mapping, int slice_offset, int slice_size, bool add_inputs) -> ()",
        equivalent="output = lora_expand(input, lora_weights, output, token_lora_mapping, "
        "slice_offset, add_inputs)",
        source="csrc/cpu/aten/kernels/PunicaKrnl.cpp, intel_extension_for_pytorch 2.6",
    ),
    FusedOp(
        names=("intel_extension_for_pytorch.llm.functional.sgmv_shrink",),
        schema="sgmv_shrink(Tensor inputs, Tensor lora_a_weights, Tensor(a!) output_tensor, "
        "Tensor b_seq_start_loc, Tensor seq_len_tensor, Tensor lora_indices_tensor, int batches, "
        "int max_seq_length, float scaling) -> ()",
        equivalent="output_tensor = lora_shrink(inputs, lora_a_weights, output_tensor, "
        "lora_indices_tensor.repeat_interleave(seq_len_tensor), scaling)",
        source="csrc/cpu/aten/kernels/PunicaKrnl.cpp, intel_extension_for_pytorch 2.6",
    ),
    FusedOp(
        names=("intel_extension_for_pytorch.llm.functional.sgmv_expand",),
        schema="sgmv_expand(Tensor inputs, Tensor lora_b_weights, Tensor(a!) output_tensor, "
        "Tensor b_seq_start_loc, Tensor seq_len_tensor, Tensor lora_indices_tensor, int batches, "
        "int max_seq_length, bool add_inputs=False) -> ()",
        equivalent="output_tensor = lora_expand(inputs, lora_b_weights, output_tensor, "
        "lora_indices_tensor.repeat_interleave(seq_len_tensor), 0, add_inputs)",
        source="csrc/cpu/aten/kernels/PunicaKrnl.cpp, intel_extension_for_pytorch 2.6",
    ),
    FusedOp(
        names=("intel_extension_for_pytorch.llm.functional.sgmv_expand_slice",),
        schema="sgmv_expand_slice(Tensor inputs, Tensor lora_b_weights, Tensor(a!) output_tensor, "
        "Tensor b_seq_start_loc, Tensor seq_len_tensor, Tensor lora_indices_tensor, int batches, "
        "int max_seq_length, int slice_offset, int slice_size, bool add_inputs=False) -> ()",
        equivalent="output_tensor = lora_expand(inputs, lora_b_weights, output_tensor, "
        "lora_indices_tensor.repeat_interleave(seq_len_tensor), slice_offset, add_inputs)",
        source="csrc/cpu/aten/kernels/PunicaKrnl.cpp, intel_extension_for_pytorch 2.6",
    ),
    FusedOp(
        names=("torch.ops.torch_ipex.add_softmax_",),
        schema="add_softmax_(Tensor(a!) self, Tensor other) -> Tensor(a!)",
        equivalent="self = softmax(self + other)",
        source="csrc/cpu/aten/AddSoftmax.cpp",
    ),
)

# Without an equivalent.
OPS += opaque(
    "attention",
    LAYER,
    _READ,
    """
    intel_extension_for_pytorch.llm.modules.VarlenAttention(query, key, value, out, seqlen_q,
        seqlen_k, alibi_slopes, max_seqlen_q, max_seqlen_k, pdropout, softmax_scale,
        zero_tensors, is_causal, return_softmax, gen_, window_size_left, window_size_right,
        softcap)
    intel_extension_for_pytorch.llm.modules.IndirectAccessKVCacheAttention(query, key, value,
        scale_attn, layer_past=None, head_mask=None, attention_mask=None, alibi=None,
        add_casual_mask=True, seq_info=None)
    """,
)
OPS += opaque(
    "cache",
    CACHE,
    _READ,
    """
    intel_extension_for_pytorch.llm.modules.PagedAttention.reshape_and_cache(key, value,
        key_cache, value_cache, slot_mapping, kv_cache_dtype='auto', k_scale=1.0, v_scale=1.0)
    """,
)
OPS += opaque(
    "matmul",
    LAYER,
    _READ,
    """
    intel_extension_for_pytorch.llm.modules.LinearSilu(x)
    intel_extension_for_pytorch.llm.modules.LinearSiluMul(x, y)
    intel_extension_for_pytorch.llm.modules.Linear2SiluMul(x)
    intel_extension_for_pytorch.llm.modules.LinearRelu(x)
    intel_extension_for_pytorch.llm.modules.LinearGelu(x)
    intel_extension_for_pytorch.llm.modules.LinearNewGelu(x)
    intel_extension_for_pytorch.llm.modules.LinearMul(x, y)
    intel_extension_for_pytorch.llm.modules.LinearAdd(x, y)
    intel_extension_for_pytorch.llm.modules.LinearAddAdd(x, y, z)
    """,
)
OPS += opaque(
    "moe",
    LAYER,
    _READ,
    """
    intel_extension_for_pytorch.llm.modules.GatedMLPMOE(hidden_states, use_grouped_topk, top_k,
        router_logits, renormalize, topk_group=None, num_expert_group=None,
        custom_routing_function=None, scoring_func='softmax', e_score_correction_bias=None)
    """,
)
OPS += opaque(
    "norm",
    LAYER,
    _READ,
    """
    intel_extension_for_pytorch.llm.modules.RMSNorm(x)
    intel_extension_for_pytorch.llm.modules.FastLayerNorm(hidden_states)
    """,
)
OPS += opaque(
    "rope",
    LAYER,
    _READ,
    """
    intel_extension_for_pytorch.llm.modules.RotaryEmbedding(x, position_ids, num_head, head_dim,
        offset, rotary_ndims, seq_len=None, num_concats=None)
    """,
)
OPS += opaque(
    "rope",
    UNDOCUMENTED,
    _READ,
    """
    intel_extension_for_pytorch.llm.functional.rotary_embedding(query, key, sin, cos,
        rotary_dim, rotary_half, position_ids=None)
    torch.ops.torch_ipex.rotary_position_embedding(Tensor t_in, Tensor t_emb_pos, Tensor t_pos,
        int N, int H, int offset, int rotary_ndims) -> (Tensor, Tensor, Tensor)
    """,
)
OPS += opaque(
    "attention",
    CONTEXT,
    _READ,
    """
    intel_extension_for_pytorch.llm.functional.indirect_access_kv_cache_attention(query, key,
        value, scale_attn, layer_past=None, head_mask=None, attention_mask=None, alibi=None,
        add_casual_mask=True, seq_info=None, text_max_length=0)
    """,
)
OPS += opaque(
    "attention",
    UNDOCUMENTED,
    _READ,
    """
    intel_extension_for_pytorch.llm.modules.PagedAttention.single_query_cached_kv_attention(
        output, query, key_cache, value_cache, head_mapping, scale, block_tables, context_lens,
        block_size, max_context_len, alibi_slopes, window_size=-1, k_scale=1.0, v_scale=1.0,
        softcap=-1.0)
    intel_extension_for_pytorch.llm.modules.PagedAttention.flash_attn_varlen_func(output, query,
        key_cache, value_cache, cu_seqlens_q, cu_seqlens_kv, max_seqlen_q, max_seqlen_kv, scale,
        is_cusal, block_tables, alibi_slopes, window_size_left=-1, window_size_right=-1,
        kv_cache_dtype='auto', k_scale=1.0, v_scale=1.0, softcap=-1.0)
    """,
)
