"""Which gradients are written out, where others are those that autograd finds for the function.

A closed form stands beside its function.  Its parameters are the gradients of the results, named
``grad...`` and in order, then parameters of the function, or a result by the name after ``grad_``
(``out`` for a single one).  It returns the gradients of those tensors that have one, in the order
of the function's parameters.  What it does not take of those that may be left out has to be.
"""

from __future__ import annotations

CLOSED_FORMS: dict[str, str] = {
    "rms_norm": "rms_norm_backward",
    "rms_norm_llama": "rms_norm_backward",
    "rms_norm_weight_dtype": "rms_norm_backward",
    "gemma_rms_norm": "gemma_rms_norm_backward",
    "fused_add_rms_norm": "fused_add_rms_norm_backward",
    "fused_add_rms_norm_llama": "fused_add_rms_norm_backward",
    "fused_add_rms_norm_llama_unrounded": "fused_add_rms_norm_backward",
    "fused_add_rms_norm_fp32": "fused_add_rms_norm_backward",
    "fused_add_rms_norm_weight_dtype": "fused_add_rms_norm_backward",
    "fused_add_rms_norm_xformers": "fused_add_rms_norm_backward",
    "gemma_fused_add_rms_norm": "gemma_fused_add_rms_norm_backward",
    "layer_norm": "layer_norm_backward",
    "layer_norm_fp32_weight": "layer_norm_backward",
    "softmax": "softmax_backward",
    "silu_and_mul": "silu_and_mul_backward",
    "silu_and_mul_fp32": "silu_and_mul_backward",
    "gelu_and_mul": "gelu_and_mul_backward",
    "gelu_and_mul_fp32": "gelu_and_mul_backward",
    "gelu_tanh_and_mul": "gelu_tanh_and_mul_backward",
    "gelu_tanh_and_mul_fp32": "gelu_tanh_and_mul_backward",
    "rotary_embedding": "rotary_embedding_backward",
    "rotary_embedding_rounded": "rotary_embedding_backward",
    "rotate_query_key": "rotate_query_key_backward",
    "apply_rotary_pos_emb": "apply_rotary_pos_emb_backward",
}
"""By the function whose gradient it is."""
