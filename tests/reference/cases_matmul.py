"""Cases of products with weights in the formats of checkpoints."""

from __future__ import annotations

import torch

from tests.reference.cases import Case, Tensor, wide
from trainify.reference import matmul


def expect_hadamard(x: Tensor, scale: float) -> Tensor:
    matrix = torch.ones(1, 1, dtype=wide(x).dtype)
    while len(matrix) < x.shape[-1]:
        matrix = torch.kron(torch.tensor([[1, 1], [1, -1]], dtype=matrix.dtype), matrix)
    return (wide(x) @ matrix[: x.shape[-1], : x.shape[-1]] * scale).to(x.dtype)


def expect_scaled_add(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    dtype: torch.dtype,
    residual: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    out = ((wide(a) * wide(scale_a)) @ (wide(b) * wide(scale_b)[:, None]).T).to(dtype)
    out = out if residual is None else out + residual
    return out if bias is None else out + bias


def expect_grouped(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, offsets: Tensor, dtype: torch.dtype
) -> Tensor:
    rows = []
    for i in range(len(a)):
        group = int((offsets <= i).sum())
        row = (wide(a[i]) @ wide(b[group])) * wide(scale_a[i]) * wide(scale_b[group])
        rows.append(row)
    return torch.stack(rows).to(dtype)


def nibbles(word: int) -> list[int]:
    return [(word % 2**32) >> 4 * i & 15 for i in range(8)]


def expect_gemv(x: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor, group: int) -> Tensor:
    out = []
    for row, scale, zero in zip(qweight.tolist(), wide(scales), qzeros.tolist(), strict=True):
        codes = [code for word in row for code in nibbles(word)]
        points = [point for word in zero for point in nibbles(word)]
        weight = [(c - points[i // group]) * scale[i // group] for i, c in enumerate(codes)]
        out.append(wide(x) @ torch.stack(weight))
    return torch.stack(out, -1).to(x.dtype)


def expect_int4(
    x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor, group: int, apart: bool
) -> Tensor:
    rows = []
    for k in range(16):
        code = torch.tensor([nibbles(word)[k % 8] for word in packed[k // 8].tolist()])
        point = torch.tensor([p for word in zeros[k // group].tolist() for p in nibbles(word)])
        scale = scales[k // group]
        rows.append(code * scale - point * scale if apart else (code - point) * scale)
    return (wide(x) @ wide(torch.stack(rows))).to(x.dtype)


NF4 = """
    -1.0 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635
    -0.18477343022823334 -0.09105003625154495 0.0 0.07958029955625534 0.16093020141124725
    0.24611230194568634 0.33791524171829224 0.44070982933044434 0.5626170039176941
    0.7229568362236023 1.0
"""
FP4 = [0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4]


def expect_4bit_linear(
    x: Tensor,
    packed: Tensor,
    shape: tuple[int, int],
    absmax: Tensor,
    block: int,
    kind: str,
    bias: Tensor | None,
    codes: Tensor | None = None,
    table: Tensor | None = None,
    offset: Tensor | None = None,
) -> Tensor:
    values = [float(v) for v in NF4.split()] if kind == "nf4" else [*FP4, *(-v for v in FP4)]
    known = torch.tensor(values, dtype=wide(x).dtype).float().to(x.dtype)
    if codes is not None and table is not None and offset is not None:
        absmax = torch.stack([table[int(c)] * absmax[0] + offset for c in codes])
    flat = [v for byte in packed.flatten().tolist() for v in (byte // 16, byte % 16)]
    weight = torch.stack([known[v] * absmax[i // block] for i, v in enumerate(flat)])
    out = wide(x) @ wide(weight.view(shape).to(x.dtype)).T
    return (out if bias is None else out + wide(bias)).to(x.dtype)


def expect_of_codes(
    x: Tensor, b: Tensor, scale: Tensor, dtype: torch.dtype, bias: Tensor | None
) -> Tensor:
    out = wide(x) @ (
        wide(b) * wide(scale).expand(1, b.shape[1]) if scale.dim() == 2 else wide(b) * wide(scale)
    )
    return (out if bias is None else out + wide(bias)).to(dtype)


def expect_block_of_codes(
    x: Tensor, b: Tensor, scale: Tensor, block_n: int, block_k: int, dtype: torch.dtype
) -> Tensor:
    weight = wide(b).clone()
    for n in range(weight.shape[0]):
        for k in range(weight.shape[1]):
            weight[n, k] *= wide(scale)[n // block_n, k // block_k]
    return (wide(x) @ weight.T).to(dtype)


CASES = [
    Case(matmul.mm_of_codes, expect_of_codes),
    Case(matmul.block_mm_of_codes, expect_block_of_codes),
    Case(matmul.scaled_grouped_mm, expect_grouped),
    Case(matmul.scaled_mm_add, expect_scaled_add),
    Case(matmul.awq_gemv_matmul, expect_gemv),
    Case(matmul.int4_matmul, expect_int4),
    Case(matmul.bnb_4bit_linear, expect_4bit_linear),
    Case(matmul.hadamard_transform, expect_hadamard),
]
