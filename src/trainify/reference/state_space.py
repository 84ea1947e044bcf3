"""One step of the recurrences of Mamba: the short convolution and the selective state space."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Depthwise causal convolution of new steps x behind the steps kept in conv_state.

    ``x`` is [B, D] or [B, D, L], ``conv_state`` [B, D, at least W - 1], ``weight`` [D, W]; in
    float32, rounded once.  Returns (result, conv_state moved on), as ``causal_conv1d`` does in
    place.
    """
    steps = x if x.dim() == 3 else x.unsqueeze(-1)
    window = torch.cat((conv_state, steps.to(conv_state.dtype)), dim=-1)
    seen = window[..., -(weight.shape[-1] - 1 + steps.shape[-1]) :].float()
    shift = None if bias is None else bias.float()
    out = F.conv1d(seen, weight.float().unsqueeze(1), shift, groups=weight.shape[0])
    out = (out if activation is None else F.silu(out)).to(x.dtype)
    return out.view_as(x), window[..., -conv_state.shape[-1] :]


def selective_state_update(
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of the selective state space model, in float32, rounded once.

    ``state`` is [B, D, N], ``x``, ``dt`` and ``z`` [B, D], ``A`` [D, N], ``B`` and ``C`` [B, N];
    or with heads, [B, H, P, N], [B, H, P], [H, P, N] and [B, groups, N].  state * exp(dt * A) +
    dt * B * x, then C . state + D * x, gated by silu(z).  Returns (result, new state).
    Gu and Dao, "Mamba", 2023.
    """
    dt = dt.float() if dt_bias is None else dt.float() + dt_bias.float()
    dt = F.softplus(dt) if dt_softplus else dt
    if state.dim() == 4:
        shared = state.shape[1] // B.shape[1]  # heads per group
        B, C = B.repeat_interleave(shared, dim=1), C.repeat_interleave(shared, dim=1)
    B, C = B.float().unsqueeze(-2), C.float().unsqueeze(-2)
    fresh = state.float() * torch.exp(dt.unsqueeze(-1) * A.float())
    fresh = fresh + (dt * x.float()).unsqueeze(-1) * B
    out = (fresh * C).sum(-1)
    out = out if D is None else out + D.float() * x.float()
    out = out if z is None else out * F.silu(z.float())
    return out.to(x.dtype), fresh.to(state.dtype)
