"""One of two processes that train served models together: ``RANK FILE CHECKPOINTS NAME...``.

Thirty steps of AdamW under DDP and under FSDP2; the loss, averaged over both, is that of Hugging
Face's model, which one process trains alone on the whole batch.  FILE is where they meet, CHECKPOINTS a folder
with one for each kind of package.
"""

from __future__ import annotations

import sys
from pathlib import Path

import families
import packages
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import trainify


class Training(nn.Module):
    """What a training loop calls: from tokens to logits."""

    def __init__(self, model, logits):
        super().__init__()
        self.model = model
        self.logits = logits

    def forward(self, ids):
        return self.logits(ids)


def load(name, checkpoints):
    """A served model made trainable, and Hugging Face's."""
    if name in families.FAMILIES:
        oracle = families.load_oracle(name)
        package = packages.load_package(packages.FIXTURES / "more_serving")
        served = families.load_served(name, oracle, package)
        training = Training(served, lambda ids: families.logits(served, package, ids))
    else:
        cls = packages.PACKAGES[name]
        checkpoint = checkpoints / cls.kind
        package = cls(packages.load_package(packages.FIXTURES / name), checkpoint)
        oracle = packages.load_oracle(cls, checkpoint)
        training = Training(package.model, package.logits)
    trainify.trainify(training.model)
    return training, oracle


def fsdp(training):
    from torch.distributed.fsdp import (
        fully_shard,
    )  # a second and a half, also for who only collects

    layers = next(m for m in training.modules() if isinstance(m, nn.ModuleList))
    for layer in layers:
        fully_shard(layer)
    return fully_shard(training)


def losses(model, steps=30, rows=slice(None)):
    """Of each step of AdamW, on some rows of each batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        ids = torch.randint(256, (2, 12), generator=generator)[rows]
        output = model(ids)
        loss = packages.next_token_loss(getattr(output, "logits", output), ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def main(rank, file, checkpoints, names):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    for name in names:
        expected = []
        for wrap in (DistributedDataParallel, fsdp):
            training, oracle = load(name, checkpoints)
            if rank == 0:
                expected = expected or list(losses(oracle))
            for i, loss in enumerate(losses(wrap(training), rows=slice(rank, rank + 1))):
                dist.all_reduce(loss)
                if rank == 0:
                    torch.testing.assert_close(loss / 2, expected[i], rtol=0, atol=1e-5)
            trainify.restore(training)
            if rank == 0:
                print(name, wrap.__name__, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
