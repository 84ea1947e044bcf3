"""The gradients of an op that has run: by a formula, or by computing its equivalent again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.fx import Node

from ..catalog import RETURNED
from ..reference.double import exact_in_double
from ..verify.closed_form import Closed
from ..verify.equivalent import Equivalent


def unknown_for(op: str, name: str, value: Any) -> str:
    """That no backward is known where an argument is this; of a tensor, not which."""
    if isinstance(value, (Tensor, Node)):
        return f"{op}: no backward is known where {name} is given"
    return f"{op}: no backward is known for {name}={value!r}"


class Way(Protocol):
    """How the gradients of one call are found."""

    @property
    def reads(self) -> frozenset[str]:
        """The arguments whose values from before the call are needed."""

    @property
    def results(self) -> tuple[int, ...]:
        """The results that are needed, by position."""

    def __call__(
        self,
        arguments: Mapping[str, Any],
        results: Mapping[int, Tensor | None],
        wanted: Sequence[str],
        grads: Sequence[Tensor | None],
    ) -> list[Tensor | None]:
        """The gradients of the arguments ``wanted``, of ``grads`` for the results.

        ``arguments`` and ``results`` are those that are needed, and what is no tensor.  Where
        gradients are recorded (``create_graph=True``), what comes back can be differentiated again.
        """


class Derivative:
    """The gradients of an op; ``results`` name what it gives.

    Those are arguments that it writes, then ``_`` for each value that it returns.
    """

    def __init__(self, equivalent: Equivalent, results: Sequence[str]) -> None:
        self._written = [name for name in results if name != RETURNED]
        self._again = Again(equivalent, tuple(results))
        self._formula: Formula | None = None
        closed = Closed.of(equivalent)
        if closed is not None:
            outputs = equivalent.outputs or [RETURNED] * len(closed.grads)
            places = tuple(place for place in places_of(results, outputs) if place is not None)
            if set(places) == set(range(len(closed.grads))) and len(places) == len(results):
                self._formula = Formula(closed, places)

    def way(self, given: Mapping[str, Any], wanted: Collection[str]) -> Way:
        """The way for a call with these arguments, of which some have a gradient.

        A formula has none for a table, and is for tensors whose rows lie alike, whatever else a
        kernel may take.
        """
        formula = self._formula
        if formula is None or not formula.closed.gives.issuperset(wanted):
            return self._again
        rows = [given[name].shape[:-1] for name in wanted]
        if all(given[n] is None or given[n].shape[:-1] in rows for n in self._written):
            return formula
        return self._again


@dataclass(frozen=True)
class Formula:
    """By a closed form; ``places`` say for each result which of the closed form's it is."""

    closed: Closed
    places: tuple[int, ...]

    @property
    def reads(self) -> frozenset[str]:
        return self.closed.reads

    @property
    def results(self) -> tuple[int, ...]:
        return tuple(i for i, place in enumerate(self.places) if place in self.closed.results)

    def __call__(
        self,
        arguments: Mapping[str, Any],
        results: Mapping[int, Tensor | None],
        wanted: Sequence[str],
        grads: Sequence[Tensor | None],
    ) -> list[Tensor | None]:
        given = dict(zip(self.places, grads, strict=True))
        found = self.closed(
            arguments,
            {self.places[i]: result for i, result in results.items()},
            [given[place] for place in sorted(given)],
        )
        return [found[name] for name in wanted]


@dataclass(frozen=True)
class Again:
    """By autograd, of the equivalent computed once more; in float64 without casts to float32."""

    equivalent: Equivalent
    names: tuple[str, ...]
    results: tuple[int, ...] = ()

    @property
    def reads(self) -> frozenset[str]:
        return self.equivalent.reads

    def __call__(
        self,
        arguments: Mapping[str, Any],
        results: Mapping[int, Tensor | None],
        wanted: Sequence[str],
        grads: Sequence[Tensor | None],
    ) -> list[Tensor | None]:
        create_graph = torch.is_grad_enabled()
        given = dict(arguments)
        double = any(grad is not None and grad.dtype == torch.float64 for grad in grads)
        with torch.enable_grad(), exact_in_double(codes=True) if double else nullcontext():
            for name in wanted:
                # Of its own: one argument may be another, or be computed from it.
                given[name] = (
                    given[name].view_as(given[name])
                    if create_graph
                    else given[name].detach().requires_grad_()
                )
            values = self.equivalent(given)
            more = len(grads) - len(self.names)  # of a list, by which it is one
            places = places_of(
                [*self.names, *[RETURNED] * more],
                self.equivalent.outputs or [RETURNED] * len(values),
            )
            kept = [None if place is None else values[place] for place in places]
            pairs = [
                (result, grad.reshape(result.shape).to(result.dtype))
                for result, grad in zip(kept, grads, strict=True)
                if isinstance(result, Tensor) and result.requires_grad and grad is not None
            ]
        if not pairs:
            return [None] * len(wanted)
        found = torch.autograd.grad(
            [result for result, _ in pairs],
            [given[name] for name in wanted],
            [grad for _, grad in pairs],
            create_graph=create_graph,
            allow_unused=True,
        )
        return list(found)


def places_of(results: Iterable[str], outputs: Sequence[str]) -> list[int | None]:
    """Where each result of an op stands among those of its equivalent."""
    returned = iter([i for i, name in enumerate(outputs) if name == RETURNED])
    written = {name: i for i, name in enumerate(outputs) if name != RETURNED}
    return [next(returned, None) if name == RETURNED else written.get(name) for name in results]
