"""Cases of products with weights in the formats of checkpoints."""

from __future__ import annotations

from typing import Any

import torch

from tests.reference.cases import Case, Draw, Tensor, wide
from trainify.reference import matmul


def draw_hadamard(draw: Draw) -> tuple[Any, ...]:
    return draw.tensor(*draw.rows(), draw.random.choice((1, 3, 4, 8))), 0.5


def expect_hadamard(x: Tensor, scale: float) -> Tensor:
    matrix = torch.ones(1, 1, dtype=wide(x).dtype)
    while len(matrix) < x.shape[-1]:
        matrix = torch.kron(torch.tensor([[1, 1], [1, -1]], dtype=matrix.dtype), matrix)
    return (wide(x) @ matrix[: x.shape[-1], : x.shape[-1]] * scale).to(x.dtype)


CASES = [
    Case(matmul.hadamard_transform, draw_hadamard, expect_hadamard),
]
