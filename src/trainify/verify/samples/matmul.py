"""Arguments for :mod:`trainify.reference.matmul`: products with quantized weights."""

from __future__ import annotations

import torch

from ...reference import matmul
from .draw import Draw, Values, draws_for


@draws_for(matmul.scaled_mm)
def scaled(draw: Draw) -> Values:
    """Codes in fp8 where a kernel is to take them, column by column those of b; else as floats.

    A gradient is one of their values, however many bits they have.
    """
    rows, k, n = draw.count, draw.features, draw.size(2, 4) * (16 if draw.large else 1)
    one = draw.pick("scales", False, True)
    a, b = draw.tensor(rows, k), draw.tensor(n, k).t()
    if draw.large:
        a, b = (t.to(torch.float8_e4m3fn) for t in (a.contiguous(), b))
    scale_a, scale_b = (draw.tensor(*shape, dtype=draw.wide).abs() for shape in ((rows, 1), (1, n)))
    if one:
        scale_a, scale_b = scale_a[:1, :1], scale_b[:1, :1]
    return {
        "a": a,
        "b": b,
        "scale_a": scale_a,
        "scale_b": scale_b if draw.large else draw.pick("flat", scale_b, scale_b.flatten()),
        "out_dtype": draw.dtype,
        "bias": draw.maybe("bias", draw.tensor(n)),
    }


@draws_for(matmul.scaled_grouped_mm)
def scaled_groups(draw: Draw) -> Values:
    sizes, k, n = [draw.size(0, 3), draw.size(1, 3)], draw.features, 3
    return {
        "a": draw.tensor(sum(sizes), k),
        "b": draw.tensor(2, k, n),
        "scale_a": draw.tensor(sum(sizes)).abs(),
        "scale_b": draw.tensor(2, n).abs(),
        "offsets": draw.starts(sizes)[1:],
        "out_dtype": draw.dtype,
    }


@draws_for(matmul.mm_of_codes)
def of_codes(draw: Draw) -> Values:
    values = scaled(draw)
    return {**values, "x": draw.tensor(*values["a"].shape)}


@draws_for(matmul.scaled_mm_add)
def scaled_sum(draw: Draw) -> Values:
    k, n = draw.features, draw.size(2, 4)
    return {
        "a": draw.tensor(*draw.rows, k),
        "b": draw.tensor(n, k),
        "scale_a": draw.tensor(*draw.rows, 1).abs(),
        "scale_b": draw.tensor(n).abs(),
        "out_dtype": draw.dtype,
        "residual": draw.maybe("residual", draw.tensor(*draw.rows, n)),
        "bias": draw.maybe("bias", draw.tensor(n)),
    }


@draws_for(matmul.block_scaled_mm)
def block_scaled(draw: Draw) -> Values:
    """Blocks that a row does not fill, and where they are small more than one."""
    block_n, block_k = draw.pick("block_n", 2), draw.pick("block_k", 2)
    n, k = draw.pick("n", 3, block_n + 2), draw.pick("k", 5, block_k + 3)
    columns, stretches = -(-n // block_n), -(-k // block_k)
    return {
        "a": draw.tensor(draw.count, k),
        "b": draw.tensor(n, k),
        "scale_a": draw.tensor(draw.count, stretches).abs(),
        "scale_b": draw.tensor(columns, stretches).abs(),
        "block_n": block_n,
        "block_k": block_k,
        "out_dtype": draw.dtype,
    }


@draws_for(matmul.block_mm_of_codes)
def block_of_codes(draw: Draw) -> Values:
    values = block_scaled(draw)
    return {**values, "x": values["a"]}


@draws_for(matmul.hadamard_transform)
def hadamard(draw: Draw) -> Values:
    features = draw.pick("features", 4, 1, 3, 8)
    return {"x": draw.tensor(*draw.rows, features), "scale": draw.pick("scale", 0.5, 1.0)}


@draws_for(matmul.awq_weight, matmul.awq_matmul)
def awq(draw: Draw) -> Values:
    groups, size = draw.size(1, 2), draw.size(2, 4)
    return {
        "x": draw.tensor(*draw.rows, groups * size, scale=0.1),
        "qweight": draw.words(groups * size, 2),
        "qzeros": draw.words(groups, 2),
        "scales": draw.tensor(groups, 16, scale=0.1),
    }


@draws_for(matmul.awq_gemv_matmul)
def awq_gemv(draw: Draw) -> Values:
    """Scales and zeros are padded; theirs of 16 columns in groups are the first ones."""
    group, n = draw.pick("group", 4, 8), 3
    return {
        "x": draw.tensor(*draw.rows, 16, scale=0.1),
        "qweight": draw.words(n, 2),
        "scales": draw.tensor(n, 5, scale=0.1),
        "qzeros": draw.words(n, 1),
        "group": group,
    }


@draws_for(matmul.int4_matmul)
def int4(draw: Draw) -> Values:
    group = draw.pick("group", 4, 8)
    return {
        "x": draw.tensor(draw.count, 16, scale=0.1),
        "packed": draw.words(2, 8),
        "scales": draw.tensor(16 // group, 8, scale=0.1),
        "zeros": draw.words(16 // group, 1),
        "group": group,
        "apart": draw.pick("apart", False, True),
    }


@draws_for(matmul.bnb_4bit_weight, matmul.bnb_4bit_matmul)
def bnb(draw: Draw) -> Values:
    n, blocks = draw.size(1, 3), draw.size(1, 2)
    return {
        "x": draw.tensor(*draw.rows, 4 * blocks),
        "packed": draw.integers(256, n * blocks * 2, 1, dtype=torch.uint8),
        "shape": (n, 4 * blocks),
        "absmax": draw.tensor(n * blocks, dtype=draw.wide),
        "code": draw.tensor(16, dtype=draw.wide),
        "blocksize": 4,
    }


@draws_for(matmul.bnb_4bit_linear)
def bnb_linear(draw: Draw) -> Values:
    """The maxima of the blocks as they are, or quantized themselves."""
    values = bnb(draw)
    blocks = len(values["absmax"])
    nested = draw.pick("nested", False, True)
    if nested:
        values["absmax"] = draw.tensor(1, dtype=draw.wide)
    inner = {
        "absmax_8bit": draw.integers(5, blocks, dtype=torch.uint8),
        "absmax_code": draw.tensor(5, dtype=draw.wide),
        "absmax_offset": draw.tensor(1, dtype=draw.wide)[0],
    }
    return {
        **values,
        "kind": draw.pick("kind", "nf4", "fp4"),
        "bias": draw.maybe("bias", draw.tensor(values["shape"][0])),
        **(inner if nested else dict.fromkeys(inner)),
    }
