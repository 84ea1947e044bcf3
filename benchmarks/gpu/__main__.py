"""fetch, build, run, page: see ``python -m benchmarks.gpu --help``."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from . import ROOT, WORK

parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
parser.add_argument(
    "steps", nargs="*", metavar="step", help="fetch, build, run, page; by default all of them"
)
parser.add_argument("--emulate", action="store_true", help="no GPU: compile for the host")
parser.add_argument("--arch", help="GPU architecture to compile for, as sm_90; by default this GPU")
parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at a time")
parser.add_argument("--seconds", type=float, default=480, help="run: start no part after that")
parser.add_argument("--out", type=Path, help="run: where to write; by default below build/gpu")


def main() -> int:
    args = parser.parse_args()
    steps = args.steps or ["fetch", "build", "run", "page"]
    if unknown := set(steps) - {"fetch", "build", "run", "page"}:
        parser.error(f"no such step: {', '.join(sorted(unknown))}")
    args.out = args.out or WORK / ("emulated.json" if args.emulate else "results.json")
    if args.emulate:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
    from . import build, packages, page

    if "fetch" in steps:
        packages.fetch()
    if "build" in steps:
        build.build(args.emulate, args.arch, args.jobs)
    status = run(args) if "run" in steps else 0
    if "page" in steps:
        page.write()
    return status


def run(args: argparse.Namespace) -> int:
    import torch
    import triton

    from . import flashinfer_cases, torch_cases, triton_cases, vllm_cases

    device = "cpu" if args.emulate else "cuda"
    parts = {
        "vllm": lambda: vllm_cases.rows(device, args.emulate),
        "torch": lambda: torch_cases.rows(device),
        "triton": lambda: triton_cases.rows(device),
    }
    if not args.emulate:
        parts["flashinfer"] = lambda: flashinfer_cases.rows(device)
    results: dict[str, object] = {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "emulated": args.emulate,
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "parts": {},
        "rows": [],
    }
    start = time.perf_counter()

    def keep() -> None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=1), "utf-8")

    def timed(name: str, rows: Iterator) -> Iterator:
        began = time.perf_counter()
        try:
            yield from rows
            results["parts"][name] = f"{time.perf_counter() - began:.1f} s"
        except Exception as error:  # one part's failure leaves the others
            results["parts"][name] = f"{type(error).__name__}: {error}"

    failed = 0
    for name, rows in parts.items():
        torch.manual_seed(0)
        if time.perf_counter() - start > args.seconds:
            results["parts"][name] = "skipped: no time left"
            continue
        for row in timed(name, rows()):
            failed += not row.agrees
            results["rows"].append(row.as_json())
            print(line(row), flush=True)
        print(name, results["parts"][name], flush=True)
        keep()
    results["checks"] = {"triton_checks.py": triton_checks()}
    keep()
    if time.perf_counter() - start < args.seconds:
        results["gradients"] = torch_cases.gradients(device)
        bad = {k: v for k, v in results["gradients"].items() if v and not v.startswith("nothing")}
        print("gradients:", len(results["gradients"]), "functions,", bad or "all agree")
        failed += len(bad)
    keep()
    print(f"{failed} rows differ from what the catalog says" if failed else "as the catalog says")
    return int(bool(failed))


def triton_checks() -> str:
    """The repository's own checks of its Triton kernels, in a process of their own."""
    path = ROOT / "tests" / "kernels" / "triton_checks.py"
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    return "passed" if done.returncode == 0 else done.stderr[-1000:]


def line(row) -> str:
    mark = row.error or ("" if row.agrees else f"<- closer to {row.best}")
    fits = ", ".join(f"{name} {100 * f.equal:.2f}% {f.ulp}ulp" for name, f in row.fits.items())
    return f"{row.library} {row.op} {row.dtype} {row.shape}: {fits} {mark}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
