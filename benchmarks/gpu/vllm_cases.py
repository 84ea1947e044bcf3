"""vLLM's CUDA ops: norms, rotary embeddings and activations, in several releases."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import torch
from packaging.specifiers import SpecifierSet

from trainify.catalog import vllm
from trainify.reference import activation, norm, rope

from .build import library
from .compare import Row, compare
from .native import Library
from .packages import VLLM

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
EPS = 1e-5
# From 256 rows on the norms launch smaller blocks; 100 does not divide into the widest loads.
SHAPES = ((7, 4096), (257, 1024), (3, 100))

GATED = {
    "silu_and_mul": ("silu_and_mul", "silu_and_mul_fp32"),
    "mul_and_silu": ("mul_and_silu",),
    "gelu_and_mul": ("gelu_and_mul", "gelu_and_mul_fp32"),
    "gelu_tanh_and_mul": ("gelu_tanh_and_mul", "gelu_tanh_and_mul_fp32"),
    "fatrelu_and_mul": ("fatrelu_and_mul",),
    "swigluoai_and_mul": ("swigluoai_and_mul",),
    "situ_and_mul": ("situ_and_mul",),
    "silu_and_mul_with_clamp": ("clamped_swiglu",),
}
PLAIN = {
    "gelu_new": ("gelu_new", "gelu_tanh"),
    "gelu_fast": ("gelu_fast", "gelu_tanh"),
    "gelu_quick": ("gelu_quick",),
    "relu_squared": ("relu_squared",),
}
NUMBERS = {
    "fatrelu_and_mul": (0.25,),
    "swigluoai_and_mul": (1.702, 7.0),
    "situ_and_mul": (4.0, 25.0),
    "silu_and_mul_with_clamp": (2.0, 1.25, 0.5),
}
# Later releases only.
SINCE = {
    "swigluoai_and_mul": "0.19.1",
    "situ_and_mul": "0.33.0",
    "silu_and_mul_with_clamp": "0.33.0",
    "relu_squared": "0.33.0",
}


def claim(op: str, version: str) -> str:
    """The reference function that the catalog names for the op in this release."""
    for row in vllm.OPS:
        releases = SpecifierSet(row.since.removeprefix("vllm"))
        if f"torch.ops._C.{op}" in row.names and version in releases:
            return re.search(r"(\w+)\(", row.equivalent or "")[1]
    raise LookupError(f"no row for {op} in {version}")


def rows(device: str, emulate: bool) -> Iterator[Row]:
    for version in VLLM:
        lib = Library(library(f"vllm-{version}", emulate))
        for dtype in DTYPES:
            for shape in SHAPES:
                yield from norms(lib, version, device, dtype, shape)
                yield from activations(lib, version, device, dtype, shape)
            for neox in (True, False):
                yield from rotary(lib, version, device, dtype, neox)


def new_row(version: str, op: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Row:
    name = str(dtype).removeprefix("torch.")
    return Row(f"vllm {version}", op, name, shape, claim(op, version))


def norms(
    lib: Library, version: str, device: str, dtype: torch.dtype, shape: tuple[int, int]
) -> Iterator[Row]:
    x, residual = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    weight = (1 + 0.5 * torch.randn(shape[-1], device=device)).to(dtype)

    def plain() -> list[torch.Tensor]:
        out = torch.empty_like(x)
        lib.call("rms_norm", out, x, weight, numbers=(EPS,))
        return [out]

    def added() -> list[torch.Tensor]:
        out, total = x.clone(), residual.clone()
        lib.call("fused_add_rms_norm", out, total, weight, numbers=(EPS,))
        return [out, total]

    references = {
        name: bind(getattr(norm, name), x, weight, EPS) for name in ("rms_norm", "rms_norm_llama")
    }
    yield compare(new_row(version, "rms_norm", dtype, shape), plain, references)
    names = ("fused_add_rms_norm", "fused_add_rms_norm_llama", "fused_add_rms_norm_fp32")
    references = {name: bind(getattr(norm, name), x, residual, weight, EPS) for name in names}
    yield compare(new_row(version, "fused_add_rms_norm", dtype, shape), added, references)


def activations(
    lib: Library, version: str, device: str, dtype: torch.dtype, shape: tuple[int, int]
) -> Iterator[Row]:
    tokens, width = shape
    for op, names in {**GATED, **PLAIN}.items():
        if version not in SpecifierSet(f">={SINCE.get(op, '0')}"):
            continue
        numbers = NUMBERS.get(op, ())
        size = (tokens, 2 * width) if op in GATED else shape
        x = (2 * torch.randn(size, device=device)).to(dtype)

        def kernel(op: str = op, x: torch.Tensor = x, numbers: tuple = numbers) -> list:
            out = torch.empty(shape, dtype=dtype, device=device)
            lib.call(op, out, x, numbers=numbers)
            return [out]

        references = {name: bind(getattr(activation, name), x, *numbers) for name in names}
        yield compare(new_row(version, op, dtype, shape), kernel, references)


def rotary(
    lib: Library, version: str, device: str, dtype: torch.dtype, neox: bool
) -> Iterator[Row]:
    tokens, heads, kv_heads, size, rotated = 33, 8, 2, 128, 128 if neox else 64
    positions = torch.randint(0, 4096, (tokens,), device=device)
    frequency = 1e4 ** -(torch.arange(0, rotated, 2, device=device) / rotated)
    angle = torch.arange(4096, device=device)[:, None] * frequency
    # Releases differ in which dtypes of the table they take; the 16-bit one is what models pass.
    table = torch.cat((angle.cos(), angle.sin()), -1).to(dtype)
    q, k = (torch.randn(tokens, n * size, device=device).to(dtype) for n in (heads, kv_heads))

    def kernel() -> list[torch.Tensor]:
        out = [q.clone(), k.clone()]
        cache = table.float() if version == "0.20.0" else table
        lib.call("rotary_embedding", positions, *out, cache, numbers=(size, neox))
        return out

    names = ("rotary_embedding", "rotary_embedding_rounded")
    references = {
        name: bind(getattr(rope, name), positions, q, k, size, table, neox) for name in names
    }
    row = new_row(version, "rotary_embedding", dtype, (tokens, heads, size))
    yield compare(row, kernel, references)


def bind(function: Callable[..., object], *args: object) -> Callable[[], object]:
    return lambda: function(*args)
