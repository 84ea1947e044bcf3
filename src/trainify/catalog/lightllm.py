"""lightllm's Triton kernels, at fc72ffab9a34."""

from . import FusedOp

_LLAMA = "lightllm.models.llama.triton_kernel"
_COS_SIN = "Tensor(a!) q, Tensor(b!) k, Tensor cos, Tensor sin"

OPS = (
    FusedOp(
        names=(f"{_LLAMA}.rmsnorm.rmsnorm_forward",),
        schema="rmsnorm_forward(Tensor x, Tensor weight, float eps, Tensor(a!)? out=None)"
        " -> Tensor(a!)",
        equivalent="rms_norm(x, weight, eps)",
        source="lightllm/models/llama/triton_kernel/rmsnorm.py",
    ),
    FusedOp(
        names=("lightllm.models.vit.triton_kernel.rms_norm_vit.rms_norm",),
        schema="rms_norm(Tensor hidden_states, Tensor weight, float eps=1e-5, "
        "bool use_custom_tensor_mananger=False) -> Tensor",
        equivalent="rms_norm(hidden_states, weight, eps)",
        source="lightllm/models/vit/triton_kernel/rms_norm_vit.py",
    ),
    FusedOp(
        names=("lightllm.models.bloom.triton_kernel.layernorm.layernorm_forward",),
        schema="layernorm_forward(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor",
        equivalent="layer_norm(x, weight, bias, eps)",
        source="lightllm/models/bloom/triton_kernel/layernorm.py",
    ),
    FusedOp(
        names=("lightllm.models.cohere.triton_kernels.layernorm.layernorm_forward",),
        schema="layernorm_forward(Tensor X, Tensor W, float eps) -> Tensor",
        equivalent="head_layer_norm(X, W, eps)",
        source="lightllm/models/cohere/triton_kernels/layernorm.py",
    ),
    FusedOp(
        names=(f"{_LLAMA}.silu_and_mul.silu_and_mul_fwd",),
        schema="silu_and_mul_fwd(Tensor input, Tensor(a!) output) -> ()",
        equivalent="output = silu_and_mul(input)",
        source="lightllm/models/llama/triton_kernel/silu_and_mul.py",
    ),
    FusedOp(
        names=("lightllm.common.fused_moe.moe_silu_and_mul.silu_and_mul_fwd",),
        schema="silu_and_mul_fwd(Tensor input, Tensor(a!) output) -> ()",
        equivalent="output = silu_and_mul(input)",
        source="lightllm/common/fused_moe/moe_silu_and_mul.py",
    ),
    FusedOp(
        names=("lightllm.models.gemma_2b.triton_kernel.gelu_and_mul.gelu_and_mul_fwd",),
        schema="gelu_and_mul_fwd(Tensor input, Tensor(a!) output) -> ()",
        equivalent="output = gelu_tanh_and_mul(input)",
        source="lightllm/models/gemma_2b/triton_kernel/gelu_and_mul.py",
    ),
    FusedOp(
        names=(
            f"{_LLAMA}.rotary_emb.rotary_emb_fwd",
            "lightllm.models.phi3.triton_kernel.rotary_emb.rotary_emb_fwd",
        ),
        schema=f"rotary_emb_fwd({_COS_SIN}, float partial_rotary_factor=1.0) -> ()",
        equivalent="q, k = rotate_query_key(q, k, cos, sin, True)",
        source="lightllm/models/llama/triton_kernel/rotary_emb.py",
    ),
    # These two pair neighbours; chatglm2 rotates the first half of the features.
    FusedOp(
        names=(
            "lightllm.models.chatglm2.triton_kernel.rotary_emb.rotary_emb_fwd",
            "lightllm.models.deepseek2.triton_kernel.rotary_emb.rotary_emb_fwd",
        ),
        schema=f"rotary_emb_fwd({_COS_SIN}) -> ()",
        equivalent="q, k = rotate_query_key(q, k, cos, sin, False)",
        source="lightllm/models/chatglm2/triton_kernel/rotary_emb.py",
    ),
    # Pairs of neighbours again, with tables that repeat each value for both.
    FusedOp(
        names=("lightllm.models.cohere.triton_kernels.rotary_emb.rotary_emb_fwd",),
        schema=f"rotary_emb_fwd({_COS_SIN}, float partial_rotary_factor=1.0) -> ()",
        equivalent="q, k = rotate_query_key(q, k, cos[:, ::2], sin[:, ::2], False)",
        source="lightllm/models/cohere/triton_kernels/rotary_emb.py",
        unsupported=("partial_rotary_factor",),
    ),
    FusedOp(
        names=(f"{_LLAMA}.context_flashattention_nopad.context_attention_fwd_no_prompt_cache",),
        schema="context_attention_fwd_no_prompt_cache(Tensor q, Tensor k, Tensor v, Tensor(a!) o, "
        "Tensor b_start_loc, Tensor b_seq_len, int max_input_len) -> ()",
        equivalent="o = prefill_attention(q, k, v, b_seq_len)",
        source="lightllm/models/llama/triton_kernel/context_flashattention_nopad.py",
    ),
    FusedOp(
        names=(f"{_LLAMA}.gqa_decode_flashattention_nopad.gqa_decode_attention_fwd",),
        schema="gqa_decode_attention_fwd(Tensor q, Tensor k, Tensor v, Tensor(a!) o, "
        "Tensor req_to_tokens, Tensor b_req_idx, Tensor b_seq_len) -> ()",
        equivalent="o = pooled_attention(q, k, v, req_to_tokens, b_req_idx, b_seq_len)",
        source="lightllm/models/llama/triton_kernel/gqa_decode_flashattention_nopad.py",
    ),
)
