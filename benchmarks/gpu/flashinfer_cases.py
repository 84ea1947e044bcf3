"""flashinfer's norms, activations, rotary embeddings and attention of one sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from trainify.reference import activation, attention, norm, rope

from .build import library
from .compare import Row, compare
from .native import Library
from .packages import FLASHINFER

EPS = 1e-5
NAME = f"flashinfer-python {FLASHINFER}"


def rows(device: str) -> Iterator[Row]:
    lib, attend = Library(library("flashinfer", False)), Library(library("attention", False))
    for dtype in (torch.float16, torch.bfloat16):  # its kernels take nothing else
        for shape in ((7, 4096), (3, 96)):
            yield from norms(lib, device, dtype, shape)
            yield from activations(lib, device, dtype, shape)
        for interleave in (False, True):
            yield from rotary(lib, device, dtype, interleave)
        yield from single_sequence(attend, device, dtype)


def row(op: str, dtype: torch.dtype, shape: tuple[int, ...], claimed: str) -> Row:
    return Row(NAME, op, str(dtype).removeprefix("torch."), shape, claimed)


def bind(function: Callable[..., object], *args: object) -> Callable[[], object]:
    return lambda: function(*args)


def norms(lib: Library, device: str, dtype: torch.dtype, shape: tuple[int, int]) -> Iterator[Row]:
    x, residual = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    weight = (1 + 0.5 * torch.randn(shape[-1], device=device)).to(dtype)

    def plain(op: str) -> list[torch.Tensor]:
        out = torch.empty_like(x)
        lib.call(op, out, x, weight, numbers=(EPS,))
        return [out]

    def added(op: str) -> list[torch.Tensor]:
        out, total = x.clone(), residual.clone()
        lib.call(op, out, total, weight, numbers=(EPS,))
        return [out, total]

    for op, kernel, args, names in (
        ("rmsnorm", plain, (x, weight, EPS), ("rms_norm", "rms_norm_llama")),
        ("gemma_rmsnorm", plain, (x, weight, EPS), ("gemma_rms_norm",)),
        (
            "fused_add_rmsnorm",
            added,
            (x, residual, weight, EPS),
            ("fused_add_rms_norm_fp32", "fused_add_rms_norm", "fused_add_rms_norm_xformers"),
        ),
        (
            "gemma_fused_add_rmsnorm",
            added,
            (x, residual, weight, EPS),
            ("gemma_fused_add_rms_norm",),
        ),
    ):
        references = {name: bind(getattr(norm, name), *args) for name in names}
        yield compare(row(op, dtype, shape, names[0]), bind(kernel, op), references)


def activations(
    lib: Library, device: str, dtype: torch.dtype, shape: tuple[int, int]
) -> Iterator[Row]:
    x = (2 * torch.randn(shape[0], 2 * shape[1], device=device)).to(dtype)

    def kernel(op: str) -> list[torch.Tensor]:
        out = torch.empty(shape, dtype=dtype, device=device)
        lib.call(op, out, x)
        return [out]

    for op in ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul"):
        references = {name: bind(getattr(activation, name), x) for name in (f"{op}_fp32", op)}
        yield compare(row(op, dtype, shape, f"{op}_fp32"), bind(kernel, op), references)


def rotary(lib: Library, device: str, dtype: torch.dtype, interleave: bool) -> Iterator[Row]:
    tokens, heads, kv_heads, size = 33, 8, 2, 128
    positions = torch.randint(0, 4096, (tokens,), device=device)
    q, k = (torch.randn(tokens, n, size, device=device).to(dtype) for n in (heads, kv_heads))
    angle = torch.arange(4096, device=device)[:, None] * 1e4 ** -(
        torch.arange(0, size, 2, device=device) / size
    )
    table = torch.cat((angle.cos(), angle.sin()), -1)

    def cached() -> list[torch.Tensor]:
        out = [q.clone(), k.clone()]
        op = "apply_rope_with_cos_sin_cache"
        lib.call(op, positions, *out, table, numbers=(size, interleave))
        return out

    def computed() -> list[torch.Tensor]:
        out = [q.clone(), k.clone()]
        numbers = (size, interleave, 2.0, 1e4)
        lib.call("apply_rope_pos_ids", positions, *out, numbers=numbers)
        return out

    names = ("rotary_embedding", "rotary_embedding_rounded")
    shape = (tokens, heads, size)
    yield compare(
        row("apply_rope_with_cos_sin_cache", dtype, shape, names[0]),
        cached,
        {
            name: bind(getattr(rope, name), positions, q, k, size, table, not interleave)
            for name in names
        },
    )
    yield compare(
        row("apply_rope_pos_ids", dtype, shape, "rope_at"),
        computed,
        {"rope_at": bind(rope.rope_at, q, k, positions, None, interleave, 2.0, 1e4)},
    )


def single_sequence(lib: Library, device: str, dtype: torch.dtype) -> Iterator[Row]:
    heads, kv_heads, size = 8, 2, 128
    scale = size**-0.5
    for q_len, k_len, causal, window, softcap in (
        (33, 33, True, -1, 0.0),
        (17, 70, True, -1, 0.0),
        (17, 70, False, -1, 0.0),
        (40, 70, True, 8, 0.0),
        (17, 70, True, -1, 5.0),
    ):
        q = torch.randn(q_len, heads, size, device=device).to(dtype)
        k, v = (torch.randn(k_len, kv_heads, size, device=device).to(dtype) for _ in range(2))

        def prefill(q=q, k=k, v=v, numbers=(causal, window, softcap, scale)) -> list:
            out = torch.empty_like(q)
            lib.call("single_prefill", out, q, k, v, numbers=numbers)
            return [out]

        args = (q, k, v, "NHD", scale, causal, window, softcap)
        options = f"causal={causal} window={window} softcap={softcap}"
        yield compare(
            row(f"single_prefill {options}", dtype, (q_len, k_len, heads, size), "single_prefill"),
            prefill,
            {"single_prefill": bind(attention.single_prefill, *args)},
        )
        if not causal:
            continue

        def decode(q=q, k=k, v=v, numbers=(True, window, softcap, scale)) -> list:
            out = torch.empty_like(q[-1])
            lib.call("single_decode", out, q[-1].contiguous(), k, v, numbers=numbers)
            return [out]

        args = (q[-1], k, v, "NHD", scale, window, softcap)
        options = f"window={window} softcap={softcap}"
        yield compare(
            row(f"single_decode {options}", dtype, (1, k_len, heads, size), "single_decode"),
            decode,
            {"single_decode": bind(attention.single_decode, *args)},
        )
