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


def causal_conv1d_slots(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    indices: torch.Tensor | None = None,
    unused: int = -1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As causal_conv1d_update, out of a pool of states.

    The state of row b is conv_state[indices[b]].  Where an index is ``unused``, x
    passes through and no state changes.
    """
    if indices is None:
        return causal_conv1d_update(x, conv_state, weight, bias, activation)
    kept = indices != unused
    slots = indices[kept].long()
    out, fresh = causal_conv1d_update(x[kept], conv_state[slots], weight, bias, activation)
    out = x.masked_scatter(kept.view(-1, *[1] * (x.dim() - 1)), out)
    return out, conv_state.index_copy(0, slots, fresh)


def causal_conv1d_step(
    conv_state: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    indices: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As causal_conv1d_slots; returns (conv_state moved on, result)."""
    out, state = causal_conv1d_slots(x, conv_state, weight, bias, activation, indices)
    return state, out


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


def selective_state_slots(
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
    indices: torch.Tensor | None = None,
    unused: int = -1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As selective_state_update, out of a pool of states.

    The state of row b is state[indices[b]].  Where an index is ``unused``, the step
    begins with zeros and no state changes.
    """
    if indices is None:
        return selective_state_update(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus)
    indices = indices.flatten()
    kept = indices != unused
    begin = state[indices.masked_fill(~kept, 0).long()]
    begin = begin.masked_fill(~kept.view(-1, *[1] * (state.dim() - 1)), 0.0)
    out, fresh = selective_state_update(begin, x, dt, A, B, C, D, z, dt_bias, dt_softplus)
    return out, state.index_copy(0, indices[kept].long(), fresh[kept])


def selective_state_step(
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None,
    z: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    dt_softplus: bool,
    indices: torch.Tensor | None,
    unused: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As selective_state_slots; returns (new state, result)."""
    out, state = selective_state_slots(
        state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, indices, unused
    )
    return state, out


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | bool | None = None,
) -> torch.Tensor:
    """Depthwise causal convolution of x [B, D, L] with weight [D, W], in float32, rounded once.

    Step t sees the steps t - W + 1 to t; an activation is silu.
    """
    padded = F.pad(x.float(), (weight.shape[-1] - 1, 0))
    shift = None if bias is None else bias.float()
    out = F.conv1d(padded, weight.float().unsqueeze(1), shift, groups=weight.shape[0])
    return (F.silu(out) if activation else out).to(x.dtype)


def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The gated delta rule, step by step in float32, rounded once.

    ``q`` and ``k`` are [B, T, H, K], ``v`` [B, T, HV, V], ``g`` and ``beta`` [B, T, HV]; the state
    S [B, HV, K, V] decays by exp(g), then learns S += k (beta * (v - k S)); the result is q S times
    scale, which defaults to 1 / sqrt(K).  Returns (result, last state).
    Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024.
    """
    groups = v.shape[2] // k.shape[2]
    queries, keys = q.float(), k.float()
    if use_qk_l2norm:
        queries = queries * torch.rsqrt(queries.square().sum(-1, keepdim=True) + 1e-6)
        keys = keys * torch.rsqrt(keys.square().sum(-1, keepdim=True) + 1e-6)
    queries = queries * (q.shape[-1] ** -0.5 if scale is None else scale)
    queries, keys = queries.repeat_interleave(groups, 2), keys.repeat_interleave(groups, 2)
    if initial_state is None:
        state = torch.zeros_like(keys[:, 0].unsqueeze(-1) * v[:, 0].float().unsqueeze(-2))
    else:
        state = initial_state.float()
    results = []
    decays, rates = g.float().exp(), beta.float()
    steps = zip(*(t.unbind(1) for t in (queries, keys, v.float(), decays, rates)), strict=True)
    for query, key, value, decay, rate in steps:
        state = state * decay[..., None, None]
        wrong = value - (state * key.unsqueeze(-1)).sum(-2)
        state = state + key.unsqueeze(-1) * (rate.unsqueeze(-1) * wrong).unsqueeze(-2)
        results.append((state * query.unsqueeze(-1)).sum(-2))
    return torch.stack(results, 1).to(v.dtype), state if output_final_state else None


def gated_delta_rule_v_first(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As gated_delta_rule, but the states are [B, HV, V, K]."""
    if initial_state is not None:
        initial_state = initial_state.transpose(-1, -2)
    out, state = gated_delta_rule(
        q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm
    )
    return out, None if state is None else state.transpose(-1, -2)
