"""torch_npu's ops without a derivative, from ``op_plugin_functions.yaml``.

The others have one (``derivatives.yaml``) and are not listed.
"""

from . import FusedOp

_NPU = "op_plugin/config/op_plugin_functions.yaml"

OPS = (
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
)
