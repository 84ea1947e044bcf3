"""How far a kernel's results lie from what a reference function gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field

import torch

Tensors = Sequence[torch.Tensor]


@dataclass
class Fit:
    """One reference function's distance from a kernel, over everything the kernel wrote."""

    equal: float  # share of elements that are equal bit for bit, zeros of either sign alike
    ulp: int  # the largest distance in steps of the dtype, among elements that are not tiny
    scaled: float  # the largest difference, over the largest value


@dataclass
class Row:
    """One kernel, dtype and shape; ``fits`` has the reference the catalog names and its rivals."""

    library: str
    op: str
    dtype: str
    shape: tuple[int, ...]
    claimed: str
    fits: dict[str, Fit] = field(default_factory=dict)
    error: str = ""
    seconds: float = 0.0

    @property
    def best(self) -> str:
        """The closest reference; the claimed one where it is as close as any."""
        return max(self.fits, key=lambda name: (self.fits[name].equal, name == self.claimed))

    @property
    def agrees(self) -> bool:
        """Whether the claimed reference is the closest, or in float32, as close as sums allow."""
        if self.error or not self.fits:
            return False
        if self.dtype == "float32":  # roundings on the way to float32 are none
            return self.fits[self.claimed].scaled < 1e-5
        return self.best == self.claimed

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "best": self.best if self.fits else "", "agrees": self.agrees}


def compare(
    row: Row, kernel: Callable[[], Tensors], rivals: dict[str, Callable[[], object]]
) -> Row:
    """Run the kernel and the references, and fill in the row; an error becomes part of it."""
    start = time.perf_counter()
    try:
        got = [t.detach() for t in kernel()]
        for name, reference in rivals.items():
            result = reference()
            expected = result if isinstance(result, (tuple, list)) else (result,)
            row.fits[name] = fit(got, [t for t in expected if isinstance(t, torch.Tensor)])
    except Exception as error:  # the other kernels still count
        row.error = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    row.seconds = round(time.perf_counter() - start, 3)
    return row


def fit(got: Tensors, expected: Tensors) -> Fit:
    equal = total = ulp = 0
    scaled = 0.0
    for a, b in zip(got, expected, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise TypeError(f"{a.dtype} {tuple(a.shape)} against {b.dtype} {tuple(b.shape)}")
        equal += int((a == b).sum())
        total += a.numel()
        largest = float(b.double().abs().max())
        # Next to zero a difference that means nothing is many steps wide.
        counts = b.double().abs() >= largest / 1024
        ulp = max(ulp, int((steps(a) - steps(b))[counts].abs().max()))
        scaled = max(scaled, float((a.double() - b.double()).abs().max()) / max(largest, 1e-30))
    return Fit(equal / total, ulp, scaled)


def steps(x: torch.Tensor) -> torch.Tensor:
    """Where each number stands among all numbers of its dtype."""
    bits = x.contiguous().view(torch.int32 if x.dtype == torch.float32 else torch.int16).long()
    magnitude = bits & (0x7FFFFFFF if x.dtype == torch.float32 else 0x7FFF)
    return torch.where(bits < 0, -magnitude, magnitude)


def worst(rows: Iterable[Row], name: str) -> Fit:
    """The fit of one reference over several shapes: the smallest share, the largest distances."""
    fits = [row.fits[name] for row in rows if name in row.fits]
    return Fit(min(f.equal for f in fits), max(f.ulp for f in fits), max(f.scaled for f in fits))
