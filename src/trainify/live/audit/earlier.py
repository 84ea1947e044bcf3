"""What was there before a step with its graph: backward goes on into that, and raises.

A model is often audited when the second step of a training loop has raised: it holds then what the
first one kept.  One backward goes through what was computed from weights when the model was made,
and through what a forward kept that no backward followed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..makers import is_for_construction, makers
from .allowed import Allowed
from .cuts import MISSING, Suspect
from .kept import Held, Makers, held, kept_cut, tensors_held_with_history
from .places import Place
from .report import Cause, Cut
from .runs import Step
from .tensors import memory_of
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

_STALE = (
    "was made before the step, and its graph with it: gradients go back to what it was made of, "
    "and what training changes there does not arrive here. Make it in forward."
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
    """Where it is kept, or else read, what an earlier step has left and this one goes back into."""
    found = [each for each in _reads(step) if not allowed.covers(each.site)]
    return list({each.site.place: each.cut(_LEFT) for each in found}.values())


def made_before(step: Step, allowed: Allowed) -> tuple[list[Cut], list[str], bool]:
    """Where a step reads what was made before with its graph, though backward goes through once.

    Cuts, notes, and whether the second backward raises.  Nothing is said of what the step lets go
    of, or is given; and there is a note where a method makes it that a training loop can call.
    """
    weights = {memory_of(parameter) for parameter in step.model.parameters()} - {0}
    cuts: dict[Place, Cut] = {}
    notes: dict[str, None] = {}
    raises = False
    for each in _reads(step):
        message = _said_of(each, step.once, weights)
        if not message or allowed.covers(each.site):
            continue
        if each.tensor is not None and (by := _by_a_loop(step, each.owner)):
            notes[f"{each.name} was made before the step, with its graph: {by}"] = None
            continue
        raises |= message in (_LEFT, _LETS_ONE)
        cuts.setdefault(each.site.place, each.cut(message))
    return list(cuts.values()), list(notes), raises


@dataclass
class _Read:
    """What a step reads and goes back into, of before.

    ``again`` says that it is made anew for the next step; ``tensor`` is there where it lasts.
    """

    owner: Held | None
    name: str
    site: Suspect
    again: bool
    tensor: Tensor | None

    def cut(self, message: str) -> Cut:
        module = self.owner.module if self.owner is not None else ""
        derived = (self.name,) if self.tensor is not None and message != _LEFT else ()
        return kept_cut(self.site.place, module, f"{self.name} {message}", derived)


def _reads(step: Step) -> Iterator[_Read]:
    """Each, by the place where it is kept for the next step, else by where it is read."""
    readers = _Readers(step)
    with readers.setting(step):
        _, loss = step.run(readers)
    behind = history_behind(loss)
    left = list(tensors_held_with_history(step.model))
    kept = {(e.module, e.attribute): e for e, _ in left if e.history >= readers.start}
    lasting = {each.history: tensor for each, tensor in left}
    for history, (owner, name, call) in readers.read.items():
        if history not in behind:
            continue
        again = kept.get((owner.module, owner.attribute)) if owner is not None else None
        site = readers.of(again) if again is not None else None
        site = site or Suspect(Cause.KEPT, MISSING, call, ("out", 0))
        tensor = lasting.get(history) if owner is not None and again is None else None
        yield _Read(owner, name, site, again is not None, tensor)


def _said_of(each: _Read, once: bool, weights: Set[int]) -> str:
    """What is wrong with it; empty for nothing.  ``weights`` is the memory of parameters."""
    if each.tensor is None:
        if each.owner is None:
            return _LETS_ONE if once and each.name != _READ else ""
        return _LEFT if once and each.again else ""
    if memory_of(each.tensor) in weights:
        return ""
    return _LETS_ONE if _frees(each.tensor) else _STALE


def _by_a_loop(step: Step, owner: Held | None) -> str:
    """That others than constructors, loaders and the forward make it: these make what stays."""
    if owner is None:
        return ""
    module = step.model.get_submodule(owner.module)
    found = makers(module, owner.attribute)
    for made in found:
        if not (made.method == "forward" or is_for_construction(module, made.method)):
            return f"{made.method}() has to be called for each step ({made.path}:{made.line})"
    return "" if found else "who sets it has to do so for each step"


def _frees(tensor: Tensor) -> bool:
    """Whether backward frees something behind a tensor."""
    return any(map(_saves, nodes_behind([tensor.grad_fn], {})))


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
