"""Arguments for :mod:`trainify.reference.state_space`."""

from __future__ import annotations

import torch

from ...reference import state_space
from .draw import Draw, Values, draws_for


def slots(draw: Draw, rows: int, unused: int) -> torch.Tensor:
    """A slot of rows + 1 for each row, none of them ``unused``; the first may be padding."""
    order = [s for s in draw.chosen(1, rows + 2, rows + 2)[0].tolist() if s != unused]
    picked = order[:rows]
    picked[0] = draw.pick("padding", unused, picked[0])
    return draw.whole(picked)


@draws_for(state_space.causal_conv1d_update)
def conv_update(draw: Draw) -> Values:
    batch, width = draw.size(1, 2), draw.size(2, 4)
    more = () if draw.large or draw.flag() else (draw.size(1, 2),)
    kept = width - 1 + (0 if draw.large else draw.size(0, 1))
    return {
        "x": draw.tensor(batch, draw.features, *more),
        "conv_state": draw.tensor(batch, draw.features, kept),
        "weight": draw.tensor(draw.features, width),
        "bias": draw.pick("bias", None, draw.tensor(draw.features)),
        "activation": draw.pick("activation", None, "silu"),
    }


@draws_for(state_space.causal_conv1d_slots, state_space.causal_conv1d_step)
def conv_slots(draw: Draw) -> Values:
    return _in_slots(draw, conv_update(draw), "conv_state")


@draws_for(state_space.selective_state_update)
def state_update(draw: Draw) -> Values:
    batch, order = draw.size(1, 2), 16 if draw.large else 3
    heads, groups = draw.pick("heads", ((), ()), ((2,), (1,)))
    shape = (*heads, draw.features)
    inner = draw.tensor(*shape, dtype=draw.wide)
    rows = {name: draw.tensor(batch, *shape) for name in ("x", "dt", "z")}
    return {
        **rows,
        "state": draw.tensor(batch, *shape, order),
        "A": -draw.tensor(*shape, order, dtype=draw.wide).abs(),
        **{name: draw.tensor(batch, *groups, order) for name in ("B", "C")},
        "D": draw.pick("D", None, inner),
        "z": draw.pick("z", None, rows["z"]),
        "dt_bias": draw.pick("dt_bias", None, inner + 1),
        "dt_softplus": draw.pick("dt_softplus", False, True),
    }


@draws_for(state_space.selective_state_slots, state_space.selective_state_step)
def state_slots(draw: Draw) -> Values:
    return _in_slots(draw, state_update(draw), "state")


def _in_slots(draw: Draw, values: Values, state: str) -> Values:
    """The same with a state of more rows, of which each sequence has one."""
    rows, unused = len(values["x"]), draw.pick("unused", -1)
    indices = draw.maybe("indices", slots(draw, rows, unused))
    if indices is not None:
        values[state] = draw.tensor(rows + 2, *values[state].shape[1:])
    return {**values, "indices": indices, "unused": unused}


@draws_for(state_space.causal_conv1d)
def conv(draw: Draw) -> Values:
    features = draw.features
    return {
        "x": draw.tensor(2, features, draw.size(1, 4)),
        "weight": draw.tensor(features, draw.size(2, 3)),
        "bias": draw.maybe("bias", draw.tensor(features)),
        "activation": draw.pick("activation", "silu", None),
    }


@draws_for(state_space.gated_delta_rule)
def delta(draw: Draw) -> Values:
    steps, heads, size, values = draw.size(1, 3), draw.size(1, 2), 3, 2
    rates = {"g": -draw.tensor(1, steps, 2 * heads, dtype=draw.wide).abs()}
    rates["beta"] = torch.sigmoid(draw.tensor(1, steps, 2 * heads))
    return {
        **{name: draw.tensor(1, steps, heads, size) for name in "qk"},
        "v": draw.tensor(1, steps, 2 * heads, values),
        **rates,
        "scale": draw.pick("scale", None, 0.7),
        "initial_state": draw.maybe(
            "initial_state", draw.tensor(1, 2 * heads, size, values, dtype=draw.wide)
        ),
        "output_final_state": draw.pick("output_final_state", True, False),
        "use_qk_l2norm": draw.pick("use_qk_l2norm", False, True),
    }


@draws_for(state_space.gated_delta_rule_v_first)
def delta_v_first(draw: Draw) -> Values:
    values = delta(draw)
    if values["initial_state"] is not None:
        values["initial_state"] = draw.tensor(
            *values["initial_state"].transpose(-1, -2).shape, dtype=draw.wide
        )
    return values
