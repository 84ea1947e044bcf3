"""Frozen parameters that a step writes: a teacher's, which follow those that are trained.

The average that goes into them is no part of the loss's derivative, though it depends on the
parameters.  So it is the same in every run, whatever the parameters are then.
"""

from __future__ import annotations

from collections import Counter

from torch import Tensor, nn


class Pinned:
    """What the first run writes into frozen parameters; the others get that, too."""

    def __init__(self, model: nn.Module) -> None:
        self._frozen = [each for each in model.parameters() if not each.requires_grad]
        self._by_id = {id(each): i for i, each in enumerate(self._frozen)}
        self._by_memory: dict[int, int] = {}
        self._writes: Counter[int] = Counter()
        self._kept: dict[tuple[int, int], Tensor] = {}
        self.used = False
        """Whether a step writes into one."""

    def start(self) -> None:
        """A run begins."""
        self._writes.clear()
        self._by_memory = {
            each.untyped_storage().data_ptr(): i
            for i, each in enumerate(self._frozen)
            if not each.is_meta
        }

    def wrote(self, tensor: Tensor) -> None:
        """A tensor was written; it may be a frozen parameter, or an alias of one."""
        if not self._frozen or tensor.is_meta:
            return
        i = self._by_id.get(id(tensor))
        if i is None:
            i = self._by_memory.get(tensor.untyped_storage().data_ptr())
        if i is None:
            return
        self.used = True
        parameter = self._frozen[i].data
        self._by_memory[parameter.untyped_storage().data_ptr()] = i  # it may have got another
        self._writes[i] += 1
        kept = self._kept.setdefault((i, self._writes[i]), parameter)
        if kept is parameter:
            self._kept[i, self._writes[i]] = parameter.clone()
        elif kept.shape == parameter.shape:
            parameter.copy_(kept)
