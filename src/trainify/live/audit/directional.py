"""The gradient of a whole step, held against finite differences of its loss.

Along a direction v through all parameters, (L(p + v) - L(p - v)) / 2 is the sum of g · v, up to
terms of third order.  Where v is so short that the curvature does not count, and rounding not yet,
one side is enough to see that both agree; to say that they do not it takes two.  v has a share with
the sign of each element's gradient and a share at random, scaled so that each parameter contributes
about the same; what is wrong with one shows in the sum.

In float32 no distance is free of both, so there are several: what the curvature adds grows with the
square of the distance, and what does not fit to that is how far rounding goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.overrides import _pop_mode_temporarily

from .casts import Casting, Move, edge_of
from .compared import arriving, set_aside
from .noise import add_noise, along_noise, is_zero
from .parts import parts
from .places import said
from .runs import Step
from .widen import Widening, widened

_MOST = 48
"""Forwards that are spent on finding the parameters behind a difference."""


@dataclass
class Proof:
    """What could be proven: a sentence, the doubts that are left, and whose gradient is another."""

    said: str = ""
    doubts: list[str] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)
    """By name, both derivatives."""


def prove(step: Step, tell: Callable[[str], None]) -> Proof:
    """Hold the gradients of a step against the differences of its loss.

    The step is computed in float64, in which nothing is rounded to fewer bits on the way: with each
    parameter cast where it is used, or, where that does not show that all is well, on a copy of the
    model.  Where the model does not take float64, its own type has to do.
    """
    tell("directional derivatives in float64")
    real = not any(parameter.is_complex() for parameter in step.parameters.values())
    casts = real and not step.writes and not step.pinned.used
    if casts:
        try:
            proof = _prove(Casting(step), _FINE, "float64", tell, judging=False)
            if proof is not None:
                return proof
        except Exception:  # a module in TorchScript, say, that hides its parameters
            casts = False
    try:
        with Widening(torch.float64):
            wide = _InPlace(widened(step, torch.float64), within=True)
            return _prove(wide, _FINE, "float64", tell) or Proof()
    except Exception as error:  # a kernel that refuses float64, a model that cannot be copied
        reason = said(error)
    if casts:  # a method that is bound to the original, say, which a copy goes on calling
        try:
            return _prove(Casting(step), _CAST, "float64", tell) or Proof()
        except Exception as error:
            reason = said(error)
    if any(parameter.element_size() < 4 for parameter in step.parameters.values()):
        reason = f"in float64, {reason}"
        return Proof(doubts=[f"gradients were not held against finite differences: {reason}"])
    tell("directional derivatives in float32")
    try:
        proof = _prove(_InPlace(step), _COARSE, "float32", tell) or Proof()
    except Exception as error:
        reason = said(error)
        return Proof(doubts=[f"gradients were not held against finite differences: {reason}"])
    if proof.said:
        proof.said += f"; float64 is refused ({reason})"
    return proof


class _Runs(Protocol):
    """Runs of a step in one precision, with parameters as they are or moved."""

    step: Step

    def loss(self) -> Tensor:
        """With its graph."""

    def gradients(self, loss: Tensor) -> Sequence[Tensor | None]:
        """For each parameter."""

    def value(self, moves: Mapping[str, Move]) -> float:
        """The loss once each of these was done to the parameter of that name."""


class _InPlace:
    """Parameters are moved by writing into them.

    ``within`` says that a mode is active, through which the model is to go and what moves it not.
    """

    def __init__(self, step: Step, within: bool = False) -> None:
        self.step = step
        self._aside = _pop_mode_temporarily if within else nullcontext

    def loss(self) -> Tensor:
        return self.step.loss_of_run()

    def gradients(self, loss: Tensor) -> Sequence[Tensor | None]:
        edges = [edge_of(parameter) for parameter in self.step.parameters.values()]
        with set_aside(self.step):
            found = torch.autograd.grad([edge_of(loss)], edges, allow_unused=True)
            return arriving(self.step.parameters.values(), found)

    def value(self, moves: Mapping[str, Move]) -> float:
        def change() -> None:
            with torch.no_grad():
                for name, move in moves.items():
                    move(self.step.parameters[name])

        if self.step.pinned.used:
            return self.step.value(change)
        with self._aside():
            self.step.begin(change)
        return self.step.another_loss().detach().double().item()


@dataclass(frozen=True)
class _Precision:
    step: float
    """Largest change of a parameter, relative to its size."""
    tolerance: float
    """Largest difference that is none, relative to the derivative."""
    near: float = 0.0
    """The share of a step at which one side is enough to agree; 0 where it never is."""
    most: float = 0.0
    """What the tolerance may become where rounding and kinks are seen to go so far."""


_FINE = _Precision(1e-5, 1e-6, 1e-3)
_CAST = _Precision(1e-5, 1e-4, 1e-3)
"""With gradients in float32, where there are no others to hold the differences against."""
_COARSE = _Precision(1e-2, 5e-4, most=3e-2)
_SHARES = (1.0, 0.85, 0.7, 0.55, 0.4, 0.2)
"""Of a step, at which slopes are taken where none of them is free of rounding."""


def _prove(
    runs: _Runs,
    precision: _Precision,
    name: str,
    tell: Callable[[str], None],
    judging: bool = True,
) -> Proof | None:
    """``judging`` says whether it is to be found whose gradient is another, where one is.

    Else other runs are asked that, and nothing is returned, unless these have shown that it cannot
    be told.
    """
    loss = runs.loss()
    if name == "float64" and loss.dtype != torch.float64:
        raise TypeError(f"the loss is {loss.dtype}".replace("torch.", ""))
    value = loss.detach().double().item()
    bent = runs.step.hooks.bent
    with runs.step.backward():
        found = dict(zip(runs.step.parameters, runs.gradients(loss), strict=True))
        del loss
        gradients = {
            name: parts(gradient.detach().to_dense())  # an embedding's may be sparse
            for name, gradient in found.items()
            if gradient is not None and not is_zero(gradient) and name not in bent
        }
        del found
        names = list(gradients)
        directions = _Directions(runs, value, gradients, precision)
    if not names and not judging:
        return None
    if not names and bent:
        return Proof()
    if not names:
        return Proof(doubts=["no gradient is other than zero: there is nothing to compare"])
    verdict = directions.compare(names)
    if verdict.agrees:
        close = max(verdict.error, verdict.spread / max(abs(verdict.told), 1e-300))
        return Proof(f"{name}: the loss changes along {_counted(names)}, to {close:.0e}")
    if not (judging or verdict.is_plainly_unsure(value)):
        return None
    if abs(runs.value({}) - value) > 1e-3 * precision.tolerance * abs(value):
        return Proof(
            doubts=[
                "gradients were not held against finite differences: the loss is not the same in "
                "two equal runs"
            ]
        )
    if not verdict.certain:
        doubt = (
            f"finite differences in {name} say neither yes nor no: they change with the step "
            f"({verdict.measured:.3g} against {verdict.told:.3g}); the loss may have a kink there"
        )
        return Proof(doubts=[doubt])
    tell("parameters whose gradient is another")
    wrong = {
        each: f"{one.told:.6g} against {one.measured:.6g} in {name}"
        for each, one in directions.search(names)
    }
    if wrong:
        return Proof(wrong=wrong)
    doubt = (
        f"along all parameters together the loss changes by another amount in {name} than their "
        f"gradients say ({verdict.measured:.6g} against {verdict.told:.6g}); by which of them it "
        "does was not found"
    )
    return Proof(doubts=[doubt])


def _counted(names: Sequence[str]) -> str:
    if len(names) == 1:
        return "1 parameter as its gradient says"
    return f"{len(names)} parameters as their gradients say"


_LAST_BIT = 2.0**-24
"""Of a loss in float32."""
_CLOSE = 1e-2
"""The share of a step at which curvature makes no difference between two sides."""
_CERTAIN = 10.0
"""How many times what is not known of a slope a difference has to be."""
_PLAIN = 1e-3
"""A relative difference that no gradient has from being rounded to float32."""


def _without_curvature(shares: Sequence[float], slopes: Sequence[float]) -> tuple[float, float]:
    """The slope at no distance, and what is not known of it.

    What curvature adds grows with the square of the distance, what kinks add by less.
    """
    found, spread = _at_zero([share**2 for share in shares], slopes, shares)
    other, _ = _at_zero(shares, slopes, shares)
    return found, max(spread, abs(found - other))


def _at_zero(
    xs: Sequence[float], ys: Sequence[float], shares: Sequence[float]
) -> tuple[float, float]:
    """Where a line through points is at zero, and how far off that may be.

    Rounding is divided by the share, so that points count by its square.
    """
    weights = [share**2 / sum(each**2 for each in shares) for share in shares]

    def mean(values: Sequence[float]) -> float:
        return sum(w * value for w, value in zip(weights, values, strict=True))

    x, y = mean(xs), mean(ys)
    variance = mean([(each - x) ** 2 for each in xs])
    rise = mean([(a - x) * (b - y) for a, b in zip(xs, ys, strict=True)]) / variance
    left = mean([(b - y - rise * (a - x)) ** 2 for a, b in zip(xs, ys, strict=True)])
    return y - rise * x, (left * (1 + x**2 / variance)) ** 0.5


@dataclass
class _Compared:
    told: float
    measured: float
    spread: float
    tolerance: float

    @property
    def error(self) -> float:
        return abs(self.told - self.measured) / max(abs(self.told), abs(self.measured), 1e-300)

    @property
    def agrees(self) -> bool:
        return self.error <= self.tolerance

    @property
    def certain(self) -> bool:
        """Whether a disagreement does not come from the size of the step."""
        return _CERTAIN * self.spread <= abs(self.told - self.measured)

    def is_plainly_unsure(self, loss: float) -> bool:
        """Whether kinks make the difference, and no rounding of values or gradients to float32."""
        finest = self.spread < _LAST_BIT * abs(loss)
        return finest and self.error > _PLAIN and not self.certain


class _Directions:
    """A direction through all parameters, and how the loss should change along it."""

    def __init__(
        self, runs: _Runs, loss: float, gradients: dict[str, Tensor], precision: _Precision
    ) -> None:
        """``gradients`` are taken out one by one: each is freed as its direction is made."""
        self._runs = runs
        self._loss = loss
        self._precision = precision
        self._spent = 0
        self._noise = _LAST_BIT * abs(loss)
        step = runs.step
        padding = {
            id(module.weight): module.padding_idx
            for module in step.model.modules()
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        }
        sums = {name: _sum_of_sizes(gradient) for name, gradient in gradients.items()}
        norms = {n: sums[n] / gradient.numel() ** 0.5 for n, gradient in gradients.items()}
        longest = {name: self._longest(name) for name in gradients}
        reach = sorted(norms[name] * longest[name] for name in gradients)
        common = reach[len(reach) // 2] if reach else 0.0
        self._directions: dict[str, _Direction] = {}
        self._told: dict[str, float] = {}
        for i, name in enumerate(norms):
            gradient = gradients.pop(name)
            length = min(longest[name], common / norms[name]) / 2 / gradient.numel() ** 0.5
            row = padding.get(id(step.parameters[name]))  # not to learn, whatever the loss says
            self._directions[name] = direction = _Direction.of(gradient, i, length, row)
            self._told[name] = direction.along(gradient, sums[name])

    def compare(self, names: Sequence[str]) -> _Compared:
        """Along some of the parameters, the others as they are."""
        told = sum(self._told[name] for name in names)
        tolerance, near = self._precision.tolerance, self._precision.near
        if near:
            slope = (self._moved(names, near) - self._loss) / near
            compared = _Compared(told, slope, 0.0, tolerance)
            if compared.agrees:
                return compared
        compared = _Compared(told, self._slope(names, 1.0), 0.0, tolerance)
        if not compared.agrees and self._precision.most:
            slopes = [compared.measured, *(self._slope(names, each) for each in _SHARES[1:])]
            found, noise = _without_curvature(_SHARES, slopes)
            self._noise = noise = max(noise, self._noise)  # one of the loss, along whatever
            tolerance = max(tolerance, min(_CERTAIN * noise / abs(told), self._precision.most))
            compared = _Compared(told, found, noise, tolerance)
        elif not compared.agrees:
            rounding = torch.finfo(torch.float64).eps * abs(self._loss)
            if max(told, abs(compared.measured)) < rounding:  # and so nothing can be measured
                return _Compared(told, compared.measured, rounding, tolerance)
            half = self._slope(names, 0.5)
            spread = max(abs(half - compared.measured), rounding)
            if spread * _CERTAIN <= abs(told - half):
                spread = max(spread, self._kink(names))
            compared = _Compared(told, half, spread, tolerance)
        return compared

    def _kink(self, names: Sequence[str]) -> float:
        """By how much the slopes on both sides differ where nothing is moved.

        As where values are the same of which the largest is taken: each of them has a right to be
        the one that gets the gradient.
        """
        ahead = self._moved(names, _CLOSE) - self._loss
        behind = self._loss - self._moved(names, -_CLOSE)
        return abs(ahead - behind) / _CLOSE

    def search(self, names: Sequence[str]) -> Iterator[tuple[str, _Compared]]:
        """The parameters that a disagreement comes from, by halves."""
        groups = [list(names)]
        most = _MOST * (3 if self._precision.most else 1)
        while groups and self._spent < most:
            group = groups.pop()
            compared = self.compare(group)
            if compared.agrees or not compared.certain:
                continue
            if len(group) == 1:
                yield group[0], compared
            else:
                middle = len(group) // 2
                groups += [group[middle:], group[:middle]]

    def _longest(self, name: str) -> float:
        parameter = self._runs.step.parameters[name].detach()
        longest: float = max(parameter.norm().item(), 1e-2 * parts(parameter).numel() ** 0.5)
        return self._precision.step * longest

    def _slope(self, names: Sequence[str], share: float) -> float:
        ahead, behind = self._moved(names, share), self._moved(names, -share)
        return (ahead - behind) / (2 * share)

    def _moved(self, names: Sequence[str], by: float) -> float:
        self._spent += 1
        moves = {name: partial(self._directions[name].add_to, by=by) for name in names}
        return self._runs.value(moves)


def _sum_of_sizes(gradient: Tensor) -> float:
    """The sum of its elements' absolute values; torch sums up by halves, so that little is lost."""
    return gradient.abs().sum().item()


