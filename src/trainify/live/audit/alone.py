"""Steps that a process runs without the others that train the same model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .losses import Loss
from .outlived import Foreign
from .runs import Step
from .trace import Call, Observer


class _Writes(Observer):
    """Sees what nobody had told of, that a step writes into."""

    arrivals = True

    def __init__(self) -> None:
        self.foreign = Foreign()

    def before(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        self.foreign.take(call, tensors)


class _Idle:
    """In place of DDP's reducer, which sends the order of its buckets in the second forward."""

    def _rebuild_buckets(self) -> bool:
        return False


@contextmanager
def alone(model: nn.Module) -> Iterator[None]:
    """What is in ``DistributedDataParallel`` sends nothing: neither buffers nor gradients.

    How often a step is run depends on what is found, so on each process's own batch; whoever runs
    one more would wait for the others, or take the next thing that they send for its own.
    """
    instead: dict[str, Any] = {
        # As in its no_sync, and from the first forward on.
        "require_forward_param_sync": False,
        "require_backward_grad_sync": False,
        "reducer": _Idle(),
        # With static_graph, backward of the first step tells what all later ones are like.
        "_static_graph_delay_allreduce_enqueued": True,
    }
    parts = [part for part in model.modules() if isinstance(part, DistributedDataParallel)]
    before = [{name: vars(part)[name] for name in instead if name in vars(part)} for part in parts]
    for part in parts:
        vars(part).update(instead)
    try:
        yield
    finally:
        for part, held in zip(parts, before, strict=True):
            for name in instead:
                del vars(part)[name]
            vars(part).update(held)


@contextmanager
def step_alone(
    model: nn.Module, inputs: Sequence[Any], keywords: Mapping[str, Any], loss: Loss | None
) -> Iterator[Step | None]:
    """A step that is looked at beside an audit; None for one that an audit raises for."""
    with alone(model):
        try:
            step = Step(model, inputs, keywords, loss)
        except (TypeError, ValueError):
            yield None
            return
        writes = _Writes()
        with suppress(Exception):  # which an audit tells of
            step.run(writes)
        step.state.take_in(writes.foreign.living())
        try:
            yield step
        finally:
            step.state.end()
