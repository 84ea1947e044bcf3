"""Kernels from the Hugging Face hub: ``kernels-community`` at 40d4194f48b6.

``activation = get_kernel("kernels-community/activation")`` makes an op known as
``kernels.get_kernel('kernels-community/activation').silu_and_mul``.
"""

from . import FusedOp, opaque
from .reasons import CACHE, CODED, LAYER, OPTIONS, TILED, UNDOCUMENTED

_READ = "kernels-community 40d4194f48b6"


def _activation(name: str, parameters: str, equivalent: str) -> FusedOp:
    return FusedOp(
        names=(f"kernels.get_kernel('kernels-community/activation').{name}",),
        schema=f"{name}(Tensor(a!) out, Tensor input{parameters}) -> ()",
        equivalent=f"out = {equivalent}",
        source="activation/torch-ext/torch_binding.cpp",
        family="activation" if equivalent.startswith("F.") else "",
    )


_PAGED = (
    "Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, float scale, "
    "Tensor block_tables, Tensor seq_lens, int block_size, int max_seq_len, "
    "Tensor? alibi_slopes, str kv_cache_dtype, Tensor k_scale, Tensor v_scale, int tp_rank=0, "
    "int blocksparse_local_blocks=0, int blocksparse_vert_stride=0, "
    "int blocksparse_block_size=64, int blocksparse_head_sliding_step=0"
)

