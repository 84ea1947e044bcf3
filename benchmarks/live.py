"""A model made trainable in memory, against Hugging Face in training, and itself in serving.

Run in a process of its own, since it needs torch; prints what it measured as JSON.
"""

from __future__ import annotations

import gc
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .measure import Result, cpu_seconds, exact, in_own_process, tell
from .models import BATCH, LENGTH, SHAPE, huggingface, serving, training

TARGETS = {"replace": 1.00, "attach": 1.05}
"""What a training step may take, by strategy; attach computes attention again in backward."""


def results() -> Iterator[Result]:
    return in_own_process(__name__)


def main() -> None:
    import torch

    import trainify
    from demo.models import ROOT, Served

    import checkpoints  # isort: skip  (found on the path that demo.models sets)

    warnings.filterwarnings("ignore", message=".*an autograd kernel was not registered.*")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    ids = torch.randint(SHAPE["vocab_size"], (BATCH, LENGTH))
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = checkpoints.llama(Path(folder) / "checkpoint", **SHAPE)

        def load() -> Served:
            return Served(ROOT / "fixtures/llama_serving", checkpoint)

        def trainable(strategy: str) -> Served:
            served = load()
            trainify.trainify(served.model, strategy=strategy)
            return served

        def timed(strategy: str) -> Served:
            served = load()
            for again in ("first", "again"):
                make = partial(trainify.trainify, served.model, strategy=strategy)
                what = f"trainify in memory, `{strategy}`, {again}"
                gc.collect()  # or else it falls into one of these, now and then
                tell([exact(what, cpu_seconds(make), "s")])
            return served

        patched = {strategy: (timed(strategy), target) for strategy, target in TARGETS.items()}
        tell(training(patched, huggingface(checkpoint), ids, "in memory: training step"))
        for served, _ in patched.values():
            trainify.restore(served.model)
        del patched
        tell(serving(load(), trainable("flag"), ids, "in memory: "))


if __name__ == "__main__":
    main()