_FEW = 1 << 12
"""Elements of which a direction is kept as it is: to make it anew takes eight calls of torch."""


@dataclass(frozen=True)
class _Direction:
    """A direction through one parameter: each element goes with its gradient, and at random."""

    seed: int
    length: float
    sign: Tensor
    """Of the gradient, in eight bits, which is all that has to be kept of it."""
    row: int | None
    """One that stays as it is."""
    made: Tensor | None = None

    @classmethod
    def of(cls, gradient: Tensor, seed: int, length: float, row: int | None) -> _Direction:
        found = cls(seed, length, gradient.sign().to(torch.int8), row)
        if gradient.numel() > _FEW:
            return found
        made = torch.zeros_like(gradient, dtype=torch.float64)
        found.add_to(made, 1.0)
        return replace(found, made=made)

    def add_to(self, tensor: Tensor, by: float) -> None:
        """Move ``tensor`` by a share of the direction."""
        if self.made is not None and tensor.dtype == self.made.dtype:
            tensor.add_(self.made, alpha=by)
            return
        kept = None if self.row is None else tensor[self.row].clone()
        add_noise(tensor, self.seed, self.length * by)
        sign = self.sign
        if tensor.is_complex():
            sign = torch.view_as_complex(sign.to(tensor.real.dtype))
        tensor.add_(sign, alpha=self.length * by)
        if kept is not None:
            tensor[self.row] = kept

    def along(self, gradient: Tensor, sum_of_sizes: float) -> float:
        """The derivative along it."""
        found = sum_of_sizes + along_noise(gradient, self.seed)
        if self.row is not None:
            still = torch.zeros_like(gradient)
            still[self.row] = gradient[self.row]
            found -= _sum_of_sizes(still) + along_noise(still, self.seed)
        return found * self.length
