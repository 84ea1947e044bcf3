"""Download the pinned packages, and take out of them the files that the comparison compiles."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

from ..pypi import download
from . import WORK

# Releases on either side of each change of meaning that the catalog's rows speak of, but for the
# one of 0.4.1, the sources before which were only read.
VLLM = ("0.8.5.post1", "0.19.1", "0.20.0", "0.23.0", "0.33.0")
FLASHINFER = "0.7.2.post1"
SDISTS = {
    **{f"vllm=={version}": () for version in VLLM},  # and its kernel files, see take_sources
    f"vllm=={VLLM[-1]}": (
        "vllm/model_executor/layers/mamba/ops/layernorm_gated.py",
        "vllm/v1/attention/ops/triton_merge_attn_states.py",
    ),
    "flash-attn==2.8.3.post2": ("flash_attn/ops/triton/rotary.py",),
    "mamba-ssm==2.3.2.post1": (
        "mamba_ssm/ops/triton/selective_state_update.py",
        "mamba_ssm/ops/triton/softplus.py",
    ),
    "xformers==0.0.35": (
        "xformers/ops/_triton/rmsnorm_kernels.py",
        "xformers/ops/_triton/rope_padded_kernels.py",
    ),
}
WHEELS = {  # with its copy of CUDA's C++ library, which is newer than CUDA's own
    f"flashinfer-python=={FLASHINFER}": (
        "flashinfer/data/include/",
        "flashinfer/data/cccl/cub/cub/",
        "flashinfer/data/cccl/libcudacxx/include/",
        "flashinfer/data/cccl/thrust/thrust/",
    )
}

KERNELS = ("layernorm_kernels.cu", "pos_encoding_kernels.cu", "activation_kernels.cu")
HOST_ONLY = ("torch_utils.h", "dispatch_utils.h")  # benchmarks/gpu/glue has its own


def fetch() -> None:
    """Fill build/gpu/downloads and build/gpu/sources; what is there already is left alone."""
    downloads = WORK / "downloads"
    for package, files in SDISTS.items():
        with tarfile.open(download(package, downloads, wheel=False)) as tar:
            take_sources(tar, WORK / "sources" / package.replace("==", "-"), files)
    for package, prefixes in WHEELS.items():
        with zipfile.ZipFile(download(package, downloads, wheel=True)) as wheel:
            target = WORK / "sources" / package.replace("==", "-")
            members = [name for name in wheel.namelist() if name.startswith(prefixes)]
            wheel.extractall(target, members)


def take_sources(tar: tarfile.TarFile, target: Path, files: tuple[str, ...]) -> None:
    """Copy the files named, and vLLM's three kernel files with the headers that they include."""
    if target.exists():
        return
    members = {str(PurePosixPath(*PurePosixPath(m.name).parts[1:])): m for m in tar if m.isfile()}

    def copy(path: str) -> str:
        destination = target / path
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tar.extractfile(members[path]) as source, open(destination, "wb") as file:
            shutil.copyfileobj(source, file)
        return destination.read_text("utf-8")

    for path in files:
        copy(path)
    roots = [root for root in ("csrc/libtorch_stable", "csrc") if f"{root}/{KERNELS[0]}" in members]
    if not roots:
        return
    root = roots[0]
    wanted, seen = [f"{root}/{kernel}" for kernel in KERNELS], set()
    while wanted:
        path = wanted.pop()
        if path in seen:
            continue
        seen.add(path)
        for include in re.findall(r'#include "([^"]+)"', copy(path)):
            if include in HOST_ONLY:
                continue
            places = [os.path.normpath(f"{PurePosixPath(path).parent}/{include}")]
            places += [f"{base}/{include}" for base in (root, "csrc")]
            wanted += [place for place in places if place in members][:1]
