"""How far a kernel's results lie from those of its equivalent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .verdict import Comparison

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# Largest difference over largest value up to which two ways of computing the same agree: some
# roundings of the dtype.  Rounding variants lie within; what tells them apart is ``equal``.
TOLERANCES = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}

_BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


def add(into: Comparison, got: Sequence[Any], expected: Sequence[Any], tolerance: float) -> None:
    """Take the results of one case into a comparison."""
    equal = total = 0
    into.cases += 1
    if len(got) < len(expected):
        into.wrong = f"gives {len(got)} results, not {len(expected)}"
        return
    for a, b in zip(got, expected, strict=False):
        if b is None:
            continue
        if not isinstance(a, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
            into.wrong = f"gives {_described(a)}, not {_described(b)}"
            return
        if a.numel() == 0 or not b.is_floating_point():
            continue
        a, b = a.detach().cpu(), b.detach().cpu()
        alike = (a == b) | (a.isnan() & b.isnan())
        equal, total = equal + int(alike.sum()), total + a.numel()
        if bool((a.isfinite() != b.isfinite()).any()):
            into.wrong = "has NaN or infinities where the equivalent has none, or the reverse"
            return
        finite = b.isfinite()
        if not bool(finite.any()):
            continue
        x, y = a.double()[finite], b.double()[finite]
        difference, largest = (x - y).abs(), float(y.abs().max())
        absolute = float(difference.max())
        scaled = absolute / largest if largest else absolute
        # Next to zero a difference that means nothing is large in these two measures.
        clear = y.abs() >= max(largest / 16, 1e-30)
        into.absolute = max(into.absolute, absolute)
        into.scaled = max(into.scaled, scaled)
        if bool(clear.any()):
            into.relative = max(into.relative, float((difference / y.abs())[clear].max()))
            into.ulps = max(into.ulps, int(_steps(a[finite], b[finite])[clear].max()))
        if scaled > tolerance:
            into.wrong = f"differs by {scaled:.1e} of the largest value"
    if total:
        into.equal = min(into.equal, equal / total)


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return type(value).__name__


def _steps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many numbers of the dtype lie between."""

    def ordered(x: torch.Tensor) -> torch.Tensor:
        bits = x.contiguous().view(_BITS[x.dtype]).long()
        smallest = torch.iinfo(_BITS[x.dtype]).min
        return torch.where(bits < 0, smallest - bits, bits)

    return (ordered(a) - ordered(b)).abs()
