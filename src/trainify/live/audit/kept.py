"""What a step keeps for the next one, and its graph with it.

The backward of the next step goes on into the graph of this one, whose buffers are freed by then,
and raises.  One step alone shows nothing of that.  So where anything holds something with a history
after the step, a second one is run.  Its backward decides: much that is kept is never read again.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .allowed import Allowed
from .cuts import MISSING, Suspect
from .outlived import Attached
from .places import Place, said
from .report import Cause, Cut
from .runs import Step
from .surroundings import Where
from .tensors import tensors_within
from .through import history_behind
from .trace import Call, Observer, history_of, tensors_in

_DEPTH = 3
"""How deep tensors are looked for in what a module holds: lists, dicts and objects."""

_WITHOUT = {type(None), bool, int, float, str}

_REGISTRIES = ("_parameters", "_buffers", "_modules")

_LETS_GO = re.compile(
    r"_?(?:reset|clear|detach|empty|flush|init|zero|new)"
    r"(?:_(?:[a-z]+_)?(?:states?|hidden|caches?|memory|mems?|kv|history|carry|sequence|net))?"
)
"""Names of methods that a training loop calls between steps."""


class Held(NamedTuple):
    """A tensor with a history that a module holds."""

    module: str
    attribute: str
    history: int

    def __str__(self) -> str:
        return f"{self.module}.{self.attribute}" if self.module else self.attribute


def held(model: nn.Module) -> Iterator[Held]:
    """What the modules of a model hold with a history, in buffers and in other attributes."""
    for each, _ in tensors_held_with_history(model):
        yield each


def tensors_held_with_history(model: nn.Module) -> Iterator[tuple[Held, Tensor]]:
    """The same, each with the tensor."""
    for name, attribute, tensor in tensors_held(model):
        if tensor.grad_fn is not None:
            yield Held(name, attribute, history_of(tensor)), tensor


def tensors_held(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """The tensors that modules hold beside their parameters: module, attribute, tensor."""
    seen: set[int] = set()
    for name, module in model.named_modules():
        for attribute, value in plain_attributes(module):
            for tensor in tensors_within(value, _DEPTH, seen):
                yield name, attribute, tensor


def plain_attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """What a module holds beside parameters and modules, and that may hold tensors."""
    own = {k: v for k, v in vars(module).items() if k not in _REGISTRIES}
    for attribute, value in {**own, **module._buffers}.items():
        if type(value) in _WITHOUT or (type(value) in (dict, OrderedDict) and not value):
            continue  # most of what a module holds
        yield attribute, value


def kept_graphs(step: Step, allowed: Allowed) -> tuple[list[Cut], list[str], str]:
    """What makes the backward of a second step raise: cuts, notes, and what it raises.

    There are only notes where the model has a method by which a training loop lets go of what is
    kept, and of what the model was given and has written into.
    """
    makers = Makers()
    parameters = list(step.parameters.values())
    with makers.setting(step):
        _, loss = step.run(makers)
        notes = _given(step, makers)
        given = len(notes)
        kept = list(held(step.model))
        with step.backward():
            torch.autograd.grad(loss, parameters, allow_unused=True)
        del loss
        outside = list(makers.outside(step))
    step.state.restore(own=False)
    try:
        loss = step.another_loss()
    except Exception:  # of what the first step has left: shapes may not fit any more
        return [], notes, ""
    behind = history_behind(loss)
    try:
        with step.backward():
            torch.autograd.grad(loss, parameters, allow_unused=True)
    except Exception as error:
        reason = said(error).partition(" (")[0]
    else:
        return [], notes, ""
    cuts: dict[Place, Cut] = {}
    for each in kept:
        found = makers.of(each) if each.history in behind else None
        if found is None or allowed.covers(found) or found.place in cuts:
            continue
        if method := _way_out(step.model, each):
            notes.append(
                f"{each} keeps its graph for the next step ({found.place}), whose backward raises "
                f"unless {method}() lets go of it in between"
            )
            continue
        cuts[found.place] = kept_cut(
            found.place,
            each.module,
            f"{each} is kept for the next step, and its graph with it: the backward of that one "
            "goes on into this one's, which is freed. Keep it detached.",
        )
    if not cuts and len(notes) == given:
        _outside([each for each in outside if each.history in behind], allowed, cuts, notes)
    return list(cuts.values()), list(dict.fromkeys(notes)), reason if cuts else ""


def kept_cut(place: Place, module: str, message: str, derived: tuple[str, ...] = ()) -> Cut:
    return Cut(
        Cause.KEPT, MISSING, None, place.path, place.line, place.function, message,
        modules=(module,) if module else (), derived=derived,
    )  # fmt: skip


def _outside(
    kept: list[Outside], allowed: Allowed, cuts: dict[Place, Cut], notes: list[str]
) -> None:
    """What is held by no module, as cuts and notes; where it has names, what has one alone."""
    for each in [e for e in kept if e.where is not None] or kept:
        name = each.where.name if each.where is not None else "What is computed here"
        place = each.call.place
        if allowed.covers(Suspect(Cause.KEPT, MISSING, each.call, ("out", 0))) or place in cuts:
            continue
        if each.where is not None and (function := each.where.let_go_by(_LETS_GO)):
            notes.append(
                f"{name} keeps its graph for the next step ({place}), whose backward raises unless "
                f"{function}() lets go of it in between"
            )
            continue
        cuts[place] = kept_cut(
            place,
            each.call.module,
            f"{name} is kept for the next step, outside of the model, and its graph with it: the "
            "backward of that one goes on into this one's, which is freed. Keep it detached.",
        )


def _given(step: Step, makers: Makers) -> list[str]:
    """Notes on tensors that the model was given, and has made part of its graph."""
    places = {
        found.place
        for tensor in step.state.given
        if tensor.grad_fn is not None
        if (found := makers.made.get(history_of(tensor))) is not None
    }
    return [
        f"a tensor that the model was given becomes part of the graph at {place}: where the next "
        "step is given the same one, its backward goes on into this step's"
        for place in sorted(places)
    ]


def _way_out(model: nn.Module, kept: Held) -> str:
    """A method by which the module that holds it, or one around it, is told to let go of it."""
    parts = kept.module.split(".") if kept.module else []
    for n in range(len(parts), -1, -1):
        cls = type(model.get_submodule(".".join(parts[:n])))
        for name in dir(cls):
            if _LETS_GO.fullmatch(name) and callable(getattr(cls, name)):
                return f"{cls.__name__}.{name}"
    return ""


class Outside(NamedTuple):
    """A tensor with a history that something beside the modules and the inputs holds."""

    where: Where | None
    history: int
    call: Call


class Makers(Observer):
    """Which call gave a tensor the history it has, and which line made it an attribute."""

    sights = False

    def __init__(self) -> None:
        self.made: dict[int, Call] = {}
        self._attached = Attached()
        self._set: dict[tuple[str, str], tuple[set[int], Place]] = {}

    def after(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor], out: Any) -> Any:
        for tensor in (*tensors_in((out,)), *tensors):
            if tensor.requires_grad:
                self.made.setdefault(history_of(tensor), call)
        self._attached.see(tensors, out)
        return out

    def outside(self, step: Step) -> Iterator[Outside]:
        """What lives on after a backward, and not by the model or its inputs."""
        inside = step.state.lent.union(map(id, step.state.given))
        inside.update(id(tensor) for _, tensor in tensors_held_with_history(step.model))
        for tensor in self._attached.living(inside):
            call = self.made.get(history_of(tensor))
            if call is not None:
                yield Outside(step.state.around.where(tensor), history_of(tensor), call)

    def of(self, kept: Held) -> Suspect | None:
        """The place of what is kept, in the guise of a suspect."""
        call = self.made.get(kept.history)
        if call is None:
            return None
        suspect = Suspect(Cause.KEPT, MISSING, call, ("out", 0))
        histories, place = self._set.get((kept.module, kept.attribute), (set(), None))
        if place is not None and kept.history in histories:
            suspect.place = place
        return suspect

    @contextmanager
    def setting(self, step: Step) -> Iterator[None]:
        """Sees what is assigned to attributes of modules."""
        names = {id(module): name for name, module in step.model.named_modules()}
        original: Callable[..., None] = nn.Module.__setattr__

        def __setattr__(module: nn.Module, attribute: str, value: Any) -> None:
            original(module, attribute, value)
            name = names.get(id(module))
            if name is not None:
                with torch._C.DisableTorchFunction():
                    tensors = [t for t in tensors_within(value, _DEPTH, set()) if t.requires_grad]
                    if tensors:
                        histories = {history_of(tensor) for tensor in tensors}
                        place = step.places.of(sys._getframe(1))
                        self._set[name, attribute] = (histories, place)

        nn.Module.__setattr__ = __setattr__  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            nn.Module.__setattr__ = original  # type: ignore[method-assign]
