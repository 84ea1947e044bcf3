"""Backwards that somebody wrote, held against finite differences where they are called.

An ``autograd.Function`` or an op of a library is called once more with inputs a little off, so that
a wrong formula is found together with its place.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils._pytree import tree_map

from .casts import edge_of
from .near import TIMES, from_near
from .parts import has_parts, of_precision, parts
from .places import Place
from .saved import out_of_sight
from .trace import Call, Key, Observer, tensors_in

_STEPS = (1e-2, 2.5e-3)
"""Relative to the size of the input."""
_TOLERANCE = 2e-2
_ROUNDED = 0.2
"""The share of a gradient that rounding may take, to eight bits at least."""
LARGEST = 1 << 24
"""Elements; a call on larger tensors would take too much memory to be repeated."""


class Verdict(enum.Enum):
    RIGHT = "right"
    WRONG = "wrong"
    NONE = "none"
    """No gradient comes back, though the result depends on the input."""
    RAISES = "raises"
    OVERWRITES = "overwrites"
    """Backward writes into the gradient that it is given, which may be that of others as well."""
    SURROGATE = "surrogate"
    """The result does not depend on the input (it is rounded, say), or is the input."""
    UNCLEAR = "unclear"


@dataclass
class Finding:
    """What is wrong with the backward of a call: for which of its tensors, or what it raises."""

    call: Call
    verdict: Verdict
    inputs: tuple[int, ...]
    error: str = ""


class LocalChecks(Observer):
    """Checks each function and op, at each place once, at the first call that wants a gradient."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.shaped: list[Place] = []
        """Where the backward is another on purpose: the result is the input, or is rounded."""
        self.checked: set[tuple[Any, ...]] = set()

    def before(self, call: Call, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        if not (call.opaque or _is_function(call.function)) or not call.grad:
            return
        wanted = [i for i, t in enumerate(tensors) if t.requires_grad and has_parts(t)]
        site = site_of(call.key)
        if not wanted or site in self.checked or sum(t.numel() for t in tensors) > LARGEST:
            return
        self.checked.add(site)
        function = _apply(call.function)
        devices = {t.device.index for t in tensors if t.is_cuda}
        with (
            torch.random.fork_rng(devices=devices),
            torch.enable_grad(),
            out_of_sight(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            for finding in _check(call, function, args, kwargs, tensors, wanted):
                if finding.verdict is Verdict.SURROGATE:
                    self.shaped.append(call.place)
                else:
                    self.findings.append(finding)


def site_of(key: Key) -> tuple[Any, ...]:
    """What calls at the same place, of the same function, have in common."""
    return key[:3]


def _is_function(function: Any) -> bool:
    return (
        isinstance(function, type)
        and issubclass(function, torch.autograd.Function)
        and function is not BackwardHookFunction  # which is seen by the hooks themselves
    )


def _apply(function: Any) -> Callable[..., Any]:
    return function.apply if _is_function(function) else function  # type: ignore[no-any-return]


def _check(
    call: Call,
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    tensors: Sequence[Tensor],
    wanted: Sequence[int],
) -> Iterator[Finding]:
    for dtype in (torch.float64, torch.float32, None):
        trial = Trial(function, args, kwargs, tensors, wanted, dtype)
        try:
            trial.results(trial.values)
        except Exception:  # it does not take this type
            continue
        break
    else:
        return
    if trial.returns_input():
        yield Finding(call, Verdict.SURROGATE, tuple(wanted))
        return
    try:
        gradients = trial.gradients()
    except _NoGraph:
        return  # which is what the trace sees as well
    except Exception as error:
        yield Finding(call, Verdict.RAISES, tuple(wanted), f"{error}".partition("\n")[0])
        return
    if trial.overwrites:
        yield Finding(call, Verdict.OVERWRITES, tuple(wanted))
    verdicts = {i: trial.verdict(i, gradient) for i, gradient in gradients.items()}
    if dtype is torch.float64:
        near = [i for i, gradient in gradients.items() if gradient is not None]
        near = [i for i in near if verdicts[i] in (Verdict.RIGHT, Verdict.WRONG)]
        for i, right in from_near(trial, near).items() if near else ():
            if right:
                verdicts[i] = Verdict.RIGHT  # from afar it has a kink, say
            elif verdicts[i] is Verdict.RIGHT:
                verdicts[i] = trial.wrong(i, gradients[i])
    for verdict in (Verdict.NONE, Verdict.WRONG, Verdict.SURROGATE):
        inputs = tuple(i for i, found in verdicts.items() if found is verdict)
        if inputs:
            yield Finding(call, verdict, inputs)


class _NoGraph(Exception):
    pass


class Trial:
    """A call that can be made with other values, of one element type."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        tensors: Sequence[Tensor],
        wanted: Sequence[int],
        dtype: torch.dtype | None,
    ) -> None:
        self._function = function
        self._args, self._kwargs = args, kwargs
        self._tensors = list(tensors)
        self._wanted = wanted
        self._state = torch.get_rng_state()
        self.values = [
            t.detach().to(of_precision(t.dtype, dtype)) if dtype and has_parts(t) else t.detach()
            for t in tensors
        ]
        self.weights: list[Tensor] = []
        self.overwrites = False
        """Whether backward has written into what it was given."""
        self._larger: dict[int, Tensor | None] = {}
        """Gradients of a larger projection."""

    def results(self, values: Sequence[Tensor], attach: bool = False) -> list[Tensor]:
        """What is returned, and what the arguments hold afterwards where they were written."""
        torch.set_rng_state(self._state)
        given = [
            value.clone().requires_grad_().clone()
            if attach and i in self._wanted
            else value.clone()
            for i, value in enumerate(values)
        ]
        self._leaves = {}
        if attach:
            for i in self._wanted:
                self._leaves[i] = leaf = values[i].clone().requires_grad_()
                given[i] = leaf.clone()
        replaced = {id(t): new for t, new in zip(self._tensors, given, strict=True)}
        args, kwargs = tree_map(
            lambda each: replaced.get(id(each), each), (self._args, self._kwargs)
        )
        out = self._function(*args, **kwargs)
        found = [t for t in tensors_in((out,)) if has_parts(t)]
        arguments = {id(t) for t in found}
        for value, now in zip(values, given, strict=True):
            if has_parts(now) and id(now) not in arguments:
                if not torch.equal(now.detach(), value):
                    found.append(now)
        return found

    def returns_input(self) -> bool:
        """Whether all it does is to pass a tensor on: then its backward is meant to be another."""
        results = self.results(self.values)
        return len(results) == 1 and any(
            results[0].shape == value.shape
            and results[0].dtype == value.dtype
            and torch.equal(results[0].detach(), value)
            for value in self.values
        )

    def gradients(self, times: float = 1.0, seed: int | None = None) -> dict[int, Tensor | None]:
        """By the index of the tensor, of so many times a projection of the results.

        With a ``seed`` random numbers in backward begin with that.
        """
        results = self.results(self.values, attach=True)
        self._draw(results)
        pairs = [
            (result, weight.to(result.dtype))
            for result, weight in zip(results, self.weights, strict=True)
            if result.requires_grad
        ]
        if not pairs:
            raise _NoGraph
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        given = [times * weight for _, weight in pairs]
        found = torch.autograd.grad(
            [edge_of(result) for result, _ in pairs],
            [edge_of(leaf) for leaf in self._leaves.values()],
            given,
            allow_unused=True,
        )
        self.overwrites = not all(
            torch.equal(now, times * weight) for now, (_, weight) in zip(given, pairs, strict=True)
        )
        return dict(zip(self._leaves, found, strict=True))

    def _draw(self, results: Sequence[Tensor]) -> None:
        generator = torch.Generator().manual_seed(0)
        kinds = [of_precision(result.dtype, torch.float64) for result in results]
        self.weights = [
            torch.randn(result.shape, generator=generator, dtype=kind).to(result.device)
            for result, kind in zip(results, kinds, strict=True)
        ]

    def verdict(self, i: int, gradient: Tensor | None) -> Verdict:
        """Whether a gradient is the derivative, in two directions."""
        generator = torch.Generator().manual_seed(1)
        verdicts = set()
        value = self.values[i]
        if value.numel() == 0:
            return Verdict.RIGHT
        for along_gradient in (True, False):
            kind = of_precision(value.dtype, torch.float32)
            direction = torch.randn(value.shape, generator=generator, dtype=kind).to(value)
            if along_gradient and gradient is not None and gradient.norm() > 0:
                direction = gradient.to(value) / gradient.norm() * value.numel() ** 0.5
            size = self.size(i)
            slopes = [self.slope(i, direction, size * step) for step in _STEPS]
            told = 0.0 if gradient is None else _dot(gradient, direction)
            found = _judge(told, slopes, gradient is None)
            if found is Verdict.WRONG:
                found = _judge(told, slopes, False, self._rounding(i, gradient, direction))
            verdicts.add(found)
        for found in (Verdict.UNCLEAR, Verdict.SURROGATE, Verdict.NONE, Verdict.WRONG):
            if found in verdicts:
                return self.wrong(i, gradient) if found is Verdict.WRONG else found
        return Verdict.RIGHT

    def wrong(self, i: int, gradient: Tensor | None) -> Verdict:
        """What to think of a gradient that is another than the derivative."""
        return Verdict.SURROGATE if self._passes_on(i, gradient) else Verdict.WRONG

    def _rounding(self, i: int, gradient: Tensor | None, direction: Tensor) -> float:
        """What backward may have rounded away along a direction: seen where it is not linear."""
        if gradient is None:
            return 0.0
        if not self._larger:
            self._larger = self.gradients(TIMES)
        larger = self._larger[i]
        if larger is None:
            return 0.0
        share = ((larger - TIMES * gradient).norm() / larger.norm()).item()
        return 4 * share * float((gradient * direction).norm()) if share <= _ROUNDED else 0.0

    def _passes_on(self, i: int, gradient: Tensor | None) -> bool:
        """Whether the gradient is passed on as if less, or nothing, had been clipped or masked.

        What is left of the value is the value, and gets its gradient; what is not does not depend
        on it, and may get any.
        """
        value, (weight, *others) = self.values[i], self.weights
        if gradient is None or others or gradient.shape != weight.shape:
            return False
        moved = list(self.values)
        moved[i] = value + 1e-3 * _STEPS[-1] * self.size(i)
        with torch.no_grad():
            (now,), (then,) = self.results(self.values), self.results(moved)
        if now.shape != value.shape or now.dtype != value.dtype:
            return False
        constant = now == then
        passed = (now == value) & (gradient == weight.to(gradient))
        return bool((passed | constant).all()) and bool((passed & ~constant).any())

    def size(self, i: int) -> float:
        """The usual size of the numbers in a tensor."""
        return parts(self.values[i]).double().square().mean().sqrt().item() or 1.0

    def slope(self, i: int, direction: Tensor, step: float) -> float:
        """The difference quotient of the projection."""
        ends = []
        for sign in (1, -1):
            values = list(self.values)
            values[i] = values[i] + direction * (sign * step)
            with torch.no_grad():
                results = self.results(values)
            if len(results) != len(self.weights):
                return float("nan")
            ends.append(sum(_dot(r, w) for r, w in zip(results, self.weights, strict=True)))
        return (ends[0] - ends[1]) / (2 * step)


def _judge(told: float, slopes: Sequence[float], none: bool, rounding: float = 0.0) -> Verdict:
    wide, narrow = slopes
    uncertain = abs(wide - narrow)
    largest = max(abs(told), abs(narrow))
    if not uncertain <= 0.1 * largest + 1e-12:
        return Verdict.UNCLEAR
    if abs(told - narrow) <= _TOLERANCE * largest + 4 * uncertain + rounding + 1e-9:
        return Verdict.RIGHT
    if abs(narrow) <= 1e-6 * abs(told):
        return Verdict.SURROGATE
    return Verdict.NONE if none else Verdict.WRONG


def _dot(a: Tensor, b: Tensor) -> float:
    return float((parts(a.detach()).double() * parts(b).double()).sum())
