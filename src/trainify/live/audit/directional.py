"""The gradient of a whole step, held against finite differences of its loss.

Along a direction v through all parameters, (L(p + v) - L(p - v)) / 2 is the sum of g · v, up to
terms of third order.  Where v is so short that the curvature does not count, and rounding not yet,
one side is enough to see that both agree; to say that they do not it takes two.  v has a share of
each parameter's gradient and a share at random, scaled so that each parameter contributes about the
same; what is wrong with one shows in the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from .noise import is_zero, noise_like
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

    The step is computed in float64, on a copy of the model in which nothing is rounded to fewer
    bits on the way.  Where the model does not take it, its own type has to do.
    """
    tell("directional derivatives in float64")
    try:
        with Widening(torch.float64):
            return _prove(widened(step, torch.float64), _FINE, "float64", tell)
    except Exception as error:  # a kernel that refuses float64, a model that cannot be copied
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    if any(parameter.element_size() < 4 for parameter in step.parameters.values()):
        reason = f"in float64, {reason}"
        return Proof(doubts=[f"gradients were not held against finite differences: {reason}"])
    tell("directional derivatives in float32")
    try:
        proof = _prove(step, _COARSE, "float32", tell)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        return Proof(doubts=[f"gradients were not held against finite differences: {reason}"])
    if proof.said:
        proof.said += f"; float64 is refused ({reason})"
    return proof


@dataclass(frozen=True)
class _Precision:
    step: float
    """Largest change of a parameter, relative to its size."""
    tolerance: float
    """Largest difference that is none, relative to the derivative."""
    near: float = 0.0
    """The share of a step at which one side is enough to agree; 0 where it never is."""


_FINE = _Precision(1e-5, 1e-6, 1e-3)
_COARSE = _Precision(1e-2, 3e-2)


def _prove(step: Step, precision: _Precision, name: str, tell: Callable[[str], None]) -> Proof:
    loss = step.loss_of_run()
    if name == "float64" and loss.dtype != torch.float64:
        raise TypeError(f"the loss is {loss.dtype}".replace("torch.", ""))
    parameters = step.parameters
    found = _gradients(loss, list(parameters.values()))
    gradients = {
        name: gradient.detach()
        for name, gradient in zip(parameters, found, strict=True)
        if gradient is not None and not is_zero(gradient)
    }
    if not gradients:
        return Proof(doubts=["no gradient is other than zero: there is nothing to compare"])
    value = loss.detach().double().item()
    del loss, found
    names = list(gradients)
    directions = _Directions(step, value, gradients, precision)
    verdict = directions.compare(names)
    if verdict.agrees:
        return Proof(
            f"{name}: the loss changes along {len(names)} parameters as their gradients say, "
            f"to {verdict.error:.0e}"
        )
    if not verdict.certain:
        doubt = (
            f"finite differences in {name} say neither yes nor no: they change with the step "
            f"({verdict.measured:.3g} against {verdict.told:.3g}); the loss may have a kink there"
        )
        return Proof(doubts=[doubt])
    tell("parameters whose gradient is another")
    return Proof(
        wrong={
            each: f"{one.told:.6g} against {one.measured:.6g} in {name}"
            for each, one in directions.search(names)
        }
    )


def _gradients(loss: Tensor, parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """As ``torch.autograd.grad``, which a :class:`Widening` would not last through.

    For functions of tensors a mode is set aside; a checkpoint computes again in here.
    """
    edge = torch.autograd.graph.get_gradient_edge
    return torch.autograd.grad([edge(loss)], [edge(p) for p in parameters], allow_unused=True)


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
        return self.spread <= 0.1 * abs(self.told - self.measured)


class _Directions:
    """A direction through all parameters, and how the loss should change along it."""

    def __init__(
        self, step: Step, loss: float, gradients: dict[str, Tensor], precision: _Precision
    ) -> None:
        """``gradients`` are taken out one by one: each is freed as its direction is made."""
        self._step = step
        self._loss = loss
        self._precision = precision
        self._spent = 0
        padding = {
            id(module.weight): module.padding_idx
            for module in step.model.modules()
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        }
        norms = {name: gradient.norm().item() for name, gradient in gradients.items()}
        longest = {name: self._longest(name) for name in gradients}
        reach = sorted(norms[name] * longest[name] for name in gradients)
        common = reach[len(reach) // 2]
        self._directions: dict[str, tuple[Tensor, float]] = {}
        """With what they are to be multiplied by."""
        self._told: dict[str, float] = {}
        for i, name in enumerate(norms):
            gradient = gradients.pop(name)
            length = min(longest[name], common / norms[name]) / 2
            direction = noise_like(gradient, i)
            scale = length / max(direction.numel(), 1) ** 0.5
            direction.add_(gradient, alpha=length / norms[name] / scale)
            row = padding.get(id(step.parameters[name]))
            if row is not None:  # it is not to learn, whatever the loss says
                direction[row] = 0
            self._directions[name] = direction, scale
            both = torch.dot(gradient.reshape(-1).double(), direction.reshape(-1).double())
            self._told[name] = both.item() * scale

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
        if not compared.agrees:
            half = self._slope(names, 0.5)
            spread = abs(half - compared.measured)
            compared = _Compared(told, half, spread, tolerance)
        return compared

    def search(self, names: Sequence[str]) -> Iterator[tuple[str, _Compared]]:
        """The parameters that a disagreement comes from, by halves."""
        groups = [list(names)]
        while groups and self._spent < _MOST:
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
        parameter = self._step.parameters[name].detach()
        longest: float = max(parameter.norm().item(), 1e-2 * parameter.numel() ** 0.5)
        return self._precision.step * longest

    def _slope(self, names: Sequence[str], share: float) -> float:
        ahead, behind = self._moved(names, share), self._moved(names, -share)
        return (ahead - behind) / (2 * share)

    def _moved(self, names: Sequence[str], by: float) -> float:
        def change() -> None:
            with torch.no_grad():
                for name in names:
                    direction, scale = self._directions[name]
                    self._step.parameters[name].add_(direction, alpha=by * scale)

        self._spent += 1
        return self._step.value(change)
