"""Models in DistributedDataParallel: each process looks at its own batch, as often as it has to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchrun_options import torchrun

import trainify


class Norms(nn.Module):
    """Two layers; what stops the second is only in the way of a batch that is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        h = self.first(x)
        if x.min() > 0:
            h = h.detach()
        return self.second(h)


def squares(out: Tensor) -> Tensor:
    return out.square().mean()


@pytest.mark.usefixtures("group")
def test_nothing_is_sent_while_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    synced = DistributedDataParallel._sync_buffers
    monkeypatch.setattr(
        DistributedDataParallel, "_sync_buffers", lambda self: (sent.append(1), synced(self))
    )
    model = DistributedDataParallel(Norms())
    x = torch.rand(4, 8) + 0.1
    report = trainify.audit(model, x, loss=squares)
    assert report.missing == ("module.first.weight", "module.first.bias")
    with pytest.warns(trainify.StopRemoved):
        trainify.trainify(model, x, loss=squares)
    assert not sent
    squares(model(x)).backward()
    assert sent  # in a step of training they are, as before
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.usefixtures("group")
def test_the_first_step_of_a_static_graph_comes_after_any_look() -> None:
    """DDP learns from it what all later ones are like."""
    model = DistributedDataParallel(Norms(), static_graph=True)
    x = -torch.rand(4, 8)
    for step in range(3):
        assert trainify.audit(model, x, loss=squares).ok
        model.zero_grad()
        squares(model(x)).backward()
        assert all(p.grad is not None for p in model.parameters()), step
    assert model._has_rebuilt_buckets


TWO = """
import os, sys, warnings
sys.path.insert(0, {tests!r})
import torch
import torch.distributed as dist
from datetime import timedelta
from test_ddp import Norms, squares
from torch.nn.parallel import DistributedDataParallel
import trainify

warnings.simplefilter("ignore")
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
torch.manual_seed(0)
right = Norms()
model = DistributedDataParallel(Norms(), static_graph={static})
model.module.load_state_dict(right.state_dict())
batches = [torch.rand(4, 8) + 0.1, -torch.rand(4, 8)]
trainify.trainify(model, batches[int(os.environ["RANK"])], loss=squares)
for x in batches:  # each process goes the way that only the first one's batch has shown
    model.zero_grad()
    if dist.get_rank() == 0:
        squares(model(x)).backward()
    else:
        squares(model(batches[1])).backward()
    losses = [squares(right.second(right.first(each))) for each in (x, batches[1])]
    grads = torch.autograd.grad(sum(losses) / 2, list(right.parameters()))
    for p, grad in zip(model.parameters(), grads, strict=True):
        torch.testing.assert_close(p.grad, grad)
    if dist.get_rank() == 0:  # a look of one process alone, also where DDP would send in a forward
        assert trainify.audit(model, x, loss=squares).ok
print("right", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("static", [False, True])
def test_two_processes_look_a_different_number_of_times(tmp_path: Path, static: bool) -> None:
    file = tmp_path / "two.py"
    file.write_text(TWO.format(tests=str(Path(__file__).parent), static=static))
    done = subprocess.run(
        [sys.executable, *torchrun(), str(file)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == 2
