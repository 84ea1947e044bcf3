"""Measure, print a table, and write docs/benchmarks.md.  Exits with 1 if a target is missed."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from . import audits, editor, live, models, tool
from .measure import Result

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
PARTS = {
    "tool": tool.results,
    "editor": editor.results,
    "models": models.results,
    "live": live.results,
    "audits": audits.results,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("part", nargs="?", choices=PARTS, help="only this; writes no page")
    only = parser.parse_args().part
    rows = []
    for name, results in PARTS.items():
        if only in (None, name):
            for result in results():
                rows.append(result)
                print("  ".join(cells(result)), flush=True)
    if only is None:
        PAGE.write_text(page(rows), encoding="utf-8")
    sys.exit(any(not row.passed for row in rows))


def cells(row: Result) -> tuple[str, str, str, str, str]:
    exact = row.low == row.high
    return (
        row.what,
        f"{number(row.value, row.unit)}",
        "exact" if exact else f"{number(row.low, row.unit)} to {number(row.high, row.unit)}",
        "" if row.target is None else f"≤ {number(row.target, row.unit)}",
        "" if row.target is None else "pass" if row.passed else "MISS",
    )


def number(value: float, unit: str) -> str:
    if unit == "x":
        return f"{value:.3f}x" if value < 2 else f"{value:.2f}x"
    return f"{value:.0f} {unit}" if value >= 20 else f"{value:.3g} {unit}"


def page(rows: Iterable[Result]) -> str:
    table = [("", "median", "quartiles", "target", ""), ("---", "--:", "--:", "--:", "---")]
    table += map(cells, rows)
    return (
        "# Benchmarks\n\n"
        "Written by `make bench`. Ratios are of runs that lie next to each other, in an order\n"
        "that turns from round to round, or that share a core; medians over all rounds, with\n"
        "quartiles. Files are in the operating system's cache.\n\n"
        + "\n".join(f"| {' | '.join(row)} |" for row in table)
        + "\n\n"
        + f"{machine()}.\n\n"
        + NOTES
    )


NOTES = f"""\
* Training: `fixtures/llama_serving` after `trainify fix`, and `LlamaForCausalLM` of transformers
  with the same weights and `sdpa`, both without a KV cache; float32,
  {models.SHAPE["num_hidden_layers"]} layers of width {models.SHAPE["hidden_size"]}, with the
  proportions of Llama 3 8B. A step is forward, loss, backward and AdamW, fused.
* Times of models are CPU time of one thread; those of commands are by the clock where nothing else
  is said.
* What is compared in training and in serving runs at the same time, in processes that share one
  core, so that each change in the machine's speed hits all alike: one after another, the quartiles
  of a ratio lie six percent apart. A core that is shared is slower, for all of them, since each
  finds the others' data in its caches. Ratios pass by two decimals, which the targets have.
* Models run with an allocator that keeps freed memory (glibc's, with `mmap` off): by default it
  returns blocks of 32 MiB to the system, and packed weights are the first to reach that size.
  Before each step of training, parameters and AdamW's moments are copied to where that allocator
  places them, on huge pages if the system has some: where they lie makes some percent of
  difference, and those of transformers lie in the file that they were loaded from.
* Tensor memory is what torch's CPU allocator holds above what it held before the step, from the
  profiler's allocation events. Autograd saves the same tensors in both but for the rotary table's
  rows, which the package gathers in each layer and for each token of the batch.
* Serving: the same package before and after, both on the stand-in kernels and with one set of
  weights in memory, since where weights lie makes a percent of difference. What the ratio measures
  is the test that strategy `flag` puts in front of each kernel.
* An audit is that of a model without cuts, the common case: each cut costs some forwards more. Its
  memory is held against a forward and a backward alone, without the two moments that AdamW keeps: a
  forward comes with a copy of the parameters, to put back what any kernel may write.
* The language server: first diagnostics of a file with three findings; then keys that are typed in
  the middle of a file with the layers of `fixtures/llama_serving` and models of transformers. In
  place of quartiles stand the median and the longest.
* `trainify check` runs over a copy of `transformers/models`. Cold: no cache of trainify's exists,
  and one is written.
"""


def machine() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "ruff"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    busy = f", load {os.getloadavg()[2]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{platform.system()} on {processor()}, {cores} cores{busy}; Python "
        f"{platform.python_version()}, {packages}"
    )


def processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
