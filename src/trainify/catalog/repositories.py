"""Single repositories: gpt-fast, gpt-oss, Meta's llama, nano-vllm and marlin.

Their modules have plain names (``model``, ``quantize``), as they stand in those repositories.
"""

from . import FusedOp, opaque
from .reasons import CACHE, LAYER, TILED

_READ = "the heads of 2026"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=("gpt_oss.triton.attention.attention",),
        schema="attention(Tensor q, Tensor k, Tensor v, Tensor sinks, float sm_scale, "
        "int? bandwidth, Tensor start_q) -> Tensor",
        equivalent="attention_with_sinks(q, k, v, sinks, sm_scale, bandwidth, start_q)",
        source="gpt_oss/triton/attention.py, gpt-oss 7b583341fe16",
    ),
)

# Without an equivalent.
OPS += opaque(
    "attention",
    LAYER,
    _READ,
    """
    llama.model.Attention(x, start_pos, freqs_cis, mask)
    """,
)
OPS += opaque(
    "cache",
    CACHE,
    _READ,
    """
    nanovllm.layers.attention.store_kvcache(key, value, k_cache, v_cache, slot_mapping)
    """,
)
OPS += opaque(
    "matmul",
    LAYER,
    _READ,
    """
    quantize.WeightOnlyInt4Linear(input) -> torch.Tensor
    """,
)
OPS += opaque(
    "matmul",
    TILED,
    _READ,
    """
    marlin.mul, marlin_cuda.mul(A, B, C, s, workspace, thread_k=-1, thread_n=-1, sms=-1,
        max_par=16)
    quantize.linear_forward_int4(x, weight_int4pack, scales_and_zeros, out_features, groupsize)
    """,
)
OPS += opaque(
    "misc",
    LAYER,
    _READ,
    """
    llama.model.Transformer(tokens, start_pos)
    """,
)
