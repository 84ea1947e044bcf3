"""Backwards that a forward goes through by itself: a step of learning, or a part of its batch.

What it returns then, for a log, has no history, and needs none: the gradients have arrived.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .cuts import Suspect
from .places import Place, Places
from .trace import node_of, nodes_behind, tensors_in


class Within:
    """What the backwards of a forward have gone through."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._histories: set[int] = set()
        self._found: dict[Place, None] = {}
        self.gradients: dict[str, torch.Tensor] = {}
        """What has arrived, by parameter."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around the forward."""
        original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            with torch._C.DisableTorchFunction():
                nodes = [node_of(tensor) for tensor in tensors_in((tensors,))]
                self._histories.update(int(n._sequence_nr()) for n in nodes_behind(nodes, {}))
            self._found[self._places.of(sys._getframe(1))] = None
            original(tensors, *args, **kwargs)

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = original

    @property
    def places(self) -> list[Place]:
        """Where they are, if a parameter has got a gradient by one."""
        return list(self._found) if self.gradients else []

    def covers(self, suspect: Suspect) -> bool:
        """Whether what is stopped there has been gone back through."""
        return bool(self.gradients) and any(
            sight.history in self._histories for sight in suspect.call.ins if sight.attached
        )