OPS: tuple[FusedOp, ...] = (
    _activation("silu_and_mul", "", "silu_and_mul(input)"),
    _activation("mul_and_silu", "", "mul_and_silu(input)"),
    _activation("gelu_and_mul", "", "gelu_and_mul(input)"),
    _activation("gelu_tanh_and_mul", "", "gelu_tanh_and_mul(input)"),
    _activation("fatrelu_and_mul", ", float threshold", "fatrelu_and_mul(input, threshold)"),
    _activation("gelu_new", "", "gelu_new(input)"),
    _activation("gelu_fast", "", "gelu_fast(input)"),
    _activation("gelu_quick", "", "gelu_quick(input)"),
    _activation("gelu_tanh", "", "gelu_tanh(input)"),
    _activation("silu", "", "F.silu(input)"),
    _activation("gelu", "", "F.gelu(input)"),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/relu').relu",),
        schema="relu(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = F.relu(input)",
        family="activation",
        source="relu/torch-ext/torch_binding.cpp",
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/vllm-moe').silu_and_mul",),
        schema="silu_and_mul(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = silu_and_mul(input)",
        source="vllm-moe/torch-ext/torch_binding.cpp",
    ),
    FusedOp(
        names=(
            "kernels.get_kernel('kernels-community/rotary').apply_rotary",
            "rotary.apply_rotary",
        ),
        schema="apply_rotary(Tensor x1, Tensor x2, Tensor cos, Tensor sin, Tensor(a!) out1, "
        "Tensor(b!) out2, bool conj) -> ()",
        equivalent="out1, out2 = rotate_two_halves(x1, x2, cos, sin, conj)",
        source="rotary/torch-ext/torch_binding.cpp",
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/rotary').apply_rotary_transformers",),
        schema="apply_rotary_transformers(Tensor q, Tensor k, Tensor cos, Tensor sin, "
        "int unsqueeze_dim=1) -> (Tensor, Tensor)",
        equivalent="rotate_query_key_fp32(q, k, cos, sin, unsqueeze_dim)",
        source="rotary/torch-ext/rotary/__init__.py",
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/paged-attention').paged_attention_v1",),
        schema=f"paged_attention_v1(Tensor(a!) out, {_PAGED}) -> ()",
        equivalent="out = "
        "paged_attention(query, key_cache, value_cache, block_tables, seq_lens, scale)",
        source="paged-attention/torch-ext/torch_binding.cpp",
        unsupported=("alibi_slopes", "blocksparse_vert_stride"),
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/paged-attention').paged_attention_v2",),
        schema="paged_attention_v2(Tensor(a!) out, Tensor exp_sums, Tensor max_logits, "
        f"Tensor tmp_out, {_PAGED}) -> ()",
        equivalent="out = "
        "paged_attention(query, key_cache, value_cache, block_tables, seq_lens, scale)",
        source="paged-attention/torch-ext/torch_binding.cpp",
        unsupported=("alibi_slopes", "blocksparse_vert_stride"),
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/megablocks').silu_and_mul",),
        schema="silu_and_mul(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = silu_and_mul(input)",
        source="megablocks/torch-ext/torch_binding.cpp",
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/megablocks').mul_and_silu",),
        schema="mul_and_silu(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = mul_and_silu(input)",
        source="megablocks/torch-ext/torch_binding.cpp",
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/megablocks').gelu_and_mul",),
        schema="gelu_and_mul(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = gelu_and_mul(input)",
        source="megablocks/torch-ext/torch_binding.cpp",
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/megablocks').gelu_tanh_and_mul",),
        schema="gelu_tanh_and_mul(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = gelu_tanh_and_mul(input)",
        source="megablocks/torch-ext/torch_binding.cpp",
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/megablocks').gelu_fast",),
        schema="gelu_fast(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = gelu_fast(input)",
        source="megablocks/torch-ext/torch_binding.cpp",
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/megablocks').gelu_new",),
        schema="gelu_new(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = gelu_new(input)",
        source="megablocks/torch-ext/torch_binding.cpp",
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/megablocks').gelu_quick",),
        schema="gelu_quick(Tensor(a!) out, Tensor input) -> ()",
        equivalent="out = gelu_quick(input)",
        source="megablocks/torch-ext/torch_binding.cpp",
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/megablocks').swigluoai_and_mul",),
        schema="swigluoai_and_mul(Tensor(a!) out, Tensor input, float alpha=1.702, "
        "float limit=7.0) -> ()",
        equivalent="out = swigluoai_and_mul(input, alpha, limit)",
        source="megablocks/torch-ext/torch_binding.cpp",
    ),
    FusedOp(
        names=(
            "kernels.get_kernel('kernels-community/megablocks').moe_sum",
            "kernels.get_kernel('kernels-community/vllm-moe').moe_sum",
        ),
        schema="moe_sum(Tensor input, Tensor(a!) output) -> ()",
        equivalent="output = input.sum(1)",
        source="vllm-moe/torch-ext/torch_binding.cpp",
        family="moe",
    ),
    FusedOp(
        names=(
            "kernels.get_kernel('kernels-community/megablocks').topk_softmax",
            "kernels.get_kernel('kernels-community/vllm-moe').topk_softmax",
        ),
        schema="topk_softmax(Tensor(a!) topk_weights, Tensor(b!) topk_indices, "
        "Tensor(c!) token_expert_indices, Tensor gating_output, "
        "bool renormalize=False) -> ()",
        equivalent="topk_weights, topk_indices, "
        "token_expert_indices = softmax_topk_rows(gating_output, "
        "topk_indices.shape[-1], renormalize)",
        source="vllm-moe/torch-ext/torch_binding.cpp",
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/causal-conv1d').causal_conv1d_fwd",),
        schema="causal_conv1d_fwd(Tensor x, Tensor weight, Tensor? bias, Tensor? seq_idx, "
        "Tensor? initial_states, Tensor(a!) out, Tensor? final_states_out, "
        "bool silu_activation) -> ()",
        equivalent="out = causal_conv1d(x, weight, bias, silu_activation)",
        source="causal-conv1d/torch-ext/torch_binding.cpp",
        unsupported=(
            "seq_idx",
            "initial_states",
            "final_states_out",
        ),
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/mamba-ssm').causal_conv1d_fwd",),
        schema="causal_conv1d_fwd(Tensor x, Tensor weight, Tensor? bias, Tensor? seq_idx, "
        "Tensor? initial_states, Tensor(a!) out, Tensor? final_states_out, "
        "bool silu_activation) -> ()",
        equivalent="out = causal_conv1d(x, weight, bias, silu_activation)",
        source="mamba-ssm/torch-ext/torch_binding.cpp",
        unsupported=(
            "seq_idx",
            "initial_states",
            "final_states_out",
        ),
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/flash-attn2').fwd",),
        schema="fwd(Tensor q, Tensor k, Tensor v, Tensor? out_, Tensor? alibi_slopes_, "
        "float p_dropout=0.0, float softmax_scale=1.0, bool is_causal=False, "
        "int window_size_left=-1, int window_size_right=-1, float softcap=0.0, "
        "bool return_softmax=False, Generator? gen_=None) -> (Tensor, Tensor, "
        "Tensor, Tensor)",
        equivalent="attention_fwd(q, k, v, softmax_scale, is_causal, window_size_left, "
        "window_size_right, softcap)",
        source="flash-attn2/torch-ext/torch_binding.cpp",
        unsupported=(
            "out_",
            "alibi_slopes_",
            "p_dropout",
            "return_softmax",
        ),
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/flash-attn2').varlen_fwd",),
        schema="varlen_fwd(Tensor q, Tensor k, Tensor v, Tensor? out_, "
        "Tensor cu_seqlens_q, Tensor cu_seqlens_k, Tensor? seqused_k_, "
        "Tensor? leftpad_k_, Tensor? block_table_, Tensor? alibi_slopes_, "
        "int max_seqlen_q, int max_seqlen_k, float p_dropout=0.0, "
        "float softmax_scale=1.0, bool zero_tensors=False, bool is_causal=False, "
        "int window_size_left=-1, int window_size_right=-1, float softcap=0.0, "
        "bool return_softmax=False, Generator? gen_=None) -> (Tensor, Tensor, "
        "Tensor, Tensor)",
        equivalent="varlen_attention_fwd(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, "
        "is_causal, window_size_left, window_size_right, softcap, seqused_k_, block_table_)",
        source="flash-attn2/torch-ext/torch_binding.cpp",
        unsupported=(
            "out_",
            "leftpad_k_",
            "alibi_slopes_",
            "p_dropout",
            "return_softmax",
        ),
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/causal-conv1d').causal_conv1d_update",),
        schema="causal_conv1d_update(Tensor x, Tensor(a!) conv_state, Tensor weight, Tensor? "
        "bias, Tensor(b!) out, bool silu_activation, Tensor? cache_seqlens, Tensor? "
        "conv_state_indices) -> ()",
        equivalent="conv_state, out = causal_conv1d_step(conv_state, x, weight, bias, 'silu' if "
        "silu_activation else None, conv_state_indices)",
        source="causal-conv1d/csrc/causal_conv1d.cpp",
        unsupported=("cache_seqlens",),
    ),
    FusedOp(
        names=("kernels.get_kernel('kernels-community/mamba-ssm').causal_conv1d_update",),
        schema="causal_conv1d_update(Tensor x, Tensor(a!) conv_state, Tensor weight, Tensor? "
        "bias, Tensor(b!) out, bool silu_activation, Tensor? cache_seqlens, Tensor? "
        "conv_state_indices) -> ()",
        equivalent="conv_state, out = causal_conv1d_step(conv_state, x, weight, bias, 'silu' if "
        "silu_activation else None, conv_state_indices)",
        source="causal-conv1d/csrc/causal_conv1d.cpp",
        unsupported=("cache_seqlens",),
    ),
)

