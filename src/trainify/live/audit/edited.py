"""Weights that a step edits after it has used them, so that backward computes with others.

Autograd has saved the weight itself, not a copy.  Where the edit goes round it, by ``.data`` or
NumPy, nothing raises: what comes before the weight gets the gradient of another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .compared import Gradients
from .cuts import WRONG, Suspect
from .report import Cause
from .runs import Step
from .saved import Saved, Saving, is_weight, saved_by
from .trace import Call, Observer, Trace, Tracer


def edited_weights(step: Step, base: Trace) -> list[Suspect]:
    """The calls of a trace that have saved weights which are others when backward asks for them.

    None where that bends no gradient.
    """
    edits = _Edits()
    found = Gradients(step, observer=edits)
    calls = [(base.by_key.get(call.key), number) for call, number in edits.overwritten()]
    if not calls:
        return []
    names = found.differ(Gradients(step, observer=_Apart()))
    suspects = [
        Suspect(Cause.SAVED, WRONG, call, ("weight", number), hidden=True)
        for call, number in calls
        if call is not None
    ]
    for each in suspects:
        each.parameters.update(names or ())
    return suspects if names else []


class _Edits(Observer):
    """Holds weights that are saved against what backward finds in their place."""

    sights = False

    def __init__(self) -> None:
        self._saved: Saved | None = None

    @contextmanager
    def watching(self, tracer: Tracer) -> Iterator[None]:
        self._saved = Saved(tracer.trace, weights=True)
        with Saving(tracer, self._saved.told, self._saved.taken):
            yield

    def after(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor], out: Any) -> Any:
        if self._saved is not None:
            self._saved.done(call, tensors, out)
        return out

    def overwritten(self) -> list[tuple[Call, int]]:
        return self._saved.overwritten() if self._saved is not None else []


class _Apart(Observer):
    """Has autograd save copies of weights, which nobody can write into."""

    sights = False

    @contextmanager
    def watching(self, tracer: Tracer) -> Iterator[None]:
        def pack(tensor: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():
                return tensor.detach().clone() if is_weight(tensor) else tensor.detach()

        with saved_by(pack, lambda tensor: tensor):
            yield
