"""Every closed form: the gradient of its function, in float64 by differences and by autograd."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import trainify.reference
from tests.reference.cases import Case
from tests.reference.every_case import CASES
from trainify.catalog import CONSTANTS
from trainify.reference.backward import CLOSED_FORMS
from trainify.reference.double import exact_in_double
from trainify.verify.attached import ClosedForm

FUNCTIONS: dict[str, types.FunctionType] = {
    name: value
    for info in pkgutil.iter_modules(trainify.reference.__path__)
    for name, value in vars(importlib.import_module(f"trainify.reference.{info.name}")).items()
    if isinstance(value, types.FunctionType)
}
CLOSED = [case for case in CASES if case.function.__name__ in CLOSED_FORMS]
cases = pytest.mark.parametrize("case", CLOSED, ids=str)


def leaves_of(case: Case, args: tuple[Any, ...]) -> list[int]:
    names = list(inspect.signature(case.function).parameters)
    return [
        i
        for i, (name, a) in enumerate(zip(names, args, strict=False))
        if isinstance(a, torch.Tensor) and a.is_floating_point() and name not in CONSTANTS
    ]


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    results = result if isinstance(result, tuple) else (result,)
    return tuple(t for t in results if t is not None)


def complete(case: Case, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """With defaults, so that every parameter of the function gets its gradient.

    What may be left out, and the closed form does not take, is.
    """
    signature = inspect.signature(case.function)
    bound = signature.bind(*args)
    taken = inspect.signature(FUNCTIONS[CLOSED_FORMS[case.function.__name__]]).parameters
    for name, parameter in signature.parameters.items():
        if parameter.default is None and name not in taken:
            bound.arguments[name] = None
    bound.apply_defaults()
    return bound.args


def closed(
    case: Case, args: tuple[Any, ...]
) -> tuple[Callable[..., tuple[torch.Tensor, ...]], list[torch.Tensor]]:
    """The case with its closed form, as a function of what can have a gradient; and that."""
    places = leaves_of(case, args)

    def run(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        full = list(args)
        for place, leaf in zip(places, leaves, strict=True):
            full[place] = leaf
        return tensors(ClosedForm.apply(case.function, *full))

    return run, [args[i].detach().requires_grad_() for i in places]


def test_every_form_names_a_function_that_is_there() -> None:
    assert set(CLOSED_FORMS) | set(CLOSED_FORMS.values()) <= set(FUNCTIONS)
    assert {case.function.__name__ for case in CLOSED} == set(CLOSED_FORMS)


@pytest.mark.parametrize(
    "seeds", [pytest.param(2, id="quick"), pytest.param(6, id="thorough", marks=pytest.mark.slow)]
)
@cases
def test_gradcheck(case: Case, seeds: int) -> None:
    for seed in range(seeds):
        run, leaves = closed(case, complete(case, case.make(seed, torch.float64)))
        with exact_in_double():
            fast = seed > 0 or seeds < 3
            assert torch.autograd.gradcheck(run, leaves, fast_mode=fast)


@cases
def test_gradgradcheck(case: Case) -> None:
    run, leaves = closed(case, complete(case, case.make(1, torch.float64)))
    with exact_in_double():
        assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


def differentiated(run: Callable[..., Any], case: Case, args: tuple[Any, ...]) -> Any:
    """The gradients of what can have one, for the same random weights each time."""
    full, places = list(args), leaves_of(case, args)
    for i in places:
        full[i] = args[i].detach().requires_grad_()
    outputs = tensors(run(*full))
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(o.shape, generator=generator).bfloat16().to(o.dtype) for o in outputs]
    return torch.autograd.grad(outputs, [full[i] for i in places], weights)


def with_closed_form(case: Case) -> Callable[..., Any]:
    return lambda *args: ClosedForm.apply(case.function, *args)


@cases
def test_it_is_autograd_s_to_rounding(case: Case) -> None:
    for seed in range(4):
        args = complete(case, case.make(seed, torch.float32))
        expected = differentiated(case.function, case, args)
        for e, g in zip(expected, differentiated(with_closed_form(case), case, args), strict=True):
            assert g.dtype == e.dtype and g.shape == e.shape
            torch.testing.assert_close(g, e, rtol=1e-4, atol=1e-5)


@cases
def test_it_rounds_no_worse_than_autograd(case: Case) -> None:
    """In bfloat16 the two may lie apart, as far as either lies from what is exact."""
    for seed in range(4):
        args = complete(case, case.make(seed, torch.bfloat16))
        theirs = differentiated(case.function, case, args)
        ours = differentiated(with_closed_form(case), case, args)
        wide = [
            a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args
        ]
        with exact_in_double():
            exact = differentiated(case.function, case, tuple(wide))
        for o, t, e in zip(ours, theirs, exact, strict=True):
            assert o.dtype == t.dtype and o.shape == t.shape
            error, allowed = (o - e).abs().max(), (t - e).abs().max()
            assert error <= 2 * allowed + 0.01 * e.abs().max()


@cases
def test_gradients_are_left_alone(case: Case) -> None:
    """What comes in may be shared with another branch."""
    args = complete(case, case.make(3, torch.float32))
    full = [
        a.detach().requires_grad_() if i in leaves_of(case, args) else a for i, a in enumerate(args)
    ]
    outputs = tensors(ClosedForm.apply(case.function, *full))
    grads = [torch.randn_like(o) for o in outputs]
    before = [g.clone() for g in grads]
    torch.autograd.backward(outputs, grads)
    assert all(torch.equal(g, b) for g, b in zip(grads, before, strict=True))
