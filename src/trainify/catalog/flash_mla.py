"""FlashMLA: attention over the latent keys of DeepSeek-V3 and V3.2, also inside vLLM and SGLang."""

from . import FusedOp, opaque
from .reasons import CACHED_LATENTS

_READ = "flash_mla_interface.py of vllm 0.33.0 and sglang 0.5.23"

_SPARSE = (
    "Tensor q, Tensor kv, Tensor indices, float sm_scale, int d_v=512, Tensor? attn_sink=None, "
    "Tensor? topk_length=None"
)
_COMPUTED = "sparse_latent_attention(q, kv, indices, sm_scale, d_v, attn_sink, topk_length)"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=(
            "flash_mla.flash_mla_sparse_fwd",
            "flash_mla.flash_mla_interface.flash_mla_sparse_fwd",
            "vllm.third_party.flashmla.flash_mla_interface.flash_mla_sparse_fwd",
            "vllm.v1.attention.ops.flashmla.flash_mla_sparse_fwd",
        ),
        schema=f"flash_mla_sparse_fwd({_SPARSE}, Tensor? out=None) -> (Tensor, Tensor, Tensor)",
        equivalent=_COMPUTED,
        source=_READ,
        unsupported=("out",),
    ),
    FusedOp(
        names=("sglang.kernels.ops.attention.flash_mla_interface.flash_mla_sparse_fwd",),
        schema=f"flash_mla_sparse_fwd({_SPARSE}, *, bool use_legacy=True)"
        " -> (Tensor, Tensor, Tensor)",
        equivalent=_COMPUTED,
        source=_READ,
    ),
)

# Without an equivalent.
OPS += opaque(
    "attention",
    CACHED_LATENTS,
    _READ,
    """
    flash_mla.flash_mla_with_kvcache, flash_mla.flash_mla_interface.flash_mla_with_kvcache,
        vllm.third_party.flashmla.flash_mla_interface.flash_mla_with_kvcache,
        vllm.v1.attention.ops.flashmla.flash_mla_with_kvcache
    sglang.kernels.ops.attention.flash_mla_interface.flash_mla_with_kvcache
    """,
)
