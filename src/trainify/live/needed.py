"""Which models need a module changed: an actor and a critic may have one trunk."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import nn

from .swap import Plan

_Need = tuple[weakref.ref[nn.Module], Plan]

_needs: dict[int, list[_Need]] = {}


def settle(model: nn.Module, changed: Iterable[tuple[nn.Module, Plan]]) -> None:
    """A model needs this from now on; what it and models in it needed before, no more."""
    _let_go(model, part_of=False)
    for module, plan in changed:
        key = id(module)
        if key not in _needs:
            weakref.finalize(module, _needs.pop, key, None).atexit = False
        _needs.setdefault(key, []).append((weakref.ref(model), plan))


def let_go(model: nn.Module) -> None:
    """Nothing in a model is needed any more by itself, by models in it, or by those that it is in.

    Where a module of it is a part of yet another model, that goes on needing it.
    """
    _let_go(model, part_of=True)


def _let_go(model: nn.Module, part_of: bool) -> None:
    parts = list(model.modules())
    inside = {id(part) for part in parts}

    def is_over(root: nn.Module | None) -> bool:
        if root is None or id(root) in inside:
            return True
        return part_of and any(part is model for part in root.modules())

    for part in parts:
        if id(part) in _needs:
            _needs[id(part)] = [each for each in _needs[id(part)] if not is_over(each[0]())]


def plan_for_all(module: nn.Module, plan: Plan | None) -> Plan | None:
    """A plan, and what those that need the module need besides."""
    for root, other in _needs.get(id(module), ()):
        if root() is not None:
            plan = other if plan is None else _both(plan, other)
    return plan


def _both(plan: Plan, other: Plan) -> Plan:
    """Kernels have one backward however functions are rewritten; these are so in one way."""
    if plan.settings != other.settings:
        other = replace(other, methods=(), helpers=())
    return Plan(
        plan.settings,
        methods=_united(plan.methods, other.methods),
        helpers=_united(plan.helpers, other.helpers),
        ops=_united(plan.ops, other.ops),
        symbols=_united(plan.symbols, other.symbols),
        own=_united(plan.own, other.own),
    )


def _united(names: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*names, *others)))
