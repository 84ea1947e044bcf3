"""Steps that a process runs without the others that train the same model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.parallel import DistributedDataParallel


@contextmanager
def alone(model: nn.Module) -> Iterator[None]:
    """What is in ``DistributedDataParallel`` sends nothing: neither buffers nor gradients.

    How often a step is run depends on what is found, so on each process's own batch; whoever runs
    one more would wait for the others, or take the next thing that they send for its own.
    """
    parts = [part for part in model.modules() if isinstance(part, DistributedDataParallel)]
    before = [(part.require_forward_param_sync, part.require_backward_grad_sync) for part in parts]
    for part in parts:  # as in its no_sync, and from the first forward on
        part.require_forward_param_sync = part.require_backward_grad_sync = False
    try:
        yield
    finally:
        for part, (buffers, gradients) in zip(parts, before, strict=True):
            part.require_forward_param_sync = buffers
            part.require_backward_grad_sync = gradients
