"""Write docs/verification.md from what the runs left in build/gpu."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from ..proof import BEGIN, END
from . import ROOT, WORK

PAGE = ROOT / "docs" / "verification.md"

HEAD = """\
# Verification

The reference functions of `src/trainify/reference`, held against the libraries' own kernels.
`python -m benchmarks.gpu` fetches the pinned packages, compiles, compares and writes this page; it
needs a GPU and CUDA's compiler, or with `--emulate` a C++20 compiler and CUDA's header files.

*Equal* is the share of elements that agree in every bit, over everything a kernel writes and the
worst of the shapes: for vLLM's norms and activations 7 rows of 4096 elements, 257 of 1024 and 3 of
100. *Ulp* is the largest distance in steps of the dtype, among elements of at least a thousandth of
the largest. Kernel and reference differ in the order of sums, in contracted products and in how
`exp` and its kind are computed; in float32 that is all there is to see, so there the largest
difference stands, relative to the largest value. *Next* is the closest other reference function in
bfloat16 (float16 where there is none): what a row with the wrong rounding would show.
"""

GPU = """\
## On a GPU

Kernels compiled from the pinned packages' CUDA sources, and Triton's, run natively.
"""

NO_GPU = """\
## On a GPU

Not run yet. Open until then is what the emulation below cannot show: the GPU's instructions
(contracted products, `rsqrtf`, `__expf`, `tanh.approx`), its order of summation, PyTorch's own CUDA
kernels, bfloat16 in Triton, and flashinfer.
"""

EMULATED = """\
## Emulated

The same CUDA sources compiled for the host, a block being one thread: every cast and every packed
16-bit operation is the kernel's own, while sums run in sequence and `exp`, `tanh`, `erf` and
`rsqrtf` are the host's. It tells rounding variants apart; it is no run on a GPU. Triton kernels run
in Triton's interpreter, which has no bfloat16.
"""

NOT_COMPARED = """\
## Not compared

- flashinfer without a GPU. With one: its CUDA norms, while it prefers those in CuTe where that is
  installed; attention by its backend "fa2", while "auto" takes "fa3" on Hopper; none of its ragged,
  Llama 3.1 and merging ops.
- vLLM's attention kernels, `fused_qk_norm_rope`, `merge_attn_states` in CUDA, `swiglustep_and_mul`,
  and the releases that are not in the table.
- flash-attention's CUDA kernels, xformers' attention, causal_conv1d.
- sgl_kernel, aiter, TensorRT-LLM, exllamav2, AutoAWQ, DeepSpeed, IPEX, torch_npu, lightllm and
  lmdeploy: their rows follow sources and documentation alone.
"""


def counts() -> list[str]:
    """The part of the page that ``python -m benchmarks.proof`` wrote, which is kept."""
    text = PAGE.read_text("utf-8") if PAGE.exists() else ""
    return [text[text.index(BEGIN) : text.index(END) + len(END)]] if BEGIN in text else []


def write() -> None:
    parts = [HEAD, *counts()]
    gpu, emulated = WORK / "results.json", WORK / "emulated.json"
    parts.append(section(GPU, json.loads(gpu.read_text("utf-8"))) if gpu.exists() else NO_GPU)
    if emulated.exists():
        parts.append(section(EMULATED, json.loads(emulated.read_text("utf-8"))))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join([*parts, NOT_COMPARED]), "utf-8")


def section(head: str, results: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in results["rows"]:
        groups[row["library"], row["op"]].append(row)
    lines = [
        head,
        f"{results['device']}, {versions}, {results['date']}.",
        "",
        "| library | op | reference | float32 | float16 equal, ulp | bfloat16 equal, ulp | next |",
        "| --- | --- | --- | --: | --: | --: | --- |",
    ]
    for (library, op), rows in groups.items():
        claimed = rows[0]["claimed"]
        by_dtype = {name: [r for r in rows if r["dtype"] == name] for name in DTYPES}
        cells = [cell(name, by_dtype[name], claimed) for name in DTYPES]
        lines.append(
            f"| {library} | `{op}` | {claimed} | {' | '.join(cells)} | {rival(by_dtype, claimed)} |"
        )
    bad = [f"{r['library']} {r['op']} {r['dtype']}" for r in results["rows"] if not r["agrees"]]
    lines += ["", "The claimed reference is the closest in every row." if not bad else ""]
    if bad:
        lines[-1] = f"Another reference is closer, or the kernel failed: {', '.join(bad)}."
    gradients = results.get("gradients")
    if gradients:
        failed = [name for name, why in gradients.items() if why and not why.startswith("nothing")]
        lines += [
            "",
            f"`gradcheck` in float64 of {len(gradients)} cases of the reference functions: "
            + (f"these fail: {', '.join(failed)}." if failed else "all agree."),
        ]
    checks = results["checks"]["triton_checks.py"]
    outcome = checks if checks == "passed" else "failed"
    lines += ["", f"`tests/kernels/triton_checks.py`: {outcome}.", ""]
    return "\n".join(lines)


DTYPES = ("float32", "float16", "bfloat16")


def cell(dtype: str, rows: list[dict[str, Any]], name: str) -> str:
    fits = [row["fits"][name] for row in rows if name in row["fits"]]
    if not rows:
        return ""
    if len(fits) < len(rows):
        return "failed"
    if dtype == "float32":
        return f"{max(fit['scaled'] for fit in fits):.1e}"
    return f"{percent(min(fit['equal'] for fit in fits))}, {max(fit['ulp'] for fit in fits)}"


def rival(by_dtype: dict[str, list[dict[str, Any]]], claimed: str) -> str:
    rows = by_dtype["bfloat16"] or by_dtype["float16"]
    names = {name for row in rows for name in row["fits"]} - {claimed}
    shares = {
        name: min(row["fits"][name]["equal"] for row in rows if name in row["fits"])
        for name in names
    }
    if not shares:
        return ""
    best = max(shares, key=lambda name: shares[name])
    return f"{best} {percent(shares[best])}"


def percent(share: float) -> str:
    """Rounded down, so that 100 % means all."""
    return "100 %" if share == 1.0 else f"{int(share * 1e4) / 100:.2f} %"
