"""What the first run of a step looks for on the side, beside what the trace has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from .attributes import Attributes
from .checkpoints import Repeats
from .cuts import MISSING, WRONG, Suspect
from .hooks import on_modules_watched, watch
from .outlived import Attached, Foreign
from .places import Place
from .report import Cause
from .runs import Step, as_in_training
from .saved import Saved, Saving
from .trace import Call, Observer, Tracer, node_of
from .within import Within


class Aside(Observer):
    """For one run, of which the backward follows."""

    arrivals = True

    def __init__(self, step: Step) -> None:
        self._step = step
        self.within = Within(step.places)
        self._saved: Saved | None = None
        self._repeats: Repeats | None = None
        self._attributes: Attributes | None = None
        self._underivable: list[tuple[Call, str]] = []
        self.attached = Attached()
        self.foreign = Foreign()
        self.bending: dict[Place, None] = {}
        """Where the model puts hooks that give another gradient than they are given."""

    @contextmanager
    def watching(self, tracer: Tracer) -> Iterator[None]:
        self._saved = Saved(tracer.trace)
        step = self._step
        self._attributes = Attributes(tracer.trace)
        self._repeats = Repeats(step.modules, step.places, tracer.trace, as_in_training)
        with (
            Saving(tracer, self._saved.told, self._saved.taken),
            self._repeats.watching(),
            self.within.watching(),
            on_modules_watched(step.model.modules(), lambda place: self.bending.setdefault(place)),
        ):
            yield
        self._attributes.end()

    def before(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        self.foreign.take(call, tensors)

    def after(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor], out: Any) -> Any:
        self.attached.see(tensors, out)
        if self._saved is not None:
            self._saved.done(call, tensors, out)
        if self._attributes is not None:
            self._attributes.done(call, out)
        node = node_of(out) if isinstance(out, Tensor) and out._base is None else None
        if node is not None and "NotImplemented" in node.name():
            self._underivable.append((call, node.name()))
        return out

    def hooked(self, call: Call, hook: Any) -> Any:
        def watched(gradient: Tensor) -> Any:
            found, bends = watch(hook, gradient)
            if bends:
                self.bending[call.place] = None
            return found

        return watched

    def repeated(self) -> list[Suspect]:
        """Where checkpoints compute something else in backward than in the forward."""
        found = []
        for call in self._repeats.differing() if self._repeats else ():
            suspect = Suspect(Cause.BACKWARD, WRONG, call, ("out", 0))
            suspect.op, suspect.detail = "torch.utils.checkpoint.checkpoint", "repeated"
            found.append(suspect)
        return found

    def overwritten(self) -> list[Suspect]:
        """What contexts of functions keep as attributes, and something writes into."""
        found = self._attributes.overwritten() if self._attributes else ()
        return [Suspect(Cause.SAVED, WRONG, c, ("kept", n), hidden=True) for c, n in found]

    @property
    def written(self) -> bool:
        """Whether something that was saved has been written into."""
        return self._saved is not None and self._saved.written

    def suspects(self) -> Iterator[Suspect]:
        """Saved tensors that were overwritten, and nodes that cannot be gone through."""
        for call, number in self._saved.overwritten() if self._saved else ():
            yield Suspect(Cause.SAVED, WRONG, call, ("saved", number), hidden=True)
        for call, name in self._underivable:
            suspect = Suspect(Cause.KERNEL, MISSING, call, ("out", 0))
            suspect.detail = "" if "Warn" in name else "raises"
            yield suspect
