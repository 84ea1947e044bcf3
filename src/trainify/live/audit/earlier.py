"""What was there before a step with its graph: backward goes on into that, and raises.

A model is often audited when the second step of a training loop has raised: it holds then what the
first one kept.  One backward goes through what was computed from weights when the model was made,
and through what a forward kept that no backward followed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
from .trace import Call, history_of, nodes_behind

_LEFT = (
    "holds what an earlier step has left, with its graph: backward goes on into that one, and "
    "raises. Keep it detached, and let go of what is there."
)
_LETS_ONE = (
    "was made before the step, and its graph with it: the first backward frees that, and the "
    "second raises. Make it in forward."
)

_READ = "What is read here"
"""In place of the name of what nobody is known to hold, as what the model is given."""

BACKWARD_TWICE = "RuntimeError: Trying to backward through the graph a second time"
_OVER = ("backward through the graph a second time", "modified by an inplace operation")
"""What torch says of a graph of which tensors are gone, or are not what they were."""


def may_be_of_earlier(error: str) -> bool:
    """Whether backward may raise this because it goes into the graph of an earlier step."""
    return any(each in error for each in _OVER)


def next_history() -> int:
    """The number that the next history will have, as in :attr:`~.trace.Sight.history`."""
    with torch.enable_grad(), torch.inference_mode(False):
        return history_of(torch.zeros(1, requires_grad=True).clone())


def lets_one_through(loss: Tensor, start: int, parameters: Iterable[Tensor]) -> bool:
    """Whether a backward would free what was saved before the step, so that a second one raises.

    Args:
        loss: Of the step, with its graph.
        start: :func:`next_history` before it.
        parameters: To which backward goes.
    """
    own = {id(parameter) for parameter in parameters}
    return any(
        _saves(node) and any(_is_of(own, each) for each in nodes_behind([node], {}))
        for node in nodes_behind([loss.grad_fn], {})
        if node._sequence_nr() < start
    )


def _is_of(parameters: Collection[int], node: Any) -> bool:
    return id(getattr(node, "variable", None)) in parameters


def _saves(node: Any) -> bool:
    """Whether a node holds a tensor that backward frees, and none has done so."""
    names = [name.removeprefix("_raw") for name in dir(node) if name.startswith("_raw_saved_")]
    names = ["saved_tensors"] if names == ["_saved_tensors"] else names  # an autograd.Function's
    try:
        saved = [getattr(node, name) for name in names]
    except RuntimeError:  # freed, or written since: a first backward raises
        return False
    return any(isinstance(each, Tensor) or (isinstance(each, tuple) and each) for each in saved)


def left_by_earlier(step: Step, allowed: Allowed) -> list[Cut]:
    """Where it is kept, or else read, what was there before and this step goes back into.

    Where one backward goes through, that is nothing that the step lets go of, and nothing given.
    """
    readers = _Readers(step)
    with readers.setting(step):
        _, loss = step.run(readers)
    behind = history_behind(loss)
    left = list(held(step.model))
    kept = {(each.module, each.attribute): each for each in left if each.history >= readers.start}
    lasting = {each.history for each in left}
    cuts: dict[Place, Cut] = {}
    for history, (owner, name, call) in readers.read.items():
        if history not in behind:
            continue
        again = kept.get((owner.module, owner.attribute)) if owner is not None else None
        if step.once and again is None and (history not in lasting if owner else name == _READ):
            continue
        site = readers.of(again) if again is not None else None
        site = site or Suspect(Cause.KEPT, MISSING, call, ("out", 0))
        if allowed.covers(site):
            continue
        made_before = step.once and again is None
        cuts[site.place] = kept_cut(
            site.place,
            owner.module if owner is not None else "",
            f"{name} {_LETS_ONE if made_before else _LEFT}",
            str(owner) if made_before and owner is not None else "",
        )
    return list(cuts.values())


class _Readers(Makers):
    """Also, which call reads first what has a history from before the run, and what holds that."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        step.begin()
        self._around = step.state.around
        self._held = {each.history: each for each in held(step.model)}
        self.start = next_history()
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
        return None, where.name if where is not None else _READ, call
