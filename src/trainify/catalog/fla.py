"""flash-linear-attention.  Most of it has a backward of its own; the steps below do not."""

from . import FusedOp, opaque
from .reasons import RAISES

_READ = "fla bc3b101dcb71"

OPS: tuple[FusedOp, ...] = (
    FusedOp(
        names=("fla.ops.fused_recurrent_gated_delta_rule",),
        schema="fused_recurrent_gated_delta_rule(Tensor q, Tensor k, Tensor v, "
        "Tensor? g=None, Tensor? gk=None, Tensor? gv=None, Tensor? beta=None, "
        "float? scale=None, Tensor? initial_state=None, "
        "bool output_final_state=False, bool use_qk_l2norm_in_kernel=False, "
        "bool use_gate_in_kernel=False, Tensor? A_log=None, Tensor? dt_bias=None, "
        "bool use_beta_sigmoid_in_kernel=False, bool allow_neg_eigval=False, "
        "bool state_v_first=False, Tensor? cu_seqlens=None) -> (Tensor, Tensor?)",
        equivalent="gated_delta_rule(q, k, v, g, beta, scale, initial_state, "
        "output_final_state, use_qk_l2norm_in_kernel)",
        source="fla/ops/gated_delta_rule/fused_recurrent.py",
        unsupported=(
            "gk",
            "gv",
            "use_gate_in_kernel",
            "use_beta_sigmoid_in_kernel",
            "allow_neg_eigval",
            "state_v_first",
            "cu_seqlens",
        ),
    ),
)

# Without an equivalent.
OPS += opaque(
    "state_space",
    RAISES,
    _READ,
    """
    fla.ops.chunk_iplr_delta_rule(q, k, v, a, b, scale=None, initial_state=None,
        output_final_state=False, cu_seqlens=None, cu_seqlens_cpu=None, **kwargs)
    fla.ops.fused_recurrent_comba(q, k, p, v, g, beta=None, scale=None, initial_state=None,
        output_final_state=False, use_qk_l2norm_in_kernel=False, cu_seqlens=None)
    fla.ops.fused_recurrent_dplr_delta_rule(q, k, v, a, b, gk, scale=None, initial_state=None,
        output_final_state=False, reverse=False, cu_seqlens=None)
    fla.ops.fused_recurrent_precond_gated_delta_rule(q, k, v, g=None, gk=None, gv=None,
        beta=None, g_atk=None, beta_atk=None, scale=None, initial_state=None,
        initial_A_state=None, output_final_state=False, use_qk_l2norm_in_kernel=True,
        cu_seqlens=None, transpose_state_layout=False, x=1.5, eps=1e-06, log_atk_scale=None)
    """,
)
