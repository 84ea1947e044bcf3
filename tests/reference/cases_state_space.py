"""Cases of recurrences whose states lie in slots."""

from __future__ import annotations

from typing import Any

import torch

from tests.reference.cases import (
    Case,
    Draw,
    Tensor,
    draw_conv_update,
    draw_state_update,
    expect_conv_update,
    expect_state_update,
)
from trainify.reference import state_space


def draw_slots(draw: Draw, rows: int) -> Tensor | None:
    """A slot of rows + 1 for each row, or -1 for a row of padding."""
    if draw.flag():
        return None
    slots = torch.randperm(rows + 1, generator=draw.generator)[:rows]
    slots[0] = -1 if draw.flag() else slots[0]
    return slots


def pooled(draw: Draw, state: Tensor, slots: Tensor | None) -> Tensor:
    return state if slots is None else draw.tensor(len(state) + 1, *state.shape[1:])


def draw_conv_slots(draw: Draw) -> tuple[Any, ...]:
    x, state, weight, bias, activation = draw_conv_update(draw)
    slots = draw_slots(draw, len(x))
    return x, pooled(draw, state, slots), weight, bias, activation, slots


def expect_conv_slots(
    x: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    slots: Tensor | None,
) -> tuple[Tensor, Tensor]:
    out, state = x.clone(), state.clone()
    for row, slot in enumerate(range(len(x)) if slots is None else slots.tolist()):
        if slot >= 0:
            own, at = slice(row, row + 1), slice(slot, slot + 1)
            out[own], state[at] = expect_conv_update(
                x[own], state[at].clone(), weight, bias, activation
            )
    return out, state


def draw_state_slots(draw: Draw) -> tuple[Any, ...]:
    state, x, *rest = draw_state_update(draw)
    slots = draw_slots(draw, len(x))
    return pooled(draw, state, slots), x, *rest, slots, -1


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
    Case(state_space.causal_conv1d_slots, draw_conv_slots, expect_conv_slots),
    Case(
        state_space.causal_conv1d_step,
        lambda draw: (lambda x, state, *rest: (state, x, *rest))(*draw_conv_slots(draw)),
        lambda state, x, *rest: expect_conv_slots(x, state, *rest)[::-1],
    ),
    Case(state_space.selective_state_slots, draw_state_slots, expect_state_slots),
    Case(
        state_space.selective_state_step,
        draw_state_slots,
        lambda *args: expect_state_slots(*args)[::-1],
    ),
]
