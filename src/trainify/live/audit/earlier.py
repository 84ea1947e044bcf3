"""What an earlier step has left behind with its graph: backward goes on into that, and raises.

A model is often audited when the second step of a training loop has raised: it holds then what the
first one kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .allowed import Allowed
from .cuts import MISSING, Suspect
from .kept import Held, Makers, held, kept_cut
from .places import Place
from .report import Cause, Cut
from .runs import Step
from .through import history_behind
from .trace import Call, history_of

_OVER = ("backward through the graph a second time", "modified by an inplace operation")
"""What torch says of a graph of which tensors are gone, or are not what they were."""


def may_be_of_earlier(error: str) -> bool:
    """Whether backward may raise this because it goes into the graph of an earlier step."""
    return any(each in error for each in _OVER)


def left_by_earlier(step: Step, allowed: Allowed) -> list[Cut]:
    """Where it is kept, or else read, what an earlier step has left and this one goes back into."""
    readers = _Readers(step)
    with readers.setting(step):
        _, loss = step.run(readers)
    behind = history_behind(loss)
    made = (each for each in held(step.model) if each.history >= readers.start)
    kept = {(each.module, each.attribute): each for each in made}
    cuts: dict[Place, Cut] = {}
    for history, (owner, name, call) in readers.read.items():
        if history not in behind:
            continue
        again = kept.get((owner.module, owner.attribute)) if owner is not None else None
        site = readers.of(again) if again is not None else None
        site = site or Suspect(Cause.KEPT, MISSING, call, ("out", 0))
        if allowed.covers(site):
            continue
        cuts[site.place] = kept_cut(
            site.place,
            owner.module if owner is not None else "",
            f"{name} holds what an earlier step has left, with its graph: backward goes on into "
            "that one, and raises. Keep it detached, and let go of what is there.",
        )
    return list(cuts.values())


class _Readers(Makers):
    """Also, which call reads first what has a history from before the run, and what holds that."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        step.begin()
        self._around = step.state.around
        self._held = {each.history: each for each in held(step.model)}
        with torch.enable_grad():
            now = torch.zeros(1, requires_grad=True).clone()
        self.start = history_of(now)
        """The number of the first history that is made in the run."""
        self.read: dict[int, tuple[Held | None, str, Call]] = {}
        """By the number of the history."""

    def before(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        for tensor in tensors:  # as they are before they are written into
            history = history_of(tensor) if tensor.requires_grad else -1
            if 0 <= history < self.start and history not in self.read:
                self.read[history] = self._of(tensor, history, call)
        super().before(call, args, kwargs, tensors)

    def _of(self, tensor: Tensor, history: int, call: Call) -> tuple[Held | None, str, Call]:
        owner = self._held.get(history)
        if owner is not None:
            return owner, str(owner), call
        where = self._around.where(tensor)
        return None, where.name if where is not None else "What is read here", call
