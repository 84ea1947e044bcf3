"""Reference functions with the backward that strategy ``attach`` writes for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from ..catalog import CONSTANTS
from ..reference.backward import CLOSED_FORMS
from ..reference.double import exact_in_double
from .closed_form import Closed
from .equivalent import Equivalent, reference_functions


class ClosedForm(torch.autograd.Function):
    """``ClosedForm.apply(function, *args)``: the function, its closed form as the backward.

    ``args`` are all arguments of the function, by position.
    """

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], *args: Any) -> Any:
        results = function(*args)
        ctx.function, ctx.args, ctx.results = function, args, results
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        closed = reference_functions()[CLOSED_FORMS[ctx.function.__name__]]
        parameters = list(inspect.signature(closed).parameters)
        named = [p for p in parameters if p.startswith("grad")]
        results = ctx.results if isinstance(ctx.results, tuple) else (ctx.results,)
        values = dict(zip(named, grads, strict=True))
        values |= {g.partition("_")[2] or "out": r for g, r in zip(named, results, strict=True)}
        of = inspect.signature(ctx.function).parameters
        values |= dict(zip(of, ctx.args, strict=False))
        with exact_in_double():  # no mode around torch.autograd.grad reaches here
            gradients = closed(**{p: values[p] for p in parameters if p in values})
        trained = [
            name
            for name, p in of.items()
            if "torch.Tensor" in str(p.annotation) and name not in CONSTANTS
        ]
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        by_name = dict(zip(trained, gradients, strict=True))
        return None, *(by_name.get(name) for name in of)


def with_closed_form(equivalent: Equivalent) -> Callable[[dict[str, Any]], list[Any]] | None:
    """The equivalent with the backward that is attached; None where that is its own gradient.

    As the rewriting does, a closed form is taken where the equivalent is one call over names.
    """
    closed = Closed.of(equivalent)
    if closed is None:
        return None

    def run(given: dict[str, Any]) -> list[Any]:
        applied = (closed.function, *closed.arguments(given))
        results = ClosedForm.apply(*applied)  # type: ignore[no-untyped-call]
        return list(results) if isinstance(results, tuple) else [results]

    return run
