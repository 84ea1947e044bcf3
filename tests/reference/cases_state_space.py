"""Cases of recurrences: states in slots, packed sequences, and what makes their operands."""

from __future__ import annotations

import math

import torch

from tests.reference.cases import (
    Case,
    Tensor,
    expect_conv_update,
    expect_delta_v_first,
    expect_state_update,
    wide,
)
from trainify.reference import state_space


def expect_conv_slots(
    x: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    slots: Tensor | None,
    unused: int = -1,
) -> tuple[Tensor, Tensor]:
    out, state = x.clone(), state.clone()
    for row, slot in enumerate(range(len(x)) if slots is None else slots.tolist()):
        if slots is None or slot != unused:
            own, at = slice(row, row + 1), slice(slot, slot + 1)
            out[own], state[at] = expect_conv_update(
                x[own], state[at].clone(), weight, bias, activation
            )
    return out, state


def expect_state_slots(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    slots: Tensor | None,
    unused: int,
) -> tuple[Tensor, Tensor]:
    out, state = [], state.clone()
    for row, slot in enumerate(range(len(x)) if slots is None else slots.tolist()):
        own = slice(row, row + 1)
        begin = torch.zeros_like(state[:1]) if slot == unused else state[slot][None].clone()
        gate = None if z is None else z[own]
        steps = x[own], dt[own], A, B[own], C[own], D, gate, dt_bias, dt_softplus
        y, fresh = expect_state_update(begin, *steps)
        out.append(y)
        if slot != unused:
            state[slot] = fresh[0]
    return torch.cat(out), state


def expect_packed_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    states: Tensor,
    ends: Tensor,
    slots: Tensor | None,
    reads: Tensor | None,
    activation: str | bool | None,
    unused: int,
) -> tuple[Tensor, Tensor]:
    out, after = torch.empty_like(x), states.clone()
    width = weight.shape[1]
    for i in range(len(ends) - 1):
        slot = i if slots is None else int(slots[i])
        column = {t: x[:, int(ends[i]) + t] for t in range(int(ends[i + 1] - ends[i]))}
        for past in range(1 - width, 0):
            used = slot != unused and reads is not None and bool(reads[i])
            column[past] = states[slot, :, past] if used else torch.zeros_like(x[:, 0])
        for t in range(int(ends[i + 1] - ends[i])):
            terms = [wide(column[t - n]) * wide(weight[:, width - 1 - n]) for n in range(width)]
            total = torch.stack(terms).sum(0) + (0 if bias is None else wide(bias))
            total = total / (1 + torch.exp(-total)) if activation else total
            out[:, int(ends[i]) + t] = total.to(x.dtype)
        if slot != unused:
            last = int(ends[i + 1] - ends[i])
            after[slot] = torch.stack([column[t] for t in range(last - width + 1, last)], 1)
    return out, after


def expect_packed_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None,
    state: Tensor | None,
    final: bool,
    normalize: bool,
    ends: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    if ends is None:
        return expect_delta_v_first(q, k, v, g, beta, scale, state, final, normalize)
    out, states = torch.empty_like(v), []
    for i in range(len(ends) - 1):
        own = slice(int(ends[i]), int(ends[i + 1]))
        parts = (t[:, own] for t in (q, k, v, g, beta))
        begin = None if state is None else state[i][None]
        out[:, own], last = expect_delta_v_first(*parts, scale, begin, final, normalize)
        states.append(last)
    return out, torch.cat(states) if final else None


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), one number after the other."""
    each = [max(v, 0.0) + math.log1p(math.exp(-abs(v))) for v in x.flatten().tolist()]
    return torch.tensor(each, dtype=x.dtype).view(x.shape)


def expect_decay(log_rate: Tensor, x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    soft = softplus(x * beta) / beta
    return -torch.exp(wide(log_rate)) * torch.where(x * beta > threshold, x, soft)


def expect_gates(
    log_rate: Tensor, a: Tensor, b: Tensor, bias: Tensor, beta: float, threshold: float
) -> tuple[Tensor, Tensor]:
    g = expect_decay(log_rate, wide(a) + wide(bias), beta, threshold)
    rates = 1 / (1 + torch.exp(-wide(b)))
    return g[None], wide(rates.to(b.dtype))[None]


def expect_operands(
    rows: Tensor,
    a: Tensor,
    b: Tensor,
    log_rate: Tensor,
    bias: Tensor,
    heads: int,
    size: int,
    width: int,
    normalize: bool,
    exponential: bool,
) -> tuple[Tensor, ...]:
    def cut(start: int, count: int, each: int) -> Tensor:
        parts = [rows[:, start + i * each : start + (i + 1) * each] for i in range(count)]
        return torch.stack(parts, 1)

    q, k = cut(0, heads, size), cut(heads * size, heads, size)
    v = cut(2 * heads * size, len(log_rate), width)
    if normalize:
        q, k = (
            (wide(t) / torch.sqrt((wide(t) ** 2).sum(-1, keepdim=True) + 1e-6)).to(t.dtype)
            for t in (q, k)
        )
    g = expect_decay(log_rate, wide(a) + wide(bias))
    return q, k, v, torch.exp(g) if exponential else g, 1 / (1 + torch.exp(-wide(b)))


def expect_kimi_gate(
    g: Tensor,
    log_rate: Tensor,
    size: int,
    bias: Tensor | None,
    beta: float,
    threshold: float,
    bound: float | None,
) -> Tensor:
    out = []
    for h in range(len(log_rate)):
        own = slice(h * size, (h + 1) * size)
        x = wide(g[..., own]) + (0 if bias is None else wide(bias[own]))
        if bound is None:
            out.append(expect_decay(log_rate[h], x, beta, threshold))
        else:
            out.append(bound / (1 + torch.exp(-torch.exp(wide(log_rate[h])) * x)))
    return torch.stack(out, -2)


def expect_packed_kimi(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    raw: Tensor,
    beta: Tensor,
    log_rate: Tensor,
    bias: Tensor | None,
    scale: float | None,
    state: Tensor | None,
    final: bool,
    bound: float | None,
    *rest: object,
) -> tuple[Tensor, Tensor | None]:
    flat = raw.reshape(*raw.shape[:2], -1)
    g = expect_kimi_gate(flat, log_rate, raw.shape[3], bias, 1.0, 20.0, bound)
    return expect_packed_delta(q, k, v, g, beta, scale, state, final, *rest)  # type: ignore[arg-type]


CASES = [
    Case(state_space.causal_conv1d_packed, expect_packed_conv),
    Case(state_space.packed_delta_rule, expect_packed_delta),
    Case(
        state_space.packed_delta_rule,
        expect_packed_delta,
        name="packed",
        fixed={"lengths": [1, 2], "steps": 3},
    ),
    Case(state_space.delta_rule_gates, expect_gates),
    Case(state_space.delta_rule_operands, expect_operands),
    Case(state_space.kimi_delta_gate, expect_kimi_gate),
    Case(state_space.packed_kimi_delta_rule, expect_packed_kimi),
    Case(state_space.causal_conv1d_slots, expect_conv_slots),
    Case(
        state_space.causal_conv1d_step,
        lambda state, x, *rest: expect_conv_slots(x, state, *rest)[::-1],
    ),
    Case(state_space.selective_state_slots, expect_state_slots),
    Case(
        state_space.selective_state_step,
        lambda *args: expect_state_slots(*args)[::-1],
    ),
]
