"""A patched package against Hugging Face in training, and against itself unpatched in serving.

Run in a process of its own, since it needs torch; prints what it measured as JSON.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from .measure import Result, exact, in_own_process, ratio, side_by_side, spread, tell

# The proportions of Llama 3 8B, at a quarter of its width.  Those of the 1B model at half its width
# would have the packed gate and up projections, whose output rows are then 32 KiB long, in one
# another's way in the processor's cache: torch's matrix product alone takes a fifth longer there.
SHAPE = {
    "vocab_size": 4096,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
}
BATCH, LENGTH = 2, 256
SERVED = 64
# The prompt and the continuation of the generation benchmark, within the harness's context.
PROMPT, NEW = 32, 8


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

        ids = torch.randint(SHAPE["vocab_size"], (BATCH, LENGTH))
        measured = [*serving(unpatched(), patched("flag"), ids)]
        fixed = {strategy: (patched(strategy), 1.00) for strategy in ("replace", "flag")}
        measured += training(fixed, huggingface(checkpoint), ids)
    tell(measured)


def huggingface(checkpoint: Path):
    """The same model by transformers, with attention as fast as there is."""
    import torch
    import transformers

    from demo.models import packages

    return getattr(transformers, packages.LlamaServing.oracle).from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="sdpa"
    )


def serving(unpatched, patched, ids, prefix="", rounds=100) -> Iterator[Result]:
    """What strategy ``flag`` costs where no gradient is wanted; both have the same weights."""
    import torch

    @torch.inference_mode()
    def forward(served) -> None:
        served.logits(ids[:1, :SERVED])

    @torch.no_grad()
    def generate(served) -> None:
        served.generate(ids[:1, :PROMPT].tolist(), NEW)

    own = dict(patched.model.named_parameters())
    for name, parameter in unpatched.model.named_parameters():
        own[name].data = parameter.data
    for what, work in (
        (f"{prefix}forward in serving, 1x{SERVED} tokens", forward),
        (f"{prefix}generation in serving, 1x{NEW} tokens", generate),
    ):
        runs = {"unpatched": partial(work, unpatched), "flag": partial(work, patched)}
        times = side_by_side(rounds, runs)
        yield spread(f"{what}: unpatched", times["unpatched"], "s")
        yield ratio(f"{what}: `flag` against unpatched", times["flag"], times["unpatched"], 1.01)


def training(patched, oracle, ids, what="training step", rounds=30) -> Iterator[Result]:
    """Steps of patched packages, each with the time it may take against Hugging Face's.

    ``patched`` has packages by strategy, each with its target.
    """
    import torch

    from demo.models import packages

    # A cache of keys and values is of no use in training, and costs time and memory: the package
    # goes without where it is given empty ones, as in its own profile run.
    models = {"Hugging Face": oracle}
    logits = {"Hugging Face": lambda ids: oracle(ids, use_cache=False).logits}
    for name, (served, _) in patched.items():
        served.llm.kv_caches = [torch.empty(0)] * SHAPE["num_hidden_layers"]
        logits[name], models[name] = served.logits, served.model
    optimizers = {}
    for name, model in models.items():
        model.train()
        # Fused, as transformers' Trainer has it by default: without, its temporary tensors, each as
        # large as a weight, would tell whose weights are packed.
        optimizers[name] = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(name: str) -> float:
        optimizers[name].zero_grad()
        loss = packages.next_token_loss(logits[name](ids), ids)
        loss.backward()
        optimizers[name].step()
        return loss.item()

    losses = {name: step(name) for name in models}
    reference = losses["Hugging Face"]
    assert all(abs(loss / reference - 1) < 1e-5 for loss in losses.values()), losses

    times = side_by_side(
        rounds,
        {name: partial(step, name) for name in models},
        before=lambda name: placed_anew(models[name], optimizers[name]),
    )
    # Of fewer tokens the peak is at the end of backward, in the gradients of weights: it would tell
    # little of what is saved for it.
    ids = torch.cat([ids, ids])
    peaks = {}
    for name in models:
        # The profiler sees only blocks come and go that it has seen come.
        optimizers[name].zero_grad()
        peaks[name] = peak_bytes(partial(step, name))
    memory = f"{what}, {2 * BATCH}x{LENGTH} tokens: {{}}, peak of tensor memory"
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
    yield exact(memory.format("Hugging Face, sdpa"), oracle_peak, "MB")
    for name, (_, target) in patched.items():
        peak = peaks[name] / 1e6
        yield exact(
            memory.format(f"`{name}` against Hugging Face") + f" ({peak:.1f} MB)",
            peak / oracle_peak,
            "x",
            target,
        )


def placed_anew(model, optimizer) -> None:
    """Have torch's allocator place what is held from step to step.

    Where it lies makes some percent of difference, so that is drawn again for each step; and the
    parameters of transformers lie in the file that they come from, 8 bytes behind where vectors
    begin.
    """
    parameters = list(model.parameters())
    random.shuffle(parameters)
    for parameter in parameters:
        parameter.data = parameter.data.clone()
        state = optimizer.state[parameter]
        state.update({name: tensor.clone() for name, tensor in state.items()})


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
