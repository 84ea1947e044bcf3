"""The single steps of mamba_ssm and causal_conv1d; their scans over sequences have a backward."""

from . import FusedOp, opaque
from .reasons import STATES

_READ = "mamba e9594ce1c732, causal-conv1d 0d2252d161f2"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=("causal_conv1d.causal_conv1d_update",),
        schema="causal_conv1d_update(Tensor x, Tensor(a!) conv_state, Tensor weight, "
        "Tensor? bias=None, str? activation=None, Tensor? cache_seqlens=None, "
        "Tensor? conv_state_indices=None) -> Tensor",
        equivalent="_, conv_state = causal_conv1d_update(x, conv_state, weight, bias, activation)",
        source="causal_conv1d/causal_conv1d_interface.py",
        unsupported=("cache_seqlens", "conv_state_indices"),
    ),
    FusedOp(
        names=("mamba_ssm.ops.triton.selective_state_update.selective_state_update",),
        schema="selective_state_update(Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, "
        "Tensor C, Tensor? D=None, Tensor? z=None, Tensor? dt_bias=None, "
        "bool dt_softplus=False, Tensor? state_batch_indices=None) -> Tensor",
        equivalent="_, state = "
        "selective_state_update(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus)",
        source="mamba_ssm/ops/triton/selective_state_update.py",
        unsupported=("state_batch_indices",),
    ),
)

# Without an equivalent.
OPS += opaque(
    "state_space",
    STATES,
    _READ,
    """
    mamba_ssm.ops.triton.ssd_chunk_state.chunk_state_varlen(B, x, dt, dA_cumsum, cu_seqlens,
        chunk_states)
    causal_conv1d.causal_conv1d_varlen_states(x, cu_seqlens, state_len) -> Tensor
    """,
)
