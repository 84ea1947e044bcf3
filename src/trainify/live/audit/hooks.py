"""Hooks on parameters and modules: what a gradient is made there is what arrives.

A copy of a model has none of them, so that a proof on the copy says nothing of these gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from .places import Place, qualified
from .report import patterns


class Hooks:
    """Those that are there before the model runs; what a forward adds is seen as it is added."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.bent: dict[str, dict[str, None]] = {}
        """The parameters whose gradient is made another, and by which hooks."""
        self._hooks = [
            (name, hooks, list(hooks))
            for name, parameter in parameters.items()
            if (hooks := parameter._backward_hooks)
        ]
        self._later = {
            name: dict.fromkeys(map(_where, hooks.values()))
            for name, parameter in parameters.items()
            if (hooks := parameter._post_accumulate_grad_hooks)
        }

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Around a backward: see which of them return something else than they are given."""
        instead = [
            (hooks, key, self._watching(name, hooks[key]))
            for name, hooks, keys in self._hooks
            for key in keys
            if key in hooks
        ]
        with _replaced(instead):
            yield

    def _watching(self, name: str, hook: Any) -> Callable[[Tensor], Any]:
        def watched(gradient: Tensor) -> Any:
            found, bends = watch(hook, gradient)
            if bends:
                self.bent.setdefault(name, {})[_where(hook)] = None
            return found

        return watched

    def notes(self) -> Iterator[str]:
        """What a report is to say of them."""
        if self.bent:
            bent = {name: self.bent[name] for name, _, _ in self._hooks if name in self.bent}
            yield (
                f"the gradient of {_listed(bent)} is not the derivative of the loss, as it "
                f"should be: hooks on it make it another ({_places(bent)})"
            )
        if self._later:
            yield (
                f"what hooks make of the gradient of {_listed(self._later)} once it has arrived "
                f"({_places(self._later)}) was not looked at: they were not run"
            )


@contextmanager
def on_modules_watched(
    modules: Iterable[nn.Module], bending: Callable[[Place], object]
) -> Iterator[None]:
    """Around a forward: ``bending`` is told of backward hooks on modules.

    Of those that give another gradient than they are given, once backward comes to them.
    """
    instead = [
        (hooks, key, _on_module(hook, bending))
        for module in modules
        for hooks in (module._backward_hooks, module._backward_pre_hooks)
        for key, hook in hooks.items()
    ]
    with _replaced(instead):
        yield


@contextmanager
def _replaced(hooks: Sequence[tuple[Any, Any, Any]]) -> Iterator[None]:
    """Other hooks, by dict and key, for a while; those that are removed meanwhile stay so."""
    undo = [(held, key, held[key]) for held, key, _ in hooks]
    for held, key, other in hooks:
        held[key] = other
    try:
        yield
    finally:
        for held, key, hook in undo:
            if key in held:
                held[key] = hook


def _on_module(hook: Any, bending: Callable[[Place], object]) -> Callable[..., Any]:
    def watched(module: nn.Module, given: Any, *others: Any) -> Any:
        found = hook(module, given, *others)
        if found is not None and not all(
            now is before or (now is not None and before is not None and now.equal(before))
            for now, before in zip(_listed_of(found), _listed_of(given), strict=False)
        ):
            bending(_place(hook))
        return found

    return watched


def _listed_of(gradients: Any) -> Iterable[Any]:
    return gradients if isinstance(gradients, tuple) else (gradients,)


@contextmanager
def none_later(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Nothing happens once gradients have arrived: that may be the step of an optimizer."""
    held: list[tuple[Any, Any]] = [(p, p._post_accumulate_grad_hooks) for p in parameters]
    held = [(parameter, hooks) for parameter, hooks in held if hooks]
    for parameter, _ in held:
        parameter._post_accumulate_grad_hooks = {}
    try:
        yield
    finally:
        for parameter, hooks in held:
            parameter._post_accumulate_grad_hooks = hooks


def watch(hook: Any, gradient: Tensor) -> tuple[Any, bool]:
    """What a hook returns, and whether the gradient goes on as another."""
    version = gradient._version
    found = hook(gradient)
    written = gradient._version != version
    another = isinstance(found, Tensor) and found is not gradient and not found.equal(gradient)
    return found, written or another


def _where(hook: Any) -> str:
    """The line at which the code of a hook begins; the name of one without code in Python."""
    place = _place(hook)
    return str(place) if place.line else place.function


def _place(hook: Any) -> Place:
    while hasattr(hook, "func"):  # a partial
        hook = hook.func
    code = getattr(hook, "__code__", None) or getattr(type(hook).__call__, "__code__", None)
    if code is not None:
        return Place(code.co_filename, code.co_firstlineno, qualified(code))
    return Place("?", 0, str(getattr(hook, "__name__", type(hook).__name__)))


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(patterns(list(names)))


def _places(found: Mapping[str, Mapping[str, None]]) -> str:
    return ", ".join(dict.fromkeys(place for places in found.values() for place in places))