# Without an equivalent.
OPS += opaque(
    "activation",
    LAYER,
    _READ,
    """
    kernels.get_kernel('kernels-community/activation').layers.SiluAndMul(x)
    kernels.get_kernel('kernels-community/activation').layers.GeluAndMul(x)
    kernels.get_kernel('kernels-community/activation').layers.GeluTanhAndMul(x)
    kernels.get_kernel('kernels-community/activation').layers.FatreluAndMul(x)
    kernels.get_kernel('kernels-community/activation').layers.FastGELU(x)
    kernels.get_kernel('kernels-community/activation').layers.NewGELU(x)
    kernels.get_kernel('kernels-community/activation').layers.QuickGELU(x)
    kernels.get_kernel('kernels-community/activation').layers.MulAndSilu(x)
    """,
)
OPS += opaque(
    "cache",
    CACHE,
    _READ,
    """
    kernels.get_kernel('kernels-community/paged-attention').reshape_and_cache(Tensor key,
        Tensor value, Tensor! key_cache, Tensor! value_cache, Tensor slot_mapping,
        str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()
    kernels.get_kernel('kernels-community/paged-attention').reshape_and_cache_flash(Tensor key,
        Tensor value, Tensor! key_cache, Tensor! value_cache, Tensor slot_mapping,
        str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()
    kernels.get_kernel('kernels-community/flash-attn2').fwd_kvcache(Tensor! q, Tensor! kcache,
        Tensor! vcache, Tensor? k_, Tensor? v_, Tensor? seqlens_k_, Tensor? rotary_cos_,
        Tensor? rotary_sin_, Tensor? cache_batch_idx_, Tensor? leftpad_k_, Tensor? block_table_,
        Tensor? alibi_slopes_, Tensor? out_, float softmax_scale, bool is_causal,
        int window_size_left, int window_size_right, float softcap, bool is_rotary_interleaved,
        int num_splits) -> Tensor[]
    """,
)
OPS += opaque(
    "matmul",
    TILED,
    _READ,
    """
    kernels.get_kernel('kernels-community/quantization-bitsandbytes').gemm_4bit_forward(
        Tensor input, Tensor weight, Tensor absmax, int blocksize, int quant_type) -> Tensor
    kernels.get_kernel('kernels-community/quantization-eetq').w8_a16_gemm(Tensor input,
        Tensor weight, Tensor scale) -> Tensor
    kernels.get_kernel('kernels-community/quantization-eetq').w8_a16_gemm_(Tensor input,
        Tensor weight, Tensor scale, Tensor! output, int m, int n, int k) -> Tensor
    kernels.get_kernel('kernels-community/quantization-gptq').gemm_int4_forward(Tensor input,
        Tensor weight, Tensor zeros, Tensor absmax, int blocksize) -> Tensor
    """,
)
OPS += opaque(
    "norm",
    UNDOCUMENTED,
    _READ,
    """
    kernels.get_kernel('kernels-community/rmsnorm').apply_rms_norm(Tensor hidden_states,
        Tensor weight, float variance_epsilon) -> Tensor[]
    kernels.get_kernel('kernels-community/layer-norm').dropout_add_ln_fwd(Tensor input,
        Tensor gamma, Tensor? beta, Tensor? rowscale, Tensor? colscale, Tensor? x0_subset,
        Tensor? z_subset, float dropout_p, float epsilon, float rowscale_const, int z_numrows,
        Generator? gen, bool residual_in_fp32, bool is_rms_norm) -> Tensor[]
    """,
)
OPS += opaque(
    "attention",
    OPTIONS,
    _READ,
    """
    kernels.get_kernel('kernels-community/aiter-flash-attn-ck').mha_fwd(Tensor! q, Tensor k,
        Tensor v, float dropout_p, float softmax_scale, bool is_causal, int window_size_left,
        int window_size_right, int sink_size, bool return_softmax_lse,
        bool return_dropout_randval, Tensor? cu_seqlens_q, Tensor? cu_seqlens_kv,
        Tensor(out!)? out, Tensor? bias, Tensor? alibi_slopes, Tensor? q_descale,
        Tensor? k_descale, Tensor? v_descale, Tensor? s_aux, Generator? gen) -> Tensor[]
    kernels.get_kernel('kernels-community/aiter-flash-attn-ck').mha_varlen_fwd(Tensor! q,
        Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor? cu_seqlens_k, int max_seqlen_q,
        int max_seqlen_k, int min_seqlen_q, float dropout_p, float softmax_scale,
        float logits_soft_cap, bool zero_tensors, bool is_causal, int window_size_left,
        int window_size_right, int sink_size, bool return_softmax_lse,
        bool return_dropout_randval, Tensor(out!)? out, Tensor? block_table, Tensor? bias,
        Tensor? alibi_slopes, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale,
        Generator? gen, Tensor? cu_seqlens_q_padded, Tensor? cu_seqlens_k_padded,
        Tensor? s_aux) -> Tensor[]
    kernels.get_kernel('kernels-community/vllm-flash-attn3').fwd(Tensor q, Tensor k, Tensor v,
        Tensor? k_new = None, Tensor? v_new = None, Tensor? q_v = None,
        Tensor(out!)? out = None, Tensor? cu_seqlens_q = None, Tensor? cu_seqlens_k = None,
        Tensor? cu_seqlens_k_new = None, Tensor? seqused_q = None, Tensor? seqused_k = None,
        int? max_seqlen_q = None, int? max_seqlen_k = None, Tensor? page_table = None,
        Tensor? kv_batch_idx = None, Tensor? leftpad_k = None, Tensor? rotary_cos = None,
        Tensor? rotary_sin = None, Tensor? seqlens_rotary = None, Tensor? q_descale = None,
        Tensor? k_descale = None, Tensor? v_descale = None, float softmax_scale = 0.0,
        bool is_causal = False, int window_size_left = -1, int window_size_right = -1,
        float softcap = 0.0, bool is_rotary_interleaved = False,
        Tensor? scheduler_metadata = None, int num_splits = 0, bool? pack_gqa = None,
        int sm_margin = 0, Tensor? s_aux = None) -> (Tensor(out!), Tensor, Tensor, Tensor)
    kernels.get_kernel('kernels-community/flash-attn3').fwd(Tensor q, Tensor k, Tensor v,
        Tensor(k_new!)? k_new = None, Tensor(v_new!)? v_new = None, Tensor? q_v = None,
        Tensor(out!)? out = None, Tensor? cu_seqlens_q = None, Tensor? cu_seqlens_k = None,
        Tensor? cu_seqlens_k_new = None, Tensor? seqused_q = None, Tensor? seqused_k = None,
        int? max_seqlen_q = None, int? max_seqlen_k = None, Tensor? page_table = None,
        Tensor? kv_batch_idx = None, Tensor? leftpad_k = None, Tensor? rotary_cos = None,
        Tensor? rotary_sin = None, Tensor? seqlens_rotary = None, Tensor? q_descale = None,
        Tensor? k_descale = None, Tensor? v_descale = None, float? softmax_scale = None,
        bool is_causal = False, int window_size_left = -1, int window_size_right = -1,
        int attention_chunk = 0, float softcap = 0.0, bool is_rotary_interleaved = False,
        Tensor? scheduler_metadata = None, int num_splits = 0, bool? pack_gqa = None,
        int sm_margin = 0) -> (Tensor(out!), Tensor, Tensor, Tensor)
    kernels.get_kernel('kernels-community/sgl-flash-attn3').fwd(Tensor q, Tensor k, Tensor v,
        Tensor? k_new, Tensor? v_new, Tensor? q_v, Tensor? out, Tensor? cu_seqlens_q,
        Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new, Tensor? seqused_q, Tensor? seqused_k,
        int? max_seqlen_q, int? max_seqlen_k, Tensor? page_table, Tensor? kv_batch_idx,
        Tensor? leftpad_k, Tensor? rotary_cos, Tensor? rotary_sin, Tensor? seqlens_rotary,
        Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, float? softmax_scale,
        bool is_causal, int window_size_left, int window_size_right, int attention_chunk,
        float softcap, bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits,
        bool? pack_gqa, int sm_margin, Tensor? sinks) -> (Tensor, Tensor, Tensor, Tensor)
    """,
)
OPS += opaque(
    "attention",
    CODED,
    _READ,
    """
    kernels.get_kernel('kernels-community/sage-attention').mha_fwd(Tensor q, Tensor k, Tensor v,
        Tensor sfq, Tensor sfk, Tensor sfv, Tensor delta_s, int unpadded_k, Tensor? out,
        float softmax_scale, bool is_causal, bool per_block_mean, bool is_bf16) -> Tensor[]
    """,
)
OPS += opaque(
    "attention",
    UNDOCUMENTED,
    _READ,
    """
    kernels.get_kernel('kernels-community/metal-flash-sdpa').flash_attention_varlen(Tensor! out,
        Tensor query, Tensor key, Tensor value, Tensor cu_seqlens_q, Tensor cu_seqlens_k,
        int max_seqlen_q, int max_seqlen_k, bool do_causal, float scale,
        float softcapping) -> ()
    """,
)
