"""Kernels from the Hugging Face hub: ``kernels-community`` at 40d4194f48b6.

``activation = get_kernel("kernels-community/activation")`` makes an op known as
``kernels.get_kernel('kernels-community/activation').silu_and_mul``.
"""

from . import FusedOp


def _activation(name: str, parameters: str, equivalent: str) -> FusedOp:
    return FusedOp(
        names=(f"kernels.get_kernel('kernels-community/activation').{name}",),
        schema=f"{name}(Tensor(a!) out, Tensor input{parameters}) -> ()",
        equivalent=f"out = {equivalent}",
        source="activation/torch-ext/torch_binding.cpp",
    )


_PAGED = (
    "Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, float scale, "
    "Tensor block_tables, Tensor seq_lens, int block_size, int max_seq_len, "
    "Tensor? alibi_slopes, str kv_cache_dtype, Tensor k_scale, Tensor v_scale, int tp_rank=0, "
    "int blocksparse_local_blocks=0, int blocksparse_vert_stride=0, "
    "int blocksparse_block_size=64, int blocksparse_head_sliding_step=0"
)

OPS = (
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
)
