"""The checks where gradients accumulate: in steps of FSDP2 that send nothing, and in those that do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import trainify
from tests.each import case
from tests.live.torchrun_options import torchrun
from trainify import MissingGradients

FIRST = ("first.weight", "first.bias")


class Two(nn.Module):
    """The loss of ``last(first(x))``; nothing gets to ``first`` while it is ``cut``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 1)
        self.cut = False

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(h.detach() if self.cut else h).pow(2).mean()


def sharded(model: nn.Module, **options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model.first, **options)
    return fully_shard(model, **options)


def in_half() -> Any:
    """A precision for which FSDP2 keeps gradients apart from what it has gathered."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def ways() -> dict[str, dict[str, Any]]:
    return {
        "gathered anew": {"reshard_after_forward": True},
        "kept gathered": {"reshard_after_forward": False},
        "gathered anew, in half": {"reshard_after_forward": True, "mp_policy": in_half()},
        "kept gathered, in half": {"reshard_after_forward": False, "mp_policy": in_half()},
    }


def rows() -> Tensor:
    return torch.randn(3, 4)


def told_by_backward(model: nn.Module, holder: Any) -> tuple[str, ...]:
    try:
        trainify.backward(model(rows()), holder)
    except MissingGradients as error:
        return error.names
    return ()


def told_afterwards(model: nn.Module, holder: Any) -> tuple[str, ...]:
    model(rows()).backward()
    try:
        trainify.require_gradients(holder)
    except MissingGradients as error:
        return error.names
    return ()


CHECKS = (told_by_backward, told_afterwards)


def steps(
    model: nn.Module, told: Any, holder: Any, keeps: bool = False
) -> Iterator[tuple[bool, bool, tuple[str, ...]]]:
    """Three steps of three batches each: whether it is cut, whether it sends, and what is told.

    ``keeps`` leaves it gathered from batch to batch.
    """
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for model.cut in (False, True, False):
        for sends in (False, False, True):
            model.set_requires_gradient_sync(sends)
            model.set_reshard_after_backward(sends or not keeps)
            yield model.cut, sends, told(model, holder)
        optimizer.step()
        optimizer.zero_grad()


def check_every_batch() -> None:
    """Whatever is at hand: the model, its parameters (shards, before a batch), an optimizer."""
    for name, way in ways().items():
        for keeps in (False, True):
            for told in CHECKS:
                model = sharded(Two(), **way)
                shards = list(model.named_parameters())
                for holder in (model, shards, torch.optim.SGD(shards)):
                    for cut, sends, names in steps(model, told, holder, keeps):
                        with case((name, keeps, told.__name__, type(holder), sends)):
                            assert names == (FIRST if cut else ())


@pytest.mark.usefixtures("group")
def test_each_batch_is_judged_whether_it_sends_or_not() -> None:
    check_every_batch()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("told", CHECKS)
def test_frozen_ones_are_not_asked_for(told: Any) -> None:
    model = Two()
    model.first.requires_grad_(False)
    for cut, _, names in steps(sharded(model), told, model):
        assert names == (), cut
    model = Two()
    model.first.bias.requires_grad_(False)
    for cut, _, names in steps(sharded(model), told, model):
        assert names == (("first.weight",) if cut else ())


@pytest.mark.usefixtures("group")
def test_optimizers_in_backward_take_what_was_sent() -> None:
    model = sharded(Two())
    taken = []

    def take(parameter: Tensor) -> None:
        taken.append(parameter)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(take)
    for cut, sends, names in steps(model, told_by_backward, model):
        assert names == (FIRST if cut else ())
        assert len(taken) == (0 if not sends else 2 if cut else 4)
        taken.clear()


@pytest.mark.usefixtures("group")
def test_batches_before_hide_nothing() -> None:
    """What the last one sends is theirs, and nothing has come to it."""
    model = sharded(Two())
    model.set_requires_gradient_sync(False)
    assert told_by_backward(model, model) == ()
    model.cut = True
    model.set_requires_gradient_sync(True)
    assert told_by_backward(model, model) == FIRST
    trainify.require_gradients(model)  # which asks for a gradient, and there is one


@pytest.mark.usefixtures("group")
def test_calls_in_a_row_count_gathered_or_not() -> None:
    model = sharded(Two(), reshard_after_forward=False)
    model.set_requires_gradient_sync(False)
    model.cut = True
    model(rows()).backward()
    trainify.require_gradients(model, within=2)
    model.set_reshard_after_backward(False)
    model(rows()).backward()
    with pytest.raises(MissingGradients, match="in 2 steps"):
        trainify.require_gradients(model, within=2)


@pytest.mark.usefixtures("group")
def test_no_hook_stays_behind() -> None:
    model = sharded(Two())
    for _ in steps(model, told_by_backward, model):
        pass
    model.unshard()
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    model.reshard()
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def check_replicas() -> None:
    """Two processes that hold the same shards, and add up what they have only now and then."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards"))
    model = sharded(Two(), mesh=mesh)
    for model.cut in (False, True, False):
        for adds_up in (False, False, True):
            model.set_requires_all_reduce(adds_up)
            assert told_by_backward(model, model) == (FIRST if model.cut else ()), adds_up
        model.zero_grad()
    model.cut = False
    for adds_up in (False, True):
        model.set_requires_all_reduce(adds_up)
        assert told_afterwards(model, model) == ()
    model.zero_grad()
    model.cut = True
    assert told_afterwards(model, model) == FIRST


def check_what_only_others_use() -> None:
    """One process goes another way than the other, which FSDP2 allows where it is told to."""
    model = sharded(Two())
    model.set_reduce_scatter_unused_params(True)
    for batches in ([True], [False, True]):
        for sends in batches:
            model.set_requires_gradient_sync(sends)
            model.cut = sends and dist.get_rank() == 0
            assert told_by_backward(model, model) == ()
        model.zero_grad()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    check_every_batch()
    check_replicas()
    check_what_only_others_use()
    print("right", flush=True)
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes() -> None:
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, *torchrun(), __file__],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)},
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right") == 2


if __name__ == "__main__":
    main()
