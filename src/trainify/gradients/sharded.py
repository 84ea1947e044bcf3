"""What FSDP2 makes of a parameter: a shard, the whole that is gathered, gradients not yet sent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Sharded:
    """A parameter under FSDP2.

    ``Module.parameters()`` gives the shard or the whole, whichever the module has at that time;
    optimizers hold the shard.
    """

    shard: Tensor
    _parameter: Any  # torch's FSDPParam
    _group: Any  # and its FSDPParamGroup

    @property
    def whole(self) -> Tensor | None:
        """The leaf of autograd's graphs; none before it is gathered for the first time."""
        whole: Tensor | None = getattr(self._parameter, "_unsharded_param", None)
        return whole

    def has_gradient(self) -> bool:
        """Whether there is one: sent to the shard, or kept for a step that sends.

        What replicas have not added up yet is one tensor for the group, and counts for all of it.
        """
        return (
            self.shard.grad is not None or self._keeps_its_own() or self._group_keeps() is not None
        )

    def tell(self) -> Iterator[Tensor]:
        """The tensors whose hooks tell that a gradient has come to the parameter.

        The whole's are called when this process has computed one.  The shard's are called when one
        was sent, which may be of an earlier step: they tell only where none is kept, or where one
        process may send what others have not got.
        """
        whole = self.whole
        if whole is not None and whole.requires_grad:
            yield whole
        kept = self._keeps_its_own() or self._group_keeps() is not None
        if not kept or getattr(self._group, "reduce_scatter_unused_params", False):
            yield self.shard

    def _keeps_its_own(self) -> bool:
        kept = getattr(self._parameter, "unsharded_accumulated_grad", None)
        return kept is not None or (self.whole is not None and self.whole.grad is not None)

    def _group_keeps(self) -> Tensor | None:
        kept: Tensor | None = getattr(self._group, "_partial_reduce_output", None)
        return kept


def sharded_parameters() -> dict[int, Sharded]:
    """All parameters under FSDP2, by the ids of their shards and of their wholes."""
    found: dict[int, Sharded] = {}
    for parameter, group in _parameters():
        one = Sharded(parameter.sharded_param, parameter, group)
        found[id(one.shard)] = one
        if one.whole is not None:
            found[id(one.whole)] = one
    return found


def _parameters() -> Iterator[tuple[Any, Any]]:
    """Nothing where this torch keeps them elsewhere."""
    states = sys.modules.get("torch.distributed._composable_state")
    if states is None or not (dist.is_available() and dist.is_initialized()):
        return
    for held in list(getattr(states, "_module_state_mapping", {}).values()):
        state = held()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:  # earlier releases have one at most
            groups = [getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            for parameter in getattr(group, "fsdp_params", ()):
                yield parameter, group
