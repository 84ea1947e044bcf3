"""lmdeploy's Triton kernels."""

from . import FusedOp

OPS = (
    FusedOp(
        names=(
            "lmdeploy.pytorch.kernels.cuda.rms_norm.rms_norm",
            "lmdeploy.pytorch.kernels.cuda.rms_norm",
        ),
        schema="rms_norm(Tensor hidden_states, Tensor weight, float eps=1e-6, "
        "Tensor? residual=None, Tensor? out=None, Tensor? out_residual=None) -> Tensor",
        equivalent="rms_norm_maybe_add(hidden_states, weight, eps, residual)",
        source="lmdeploy/pytorch/kernels/cuda/rms_norm.py",
        unsupported=("out", "out_residual"),
    ),
    FusedOp(
        names=("lmdeploy.pytorch.kernels.cuda.activation.silu_and_mul",),
        schema="silu_and_mul(Tensor gate_up, Tensor(a!)? out=None) -> Tensor(a!)",
        equivalent="silu_and_mul(gate_up)",
        source="lmdeploy/pytorch/kernels/cuda/activation.py",
    ),
    FusedOp(
        names=(
            "lmdeploy.pytorch.kernels.cuda.apply_rotary_pos_emb.apply_rotary_pos_emb",
            "lmdeploy.pytorch.kernels.cuda.apply_rotary_pos_emb",
        ),
        schema="apply_rotary_pos_emb(Tensor q, Tensor k, Tensor cos, Tensor sin, "
        "Tensor? q_embed=None, Tensor? k_embed=None, bool complex_mode=False)"
        " -> (Tensor, Tensor)",
        equivalent="rotate_query_key(q, k, cos.chunk(2, -1)[0].to(q.dtype), "
        "sin.chunk(2, -1)[0].to(q.dtype), True)",
        source="lmdeploy/pytorch/kernels/cuda/apply_rotary_pos_emb.py",
        unsupported=("q_embed", "k_embed", "complex_mode"),
    ),
)
