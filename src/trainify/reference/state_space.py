"""Recurrences: Mamba's short convolution and selective state space, and the gated delta rule."""

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


def causal_conv1d_packed(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv_states: torch.Tensor,
    ends: torch.Tensor,
    indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    activation: str | bool | None = "silu",
    unused: int = -1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As causal_conv1d, of sequences packed in x [D, T], each behind a state of a pool.

    Sequence i has the columns ends[i]:ends[i + 1].  Its state, conv_states[indices[i]] [D, W - 1],
    is read where has_initial_state says so, and gets its last steps; a state that is ``unused``
    is neither read nor written.  Returns (result, conv_states moved on).
    """
    lengths = ends.diff().tolist()
    slots = (torch.arange(len(lengths)) if indices is None else indices).tolist()
    reads = [False] * len(lengths) if has_initial_state is None else has_initial_state.tolist()
    results, kept, states = [], [], []
    for steps, slot, read in zip(x.split(lengths, 1), slots, reads, strict=True):
        begin = conv_states[slot].to(x.dtype)
        if not read or slot == unused:
            begin = torch.zeros_like(begin)
        window = torch.cat((begin, steps), 1)
        result = causal_conv1d(window.unsqueeze(0), weight, bias, activation).squeeze(0)
        results.append(result[:, begin.shape[1] :])
        if slot != unused:
            kept.append(slot)
            states.append(window[:, steps.shape[1] :].to(conv_states.dtype))
    if states:
        rows = torch.tensor(kept, device=x.device)
        conv_states = conv_states.index_copy(0, rows, torch.stack(states))
    return torch.cat(results, 1), conv_states


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
    Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024.  Kimi's delta attention, 2025, has a
    decay for each of the K features: ``g`` is [B, T, HV, K].
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
    decays, rates = g.float().exp().reshape(*v.shape[:3], -1, 1), beta.float()
    steps = zip(*(t.unbind(1) for t in (queries, keys, v.float(), decays, rates)), strict=True)
    for query, key, value, decay, rate in steps:
        state = state * decay
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


def packed_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm: bool = False,
    cu_seqlens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As gated_delta_rule_v_first. With ``cu_seqlens``, of sequences packed in one row.

    Sequence i has the steps cu_seqlens[i]:cu_seqlens[i + 1] and begins with initial_state[i].
    """
    if cu_seqlens is None:
        return gated_delta_rule_v_first(
            q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm
        )
    lengths = cu_seqlens.diff().tolist()
    begins = [None] * len(lengths) if initial_state is None else initial_state.split(1)
    parts = [t.split(lengths, 1) for t in (q, k, v, g, beta)]
    results, states = [], []
    for qi, ki, vi, gi, bi, begin in zip(*parts, begins, strict=True):
        result, state = gated_delta_rule_v_first(
            qi, ki, vi, gi, bi, scale, begin, output_final_state, use_qk_l2norm
        )
        results.append(result)
        if state is not None:
            states.append(state)
    return torch.cat(results, 1), torch.cat(states) if states else None


def delta_rule_gates(
    A_log: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The decay, in log space, and the rate of the gated delta rule, from projections [T, H].

    They are -exp(A_log) * softplus(a + dt_bias) and sigmoid(b), rounded to the dtype of b, in
    float32: [1, T, H].
    """
    g = -A_log.float().exp() * F.softplus(a.float() + dt_bias.float(), beta, threshold)
    return g.unsqueeze(0), torch.sigmoid(b).float().unsqueeze(0)


def delta_rule_operands(
    conv_output: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    num_k_heads: int,
    head_k_dim: int,
    head_v_dim: int,
    apply_l2norm: bool = True,
    output_g_exp: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(q, k, v, g, beta) of the gated delta rule, from a row of queries, keys and values each.

    ``conv_output`` is [T, 2 heads K + value heads V]; q and k, if asked for, get length 1, rounded
    once; g = -exp(A_log) * softplus(a + dt_bias), or its exponential, and beta = sigmoid(b) are
    float32.
    """
    keys = num_k_heads * head_k_dim
    q, k, v = conv_output.split((keys, keys, conv_output.shape[-1] - 2 * keys), dim=-1)
    q, k = q.unflatten(-1, (-1, head_k_dim)), k.unflatten(-1, (-1, head_k_dim))
    if apply_l2norm:
        scale_q = torch.rsqrt(q.float().square().sum(-1, keepdim=True) + 1e-6)
        scale_k = torch.rsqrt(k.float().square().sum(-1, keepdim=True) + 1e-6)
        q, k = (q.float() * scale_q).to(q.dtype), (k.float() * scale_k).to(k.dtype)
    g = -A_log.float().exp() * F.softplus(a.float() + dt_bias.float())
    g = g.exp() if output_g_exp else g
    return q, k, v.unflatten(-1, (-1, head_v_dim)), g, torch.sigmoid(b.float())


def kimi_delta_gate(
    g: torch.Tensor,
    A: torch.Tensor,
    head_k_dim: int,
    g_bias: torch.Tensor | None = None,
    beta: float = 1.0,
    threshold: float = 20.0,
    lower_bound: float | None = None,
) -> torch.Tensor:
    """The decay of Kimi's delta attention, in log space and in float32: [..., H, K].

    ``g`` is [..., H * K], ``A`` has a logarithm for each head: -exp(A) * softplus(g + bias), or,
    with a lower bound, that times sigmoid(exp(A) * (g + bias)).
    """
    g = g.float() if g_bias is None else g.float() + g_bias.float().flatten()
    g, rates = g.unflatten(-1, (-1, head_k_dim)), A.float().exp().view(-1, 1)
    if lower_bound is None:
        return -rates * F.softplus(g, beta, threshold)
    return lower_bound * torch.sigmoid(rates * g)


def packed_kimi_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    raw_g: torch.Tensor,
    beta: torch.Tensor,
    A_log: torch.Tensor,
    g_bias: torch.Tensor | None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    lower_bound: float | None = None,
    use_qk_l2norm: bool = False,
    cu_seqlens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As packed_delta_rule, with the decay that kimi_delta_gate makes of raw_g [B, T, H, K]."""
    g = kimi_delta_gate(raw_g.flatten(-2), A_log, raw_g.shape[-1], g_bias, lower_bound=lower_bound)
    return packed_delta_rule(
        q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm, cu_seqlens
    )
