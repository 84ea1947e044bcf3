"""Compile the packages' CUDA sources into shared libraries that native.py calls."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from . import WORK
from .packages import FLASHINFER, VLLM

GLUE = Path(__file__).resolve().parent / "glue"
TORCH = Path(torch.__file__).parent / "include"

# vllm::kernel<types> <<<grid, block, shared, stream>>>, up to the arguments.
LAUNCH = re.compile(
    r"(vllm::\w+\s*(?:<(?:(?!<<<)[^;{}])*>)?)(\s*\\?\s*)<<<\s*(\w+),[^>]*>>>(?=\s*\\?\s*\()"
)


def build(emulate: bool, arch: str | None, jobs: int) -> None:
    """Compile what is not compiled yet; for the GPU that is here, unless arch says otherwise."""
    if not emulate and arch is None:
        arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    with ThreadPoolExecutor(jobs) as pool:
        tasks = [pool.submit(vllm, version, emulate, arch) for version in VLLM]
        if not emulate:
            tasks += [pool.submit(flashinfer, part, arch) for part in ("flashinfer", "attention")]
        for task in tasks:
            task.result()


def library(name: str, emulate: bool) -> Path:
    return WORK / ("emulated" if emulate else "cuda") / f"{name}.so"


def vllm(version: str, emulate: bool, arch: str | None) -> None:
    sources = WORK / "sources" / f"vllm-{version}" / "csrc"
    if emulate:
        sources = rewritten(sources, WORK / "emulated" / f"vllm-{version}")
    major, minor, patch = version.split(".")[:3]
    number = 100 * int(major) + 10 * int(minor) + int(patch)
    folders = [sources / "libtorch_stable", sources]
    compile_library(
        library(f"vllm-{version}", emulate),
        GLUE / "vllm.cu",
        folders,
        emulate,
        arch,
        [f"-DVLLM={number}"],
    )


def flashinfer(part: str, arch: str | None) -> None:
    name = f"flashinfer-python-{FLASHINFER}"
    data = WORK / "sources" / name / "flashinfer" / "data"
    cccl = ("cub", "libcudacxx/include", "thrust")
    folders = [data / "include", *(data / "cccl" / part for part in cccl)]
    compile_library(library(part, False), GLUE / f"{part}.cu", folders, False, arch, [])


def rewritten(sources: Path, target: Path) -> Path:
    """A copy of the sources whose launches are loops over the grid."""
    for source in sources.rglob("*"):
        if source.is_file():
            text = LAUNCH.sub(r"EMULATE(\3) \1\2", source.read_text("utf-8"))
            if source.name == "type_convert.cuh":  # packed bfloat16 works on the host as well
                text = text.replace("defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800", "1")
            copy = target / source.relative_to(sources)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text, "utf-8")
    return target


def cuda_headers() -> Path:
    """CUDA's header files, which a host compiler reads as well."""
    homes = [os.environ.get("CUDA_HOME"), *sorted(glob.glob("/usr/local/cuda*"), reverse=True)]
    if nvcc := shutil.which("nvcc"):
        homes.append(Path(nvcc).resolve().parents[1])
    for home in filter(None, homes):
        if Path(home, "include", "cuda_runtime.h").exists():
            return Path(home, "include")
    raise FileNotFoundError("cuda_runtime.h: set CUDA_HOME")


def compile_library(
    target: Path,
    source: Path,
    folders: list[Path],
    emulate: bool,
    arch: str | None,
    defines: list[str],
) -> None:
    if target.exists():
        return
    print("compiling", target.name, flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    if emulate:
        command = ["g++", "-x", "c++", "-O1", "-w", "-fPIC", "-ffp-contract=off"]
        command += ["-include", GLUE / "emulate" / "device.h"]
        folders = [GLUE / "emulate", *folders, cuda_headers()]
    else:
        command = ["nvcc", "-O3", "-w", "-Xcompiler=-fPIC", "--expt-relaxed-constexpr"]
        command += ["--expt-extended-lambda", f"-arch={arch}"]
    command += ["-std=c++20", "-shared", *defines]
    command += [f"-I{folder}" for folder in [*folders, GLUE / "include", TORCH]]
    unfinished = target.with_suffix(".tmp")
    subprocess.run([*map(str, command), str(source), "-o", str(unfinished)], check=True)
    unfinished.rename(target)
