"""What the reference functions rest on: PyTorch's own ops against their formulas, on this device.

F.rms_norm and its kind are held against the formula in float64 with the roundings that the
reference's text claims, and every reference function's gradient against finite differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from .compare import Row, compare

EPS = 1e-5


def rows(device: str) -> Iterator[Row]:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for shape in ((7, 4096), (3, 100)):
            yield from formulas(device, dtype, shape)


def formulas(device: str, dtype: torch.dtype, shape: tuple[int, int]) -> Iterator[Row]:
    x = (2 * torch.randn(shape, device=device)).to(dtype)
    weight, bias = ((1 + 0.5 * torch.randn(shape[-1], device=device)).to(dtype) for _ in range(2))
    d, w, b = x.double(), weight.double(), bias.double()
    scaled = d * torch.rsqrt(d.square().mean(-1, keepdim=True) + EPS)
    centred = d - d.mean(-1, keepdim=True)
    centred = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPS)
    size = (shape[-1],)
    inner = 0.7978845608028654 * (d + 0.044715 * d**3)
    ops: dict[str, tuple[Callable, dict[str, Callable]]] = {
        "F.rms_norm": (
            lambda: F.rms_norm(x, size, weight, EPS),
            {
                "rounded once": lambda: (scaled * w).to(dtype),
                "rounded before the weight": lambda: scaled.to(dtype) * weight,
            },
        ),
        "F.rms_norm without weight": (
            lambda: F.rms_norm(x, size, None, EPS),
            {"rounded once": lambda: scaled.to(dtype)},
        ),
        "F.layer_norm": (
            lambda: F.layer_norm(x, size, weight, bias, EPS),
            {
                "rounded once": lambda: (centred * w + b).to(dtype),
                "rounded before the weight": lambda: centred.to(dtype) * weight + bias,
            },
        ),
        "F.silu": (
            lambda: F.silu(x),
            {"rounded once": lambda: (d * torch.sigmoid(d)).to(dtype)},
        ),
        "F.gelu": (
            lambda: F.gelu(x),
            {"rounded once": lambda: (d * torch.special.ndtr(d)).to(dtype)},
        ),
        "F.gelu by tanh": (
            lambda: F.gelu(x, approximate="tanh"),
            {"rounded once": lambda: (0.5 * d * (1 + torch.tanh(inner))).to(dtype)},
        ),
        "torch.softmax": (
            lambda: torch.softmax(x, -1),
            {"rounded once": lambda: torch.softmax(d, -1).to(dtype)},
        ),
    }
    name = str(dtype).removeprefix("torch.")
    for op, (kernel, rivals) in ops.items():
        row = Row(f"torch {torch.__version__}", op, name, shape, "rounded once")
        yield compare(row, lambda kernel=kernel: [kernel()], rivals)


def gradients(device: str) -> dict[str, str]:
    """gradcheck of every reference function in float64 on the device; what failed, and why."""
    from tests.reference.every_case import CASES
    from tests.reference.test_reference import closed
    from trainify.reference.double import exact_in_double

    outcome = {}
    for case in CASES:
        args = tuple(
            a.to(device) if isinstance(a, torch.Tensor) else a for a in case.make(0, torch.float64)
        )
        function, leaves = closed(case, args)
        if not leaves:
            outcome[str(case)] = "nothing to differentiate"
            continue
        try:
            with exact_in_double():
                torch.autograd.gradcheck(function, leaves, fast_mode=True, nondet_tol=1e-10)
            outcome[str(case)] = ""
        except Exception as error:
            outcome[str(case)] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return outcome
