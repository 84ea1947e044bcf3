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


@draws_for(state_space.causal_conv1d_packed)
def conv_packed(draw: Draw) -> Values:
    width, lengths = draw.size(2, 4), draw.pick("lengths", [3, 1], [1, 5], [2])
    unused, read = draw.pick("unused", -1), [draw.flag() for _ in lengths]
    return {
        "x": draw.tensor(draw.features, sum(lengths)),
        "weight": draw.tensor(draw.features, width),
        "bias": draw.maybe("bias", draw.tensor(draw.features)),
        "conv_states": draw.tensor(len(lengths) + 2, draw.features, width - 1),
        "ends": draw.starts(lengths),
        "indices": draw.maybe("indices", slots(draw, len(lengths), unused)),
        "has_initial_state": draw.maybe(
            "has_initial_state", torch.tensor(read, device=draw.device)
        ),
        "activation": draw.pick("activation", "silu", None, True, False),
        "unused": unused,
    }


@draws_for(state_space.gated_delta_rule)
def delta(draw: Draw) -> Values:
    steps, heads, size, values = draw.pick("steps", draw.size(1, 3)), draw.size(1, 2), 3, 2
    each = draw.pick("decays", (), (size,))  # one of a head, or of each of its features
    rates = {"g": -draw.tensor(1, steps, 2 * heads, *each, dtype=draw.wide).abs()}
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


@draws_for(state_space.packed_delta_rule)
def delta_packed(draw: Draw) -> Values:
    values = delta_v_first(draw)
    steps = values["q"].shape[1]
    lengths = draw.pick("lengths", None, [steps], [1, steps - 1] if steps > 1 else [1])
    if lengths is None:
        return {**values, "cu_seqlens": None}
    if values["initial_state"] is not None:
        shape = values["initial_state"].shape[1:]
        values["initial_state"] = draw.tensor(len(lengths), *shape, dtype=draw.wide)
    return {**values, "cu_seqlens": draw.starts(lengths)}


def decays(draw: Draw) -> Values:
    """What softplus and the exponential make of them is asked on both sides of the threshold."""
    return {
        "beta": draw.pick("softplus", 1.0, 2.0),
        "threshold": draw.pick("threshold", 20.0, 0.5),
    }


@draws_for(state_space.delta_rule_gates)
def delta_gates(draw: Draw) -> Values:
    steps, heads = draw.size(1, 3), draw.size(1, 4)
    return {
        **{name: draw.tensor(heads, dtype=draw.wide) for name in ("A_log", "dt_bias")},
        **{name: draw.tensor(steps, heads) for name in "ab"},
        **decays(draw),
    }


@draws_for(state_space.delta_rule_operands)
def delta_operands(draw: Draw) -> Values:
    steps, heads, groups, size, width = draw.size(1, 3), 2, draw.size(1, 2), 3, 2
    rows = draw.tensor(steps, 2 * heads * size + groups * heads * width)
    return {
        "conv_output": rows.contiguous(),
        **{name: draw.tensor(groups * heads, dtype=draw.wide) for name in ("A_log", "dt_bias")},
        **{name: draw.tensor(steps, groups * heads) for name in "ab"},
        "num_k_heads": heads,
        "head_k_dim": size,
        "head_v_dim": width,
        "apply_l2norm": draw.pick("apply_l2norm", True, False),
        "output_g_exp": draw.pick("output_g_exp", False, True),
    }


@draws_for(state_space.kimi_delta_gate)
def kimi_gate(draw: Draw) -> Values:
    heads, size = draw.size(1, 3), 3
    return {
        "g": draw.tensor(*draw.rows, heads * size),
        "A": draw.tensor(heads, dtype=draw.wide),
        "head_k_dim": size,
        "g_bias": draw.maybe("g_bias", draw.tensor(heads * size, dtype=draw.wide)),
        "lower_bound": draw.pick("lower_bound", None, -5.0),
        **decays(draw),
    }


@draws_for(state_space.packed_kimi_delta_rule)
def kimi_packed(draw: Draw) -> Values:
    draw.fixed["decays"] = (3,)
    values = delta_packed(draw)
    steps, heads, size = values.pop("g").shape[1:]
    return {
        **values,
        "raw_g": draw.tensor(1, steps, heads, size),
        "A_log": draw.tensor(heads, dtype=draw.wide),
        "g_bias": draw.maybe("g_bias", draw.tensor(heads * size, dtype=draw.wide)),
        "lower_bound": draw.pick("lower_bound", None, -5.0),
    }
