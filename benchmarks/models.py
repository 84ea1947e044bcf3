"""A patched package against Hugging Face in training, and against itself unpatched in serving.

Run in a process of its own, since it needs torch; prints what it measured as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from .measure import Result, cpu_seconds, exact, in_own_process, interleaved, ratio, spread, tell

# The proportions of a Llama of a billion parameters, at half its width.
SHAPE = {
    "vocab_size": 4096,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
BATCH, LENGTH = 4, 256
# The prompts and the continuations of the generation benchmark, within the harness's context.
PROMPT, NEW = 32, 32


def results() -> Iterator[Result]:
    return in_own_process(__name__)


def main() -> None:
    import torch

    from demo.models import ROOT, Served, packages

    import checkpoints  # isort: skip  (found on the path that demo.models sets)

    # Backward through an unpatched kernel is not measured here.
    warnings.filterwarnings("ignore", message=".*an autograd kernel was not registered.*")
    torch.manual_seed(0)
    # Threads that wait for one another at every operation measure what else the machine does.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        checkpoint = checkpoints.llama(root / "checkpoint", **SHAPE)

        def patched(strategy: str) -> Served:
            into = Path(tempfile.mkdtemp(dir=root))
            directory = packages.copy_package("llama_serving", into)
            command = [sys.executable, "-m", "trainify", "fix", "--write", str(directory)]
            subprocess.run([*command, "--strategy", strategy], check=True, stdout=sys.stderr)
            return Served(directory, checkpoint)

        def unpatched() -> Served:
            return Served(ROOT / "fixtures/llama_serving", checkpoint)

        # Where a model's weights lie in memory makes a percent of difference, so each is there
        # twice, in an order that favours neither.
        served = {"unpatched": [unpatched()], "flag": [patched("flag"), patched("flag")]}
        served["unpatched"].append(unpatched())
        replace, flag = patched("replace"), served["flag"][0]
        ids = torch.randint(SHAPE["vocab_size"], (BATCH, LENGTH))
        oracle = packages.LlamaServing.oracle.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="sdpa"
        )
        measured = [
            *serving(served, ids),
            *training({"replace": (replace, 1.00), "flag": (flag, 1.00)}, oracle, ids),
        ]
    tell(measured)


def serving(served, ids, patched="flag", prefix="", rounds=16) -> Iterator[Result]:
    import torch

    @torch.inference_mode()
    def forward(model) -> None:
        model.logits(ids)

    @torch.no_grad()
    def generate(model) -> None:
        model.generate(ids[:, :PROMPT].tolist(), NEW)

    for what, work in (
        (f"{prefix}forward in serving, {BATCH}x{LENGTH} tokens", forward),
        (f"{prefix}generation in serving, {BATCH}x{NEW} tokens", generate),
    ):
        runs = {
            (name, i): partial(cpu_seconds, partial(work, model))
            for name, models in served.items()
            for i, model in enumerate(models)
        }
        interleaved(3, runs)
        found = interleaved(rounds, runs)
        times = {
            name: [(a + b) / 2 for a, b in zip(found[name, 0], found[name, 1], strict=True)]
            for name in served
        }
        yield spread(f"{what}: unpatched", times["unpatched"], "s")
        yield ratio(
            f"{what}: `{patched}` against unpatched", times[patched], times["unpatched"], 1.01
        )


def training(patched, oracle, ids, what="training step", rounds=15) -> Iterator[Result]:
    """Steps of patched packages, each with the time it may take against Hugging Face's."""
    import torch

    from demo.models import packages

    # A cache of keys and values is of no use in training, and costs time and memory: the package
    # goes without where it is given empty ones, as in its own profile run.
    logits = {"Hugging Face": lambda ids: oracle(ids, use_cache=False).logits}
    models = {"Hugging Face": oracle}
    for name, (served, _) in patched.items():
        served.llm.kv_caches = [torch.empty(0)] * SHAPE["num_hidden_layers"]
        logits[name], models[name] = served.logits, served.model
    optimizers = {}
    for name, model in models.items():
        model.train()
        optimizers[name] = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(name: str) -> float:
        optimizers[name].zero_grad()
        loss = packages.next_token_loss(logits[name](ids), ids)
        loss.backward()
        optimizers[name].step()
        return loss.item()

    losses = {name: step(name) for name in models}
    reference = losses["Hugging Face"]
    assert all(abs(loss / reference - 1) < 1e-5 for loss in losses.values()), losses

    runs = {name: partial(cpu_seconds, partial(step, name)) for name in models}
    interleaved(2, runs)
    times = interleaved(rounds, runs)
    peaks = {}
    for name, optimizer in optimizers.items():
        # The profiler sees only blocks come and go that it has seen come.
        optimizer.zero_grad()
        peaks[name] = peak_bytes(partial(step, name))
    what = f"{what}, {BATCH}x{LENGTH} tokens"
    yield spread(f"{what}: Hugging Face, sdpa", times["Hugging Face"], "s")
    for name, (_, target) in patched.items():
        yield ratio(
            f"{what}: `{name}` against Hugging Face, time",
            times[name],
            times["Hugging Face"],
            target,
        )
    oracle_peak = peaks["Hugging Face"] / 1e6
    memory = "peak of tensor memory"
    yield exact(f"{what}: Hugging Face, sdpa, {memory}", oracle_peak, "MB")
    for name, (_, target) in patched.items():
        peak = peaks[name] / 1e6
        yield exact(
            f"{what}: `{name}` against Hugging Face, {memory} ({peak:.1f} MB)",
            peak / oracle_peak,
            "x",
            target,
        )


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that torch's CPU allocator held at once, above what it held before.

    Exact and the same on every run, unlike the resident set, in which malloc's habits show.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(file)
        with open(file, encoding="utf-8") as trace:
            events = json.load(trace)["traceEvents"]
    held = [e["args"] for e in events if e.get("name") == "[memory]"]
    # The count goes on from one profile to the next.
    before = held[0]["Total Allocated"] - held[0]["Bytes"]
    return max(each["Total Allocated"] for each in held) - before


if __name__ == "__main__":
    main()
