"""Weights that a step trains nobody's parameters with: in lists, dicts and plain attributes.

``nn.Module`` registers what is assigned to its attributes, and looks into no list or dict.  Such
weights get gradients like others, and no optimizer that is given ``parameters()`` has them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ...facts.walk import walk
from .places import Place, parsed
from .report import patterns
from .trace import nodes_behind

_DEPTH = 4
"""How deep weights are looked for in what a module holds: lists, dicts and objects."""

_MANAGES = ("param", "optim")
"""In the name of a method by which a class says itself what is to be trained."""


@dataclass(frozen=True)
class Hidden:
    """A leaf that requires a gradient, and is in no module's parameters."""

    name: str
    """As a registered one would be called: ``layers.0.weight``."""
    place: Place | None
    """Where the attribute is set that holds it."""
    meant: bool
    """Whether it may be kept apart on purpose."""


def hidden_in(model: nn.Module) -> dict[int, Hidden]:
    """What the attributes of modules hold, by id, with how it is held."""
    own = {id(parameter) for parameter in model.parameters()}
    found: dict[int, Hidden] = {}
    managed: set[int] = set()
    for prefix, module in model.named_modules():
        cls: type = type(module)
        if _is_torchs(cls):  # a wrapper, say, that keeps flat copies
            continue
        for attribute, value in vars(module).items():
            if attribute in _REGISTRIES:
                continue
            for path, leaf in _leaves(value, _DEPTH, {id(module)}, managed):
                if id(leaf) in own or id(leaf) in found or not leaf.requires_grad:
                    continue
                name = ".".join(filter(None, (prefix, attribute, path)))
                meant = not isinstance(leaf, nn.Parameter) or _is_single(value)
                meant = meant or _manages(cls)
                found[id(leaf)] = Hidden(name, _set_at(cls, attribute), meant)
    return {key: each for key, each in found.items() if key not in managed}


def reached_by(loss: Tensor, hidden: Mapping[int, Hidden]) -> list[Hidden]:
    """Those that a backward of the loss would leave a gradient in."""
    if not hidden or not loss.requires_grad:
        return []
    leaves = {id(getattr(node, "variable", None)) for node in nodes_behind([loss.grad_fn], {})}
    return [each for key, each in hidden.items() if key in leaves]


def said_of(hidden: Iterable[Hidden]) -> str:
    """Their names, and where they are made part of a module."""
    hidden = list(hidden)
    places = dict.fromkeys(str(each.place) for each in hidden if each.place is not None)
    where = f" ({', '.join(places)})" if places else ""
    return (
        f"{', '.join(patterns(each.name for each in hidden))}{where}: the gradient goes there, and "
        "`parameters()` does not have them, so that no optimizer trains them"
    )


_REGISTRIES = frozenset(vars(nn.Module()))


def _is_single(value: Any) -> bool:
    """Whether it is a module by itself, or the only one in a list, which is how one is hidden."""
    if isinstance(value, (list, tuple)) and len(value) == 1:
        (value,) = value
    return isinstance(value, nn.Module)


@lru_cache(maxsize=256)
def _manages(cls: type) -> bool:
    return any(
        part in name and callable(value)
        for each in cls.__mro__
        if not _is_torchs(each)
        for name, value in vars(each).items()
        for part in _MANAGES
    )


def _leaves(
    value: Any, depth: int, seen: set[int], managed: set[int]
) -> Iterator[tuple[str, Tensor]]:
    """The leaves in a value, with the way to each."""
    if isinstance(value, Tensor):
        if value.is_leaf:
            yield "", value
        return
    if depth == 0 or type(value) in _PLAIN or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Optimizer):
        managed.update(id(each) for group in value.param_groups for each in group["params"])
    elif isinstance(value, nn.Module):
        yield from value.named_parameters()
    else:
        for key, each in [(k, e) for k, e in _inner(value) if type(e) not in _PLAIN]:
            for path, leaf in _leaves(each, depth - 1, seen, managed):
                yield f"{key}.{path}" if path else str(key), leaf


_PLAIN = frozenset({str, bytes, int, float, complex, bool, type, type(None)})
"""Types of which a vocabulary, or a list of data, holds many."""


def _inner(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    held = getattr(value, "__dict__", None)
    if not isinstance(held, dict) or callable(value) or _is_torchs(type(value)):
        return ()
    return held.items()


def _is_torchs(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "torch"


@lru_cache(maxsize=256)
def _set_at(cls: type, attribute: str) -> Place | None:
    """The first line at which a class, or a base, assigns an attribute of its own."""
    for each in cls.__mro__:
        path = getattr(sys.modules.get(each.__module__), "__file__", None)
        tree = parsed(path) if path else None
        for node in walk(tree) if tree else ():
            if isinstance(node, ast.ClassDef) and node.name == each.__name__:
                for function in node.body:
                    line = _assigns(function, attribute)
                    if line and isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        return Place(str(path), line, f"{each.__qualname__}.{function.name}")
    return None


def _assigns(function: ast.stmt, attribute: str) -> int:
    lines = [
        node.lineno
        for node in walk(function)
        if isinstance(node, ast.Attribute)
        and node.attr == attribute
        and isinstance(node.ctx, ast.Store)
    ]
    return min(lines, default=0)
