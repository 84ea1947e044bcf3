"""Cases of recurrences whose states lie in slots."""

from __future__ import annotations

import torch

from tests.reference.cases import (
    Case,
    Tensor,
    expect_conv_update,
    expect_state_update,
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


CASES = [
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
