"""Triton kernels: the repository's own, and files of packages that load without the package.

On a CPU Triton's interpreter runs them, which computes bfloat16 wrongly: float32 and float16 then.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from trainify.reference import attention, norm, rope, state_space

from . import ROOT, WORK
from .compare import Row, compare
from .packages import VLLM

EPS = 1e-5


@triton.jit
def rsqrt(x):  # the interpreter has no libdevice
    return tl.rsqrt(x)


def rows(device: str) -> Iterator[Row]:
    dtypes = [torch.float32, torch.float16]
    if device != "cpu":
        dtypes.append(torch.bfloat16)
    for dtype in dtypes:
        with contextlib.ExitStack() as stack:
            if device == "cpu":
                stack.enter_context(mock.patch("torch.cuda.device", contextlib.nullcontext))
                place = mock.patch("torch.accelerator.device_index", contextlib.nullcontext)
                stack.enter_context(place)
            yield from fixtures(device, dtype)
            yield from xformers(device, dtype)
            yield from vllm(device, dtype)
            yield from flash_attn(device, dtype)
            yield from mamba(device, dtype)


def load(path: Path, stubs: dict[str, dict[str, object]]) -> types.ModuleType:
    """Import one file; the modules that it imports and this environment lacks are stubs."""
    made = {}
    for name, members in stubs.items():
        for parent in (name.rsplit(".", i)[0] for i in range(name.count("."), -1, -1)):
            made.setdefault(parent, types.ModuleType(parent))
        vars(made[name]).update(members)
    made = {name: module for name, module in made.items() if name not in sys.modules}
    sys.modules.update(made)
    try:
        spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        for name in made:
            del sys.modules[name]
    return module


def source(package: str, path: str) -> Path:
    return next((WORK / "sources").glob(f"{package}-*")) / path


def version(package: str) -> str:
    folder = next((WORK / "sources").glob(f"{package}-*"))
    return f"{package} {folder.name.removeprefix(package + '-')}"


def row(library: str, op: str, dtype: torch.dtype, shape: tuple[int, ...], claimed: str) -> Row:
    return Row(library, op, str(dtype).removeprefix("torch."), shape, claimed)


def fixtures(device: str, dtype: torch.dtype) -> Iterator[Row]:
    path = ROOT / "fixtures" / "kernels" / "triton_kernels.py"
    kernels = load(path, {})
    if device == "cpu":
        kernels._check_dtype = lambda x: None  # it only lets float32 through
    library = "fixtures/kernels/triton_kernels.py"
    x = torch.randn(7, 4096, device=device).to(dtype)
    weight = (1 + 0.5 * torch.randn(4096, device=device)).to(dtype)
    yield compare(
        row(library, "rms_norm", dtype, (7, 4096), "rms_norm"),
        lambda: [kernels.rms_norm(x, weight, EPS)],
        {
            "rms_norm": lambda: norm.rms_norm(x, weight, EPS),
            "rms_norm_llama": lambda: norm.rms_norm_llama(x, weight, EPS),
        },
    )
    heads = torch.randn(33, 8, 128, device=device).to(dtype)
    angle = torch.rand(33, 64, device=device) * 100
    cos, sin = angle.cos(), angle.sin()

    def rotate() -> list[torch.Tensor]:
        out = heads.clone()
        kernels.apply_rope_(out, cos, sin)
        return [out]

    yield compare(
        row(library, "apply_rope_", dtype, (33, 8, 128), "rotate_pairs"),
        rotate,
        {"rotate_pairs": lambda: rope.rotate_pairs(heads, cos[:, None], sin[:, None], True)},
    )


def xformers(device: str, dtype: torch.dtype) -> Iterator[Row]:
    def libdevice_find(name: str) -> object:
        return rsqrt if device == "cpu" else getattr(libdevice, name)

    kernels = load(
        source("xformers", "xformers/ops/_triton/rmsnorm_kernels.py"),
        {"xformers.triton.importing": {"libdevice_find": libdevice_find}},
    )
    library = version("xformers")
    for shape in ((7, 4096), (3, 100)):
        x, y = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
        weight = (1 + 0.5 * torch.randn(shape[-1], device=device)).to(dtype)
        yield compare(
            row(library, "rms_norm", dtype, shape, "rms_norm"),
            lambda x=x, weight=weight: [kernels._rms_norm_forward(x, weight, EPS)],
            {
                "rms_norm": lambda x=x, weight=weight: norm.rms_norm(x, weight, EPS),
                "rms_norm_llama": lambda x=x, weight=weight: norm.rms_norm_llama(x, weight, EPS),
            },
        )

        def added(x=x, y=y, weight=weight) -> list[torch.Tensor]:
            total = x.clone()
            return [kernels._rms_norm_add_forward(total, y, weight, EPS), total]

        names = (
            "fused_add_rms_norm_xformers",
            "fused_add_rms_norm",
            "fused_add_rms_norm_fp32",
            "fused_add_rms_norm_llama",
        )
        yield compare(
            row(library, "rms_norm_add", dtype, shape, names[0]),
            added,
            {
                name: lambda name=name, x=x, y=y, w=weight: getattr(norm, name)(x, y, w, EPS)
                for name in names
            },
        )


def vllm(device: str, dtype: torch.dtype) -> Iterator[Row]:
    library = f"vllm {VLLM[-1]}"
    folder = WORK / "sources" / library.replace(" ", "-") / "vllm"
    platform = types.SimpleNamespace(fp8_dtype=lambda: torch.float8_e4m3fn)
    stubs = {
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.platforms": {"current_platform": platform},
    }
    gated = load(folder / "model_executor/layers/mamba/ops/layernorm_gated.py", stubs)
    x, z = (torch.randn(7, 4096, device=device).to(dtype) for _ in range(2))
    weight = (1 + 0.5 * torch.randn(4096, device=device)).to(dtype)
    yield compare(
        row(library, "rms_norm_gated", dtype, (7, 4096), "gated_rms_norm"),
        lambda: [gated.rms_norm_gated(x, weight, None, z, EPS)],
        {"gated_rms_norm": lambda: norm.gated_rms_norm(x, z, weight, EPS)},
    )
    merge = load(folder / "v1/attention/ops/triton_merge_attn_states.py", stubs)
    a, b = (torch.randn(33, 8, 128, device=device).to(dtype) for _ in range(2))
    a_lse, b_lse = (torch.randn(8, 33, device=device) for _ in range(2))
    a_lse[0, 0], a_lse[1, 0], b_lse[2, 0] = torch.inf, -torch.inf, torch.inf  # empty sets

    def merged() -> list[torch.Tensor]:
        out = torch.empty_like(a)
        merge.merge_attn_states(out, a, a_lse, b, b_lse)
        return [out]

    yield compare(
        row(library, "merge_attn_states (Triton)", dtype, (33, 8, 128), "merge_attn_states"),
        merged,
        {"merge_attn_states": lambda: attention.merge_attn_states(a, a_lse, b, b_lse)},
    )


def flash_attn(device: str, dtype: torch.dtype) -> Iterator[Row]:
    kernels = load(source("flash-attn", "flash_attn/ops/triton/rotary.py"), {})
    x = torch.randn(2, 19, 4, 128, device=device).to(dtype)
    angle = torch.rand(64, 64, device=device) * 100
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    offsets = torch.tensor([3, 11], device=device)
    for interleaved in (False, True):
        with mock.patch("torch.library.wrap_triton", lambda kernel: kernel):
            yield compare(
                row(version("flash-attn"), "apply_rotary", dtype, tuple(x.shape), "apply_rotary"),
                lambda i=interleaved: [kernels.apply_rotary(x, cos, sin, offsets, interleaved=i)],
                {
                    "apply_rotary": lambda i=interleaved: rope.apply_rotary(
                        x, cos, sin, offsets, i
                    ),
                },
            )


def mamba(device: str, dtype: torch.dtype) -> Iterator[Row]:
    softplus = load(source("mamba-ssm", "mamba_ssm/ops/triton/softplus.py"), {}).softplus
    kernels = load(
        source("mamba-ssm", "mamba_ssm/ops/triton/selective_state_update.py"),
        {
            "mamba_ssm.ops.triton.softplus": {"softplus": softplus},
            "einops": {"rearrange": None, "repeat": None},
        },
    )
    batch, heads, dim, size, groups = 3, 4, 64, 16, 2
    cast = {"device": device, "dtype": torch.float32}
    x, dt, z = (torch.randn(batch, heads, dim, **cast).to(dtype) for _ in range(3))
    state = torch.randn(batch, heads, dim, size, **cast).to(dtype)
    a = -torch.rand(heads, dim, size, **cast)
    b, c = (torch.randn(batch, groups, size, **cast).to(dtype) for _ in range(2))
    d, bias = torch.randn(heads, dim, **cast), torch.randn(heads, dim, **cast)

    def step() -> list[torch.Tensor]:
        fresh = state.clone()
        out = kernels.selective_state_update(fresh, x, dt, a, b, c, d, z, bias, True)
        return [out, fresh]

    name = "selective_state_update"
    yield compare(
        row(version("mamba-ssm"), name, dtype, (batch, heads, dim), name),
        step,
        {name: lambda: state_space.selective_state_update(state, x, dt, a, b, c, d, z, bias, True)},
    )
