"""Arguments for :mod:`trainify.reference.norm`, softmax and the activations."""

from __future__ import annotations

import torch

from ...reference import activation, norm, older_torch, softmax
from .draw import Draw, Values, draws_for


@draws_for(
    norm.rms_norm,
    older_torch.rms_norm_in_float32,
    norm.rms_norm_llama,
    norm.rms_norm_weight_dtype,
    norm.rms_norm_clamped,
    norm.rms_norm_saturated,
    norm.rms_norm_silu,
    norm.rms_norm_maybe_add,
    norm.rms_norm_fp8,
    norm.rms_norm_dynamic_quant,
    norm.gemma_rms_norm,
    norm.shifted_rms_norm,
    norm.gemma_rms_norm_with_scale,
    norm.gated_rms_norm,
    norm.fused_add_rms_norm,
    norm.fused_add_rms_norm_llama,
    norm.fused_add_rms_norm_llama_unrounded,
    norm.fused_add_rms_norm_fp32,
    norm.fused_add_rms_norm_weight_dtype,
    norm.fused_add_rms_norm_xformers,
    norm.fused_add_rms_norm_fp8,
    norm.fused_add_rms_norm_fp32_fp8,
    norm.fused_add_add_rms_norm,
    norm.gemma_fused_add_rms_norm,
    norm.add_rms_norm_with_scale,
    norm.dual_residual_rms_norm,
    norm.dropout_add_norm,
    norm.layer_norm,
    norm.layer_norm_of_sum,
    norm.fused_add_layer_norm,
    norm.l2_norm,
)
def norms(draw: Draw) -> Values:
    shape = (*draw.rows, draw.features)
    x, y, z = (draw.tensor(*shape, scale=draw.scale) for _ in range(3))
    weight, second, bias = (draw.tensor(draw.features) for _ in range(3))
    return {
        "x": x,
        "y": y,
        "residual": draw.maybe("residual", y),
        "z": draw.maybe("z", z),
        "other": z,
        "weight": draw.maybe("weight", weight),
        "weight1": weight,
        "weight2": second,
        "bias": draw.maybe("bias", bias),
        "x_bias": draw.maybe("x_bias", second),
        "eps": draw.pick("eps", 1e-5, 1e-6),
        "out_dtype": draw.dtype,
        # Codes lie well within their range: what is cut off gets no gradient.
        "scale": draw.tensor(1, dtype=draw.wide).abs() + 0.5,
        "dtype": draw.pick("dtype", torch.int8, torch.float8_e4m3fn),
        "residual_in_fp32": draw.dtype == torch.float32,
        "variance_size": draw.pick("variance_size", None, max(1, draw.features // 2)),
        "is_rms_norm": draw.pick("is_rms_norm", False, True),
        "shift": draw.pick("shift", 0.0, 1.0),
        "scaled": draw.pick("scaled", True, False),
    }


@draws_for(norm.layer_norm_fp32_weight)
def wide_weight(draw: Draw) -> Values:
    values = norms(draw)
    return values | {name: values[name].to(draw.wide) for name in ("weight", "bias")}


@draws_for(norm.head_layer_norm, norm.head_layer_norm_clamped)
def head_norm(draw: Draw) -> Values:
    heads, dim = draw.size(1, 3), draw.head_dim
    nothing = torch.empty(1, dtype=torch.int32, device="meta")
    return {
        "x": draw.tensor(*draw.rows, heads, dim, scale=2),
        "weight": draw.tensor(heads, dim),
        "bias": draw.pick("bias", draw.tensor(heads, dim), None, nothing),
        "eps": 1e-5,
    }


@draws_for(norm.group_norm)
def group_norm(draw: Draw) -> Values:
    groups, size = draw.size(1, 2), draw.size(1, 2)
    x = draw.tensor(2, groups * size, 3, scale=2)
    weight, bias = (draw.tensor(groups * size) for _ in range(2))
    return {"x": x, "groups": groups, "weight": weight, "bias": bias, "eps": 1e-5}


@draws_for(norm.quantize_through)
def codes(draw: Draw) -> Values:
    dtype = draw.pick("dtype", torch.int8, torch.float8_e4m3fn)
    return {"codes": draw.tensor(*draw.rows, 3, scale=9, dtype=draw.wide), "dtype": dtype}


@draws_for(softmax.softmax, softmax.softmax_temperature)
def rows(draw: Draw) -> Values:
    x = draw.tensor(*draw.rows, draw.features, scale=3)
    per_row = draw.tensor(*draw.rows, dtype=draw.wide).abs() + 0.5
    temperature = draw.pick("temperature", None, per_row, 0.7)
    return {"x": x, "logits": x.to(draw.wide), "temperature": temperature}


@draws_for(softmax.softmax_packed)
def stretches(draw: Draw) -> Values:
    lengths = [draw.size(1, 3), draw.size(1, 3)]
    return {
        "logits": draw.tensor(2, sum(lengths) + 2),
        "starts": draw.whole([1, 1 + lengths[0]]),
        "lengths": draw.whole(lengths),
    }


@draws_for(
    activation.silu_and_mul,
    activation.silu_and_mul_fp32,
    activation.mul_and_silu,
    activation.gelu_and_mul,
    activation.gelu_and_mul_fp32,
    activation.gelu_and_mul_sparse,
    activation.gelu_tanh_and_mul,
    activation.gelu_tanh_and_mul_fp32,
    activation.fatrelu_and_mul,
    activation.swigluoai_and_mul,
    activation.swigluoai_halves_and_mul,
    activation.clamped_swiglu,
    activation.swiglustep_and_mul,
    activation.situ_and_mul,
)
def gated(draw: Draw) -> Values:
    return {
        "input": draw.tensor(*draw.rows, 2 * draw.features, scale=2),
        "threshold": draw.pick("threshold", 0.25),
        "alpha": draw.pick("alpha", 1.702, 0.9),
        "limit": draw.pick("limit", 7.0, 1.5),
        "beta": draw.pick("beta", 1.0, 0.5),
        "linear_beta": draw.pick("linear_beta", -1.0, 0.7),
        "std_multiplier": draw.pick("std_multiplier", 0.2),
        "approximate": draw.pick("approximate", "none", "tanh"),
    }


@draws_for(activation.silu_and_mul_up_to)
def gated_up_to(draw: Draw) -> Values:
    return {**gated(draw), "limit": draw.pick("limit", 0.0, 0.5)}


@draws_for(
    activation.gelu_tanh,
    activation.gelu_new,
    activation.gelu_fast,
    activation.gelu_quick,
    activation.relu_squared,
    activation.soft_cap,
    activation.scaled_soft_cap,
)
def pointwise(draw: Draw) -> Values:
    x = draw.tensor(*draw.rows, draw.features, scale=2)
    return {"input": x, "cap": draw.pick("cap", 1.5), "multiplier": 0.7}


@draws_for(activation.residual_add_bias)
def block_sum(draw: Draw) -> Values:
    shape = (*draw.rows, draw.features)
    return {
        **{name: draw.tensor(*shape) for name in ("hidden_state", "residual", "attn_output")},
        **{name: draw.tensor(draw.features) for name in ("attn_bias", "final_bias")},
        "mp_size": 2,
        "mlp_after_attn": draw.pick("mlp_after_attn", True, False),
        "add_attn_bias": draw.pick("add_attn_bias", True, False),
        "pre_attn_norm": draw.pick("pre_attn_norm", True, False),
    }


@draws_for(norm.qk_rms_norm)
def heads_normed(draw: Draw) -> Values:
    tokens, dim = draw.count, draw.head_dim
    return {
        "q": draw.tensor(tokens, 2, dim),
        "k": draw.tensor(tokens, 1, dim),
        "q_weight": draw.tensor(dim),
        "k_weight": draw.tensor(dim),
        "eps": 1e-5,
        "offset": draw.pick("offset", 0.0, 1.0),
        "head_dim": dim,
    }


@draws_for(norm.gemma_norm_of_heads, norm.gemma_norm_of_gated_heads)
def heads_side_by_side(draw: Draw) -> Values:
    values = heads_normed(draw)
    return {
        **values,
        "q": values["q"].flatten(1),
        "k": values["k"].flatten(1),
        "q_gate": draw.tensor(draw.count, 4 * draw.head_dim),
    }


@draws_for(norm.joined_norms)
def joined(draw: Draw) -> Values:
    tokens, features = draw.count, draw.features
    return {
        **{name: draw.tensor(tokens, features) for name in ("embeds", "hidden")},
        **{name: draw.tensor(features) for name in ("embeds_weight", "hidden_weight")},
        "eps": 1e-5,
        "positions": draw.maybe("positions", draw.whole([(i + 1) % 2 for i in range(tokens)])),
    }


@draws_for(activation.sigmoid_gated)
def gated_by_sigmoid(draw: Draw) -> Values:
    tokens, features = draw.count, draw.features
    shape = draw.pick("gate", (1,), (features,), (2, features // 2))
    return {"input": draw.tensor(tokens, features), "gate": draw.tensor(tokens, *shape)}


@draws_for(activation.gated_by_projection)
def gated_experts(draw: Draw) -> Values:
    tokens, features = draw.count, draw.features
    return {
        "hidden": draw.tensor(tokens, features),
        "weight": draw.tensor(features),
        "input": draw.tensor(tokens, features),
        "residual": draw.maybe("residual", draw.tensor(tokens, features)),
    }
