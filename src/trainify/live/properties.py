"""Properties that classes get for what their instances hold: weights that were derived once.

Which file is rewritten so is among what an audit has confirmed.  A property is found before what an
instance holds under its name, which stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType

import torch
from torch import Tensor, nn

from ..findings import Proven
from .audit.influence import Walk
from .inplace import original_code
from .makers import made_at, sets
from .reach import CONSTRUCTORS, Member, members
from .rewritten import Definition, Refused, Rewritten, Settings, confirmed, source_of

KIND = "derived"
"""Of a :class:`~trainify.findings.Proven` place."""


@dataclass(frozen=True)
class Property:
    """One that a class gets, by the file as it is rewritten.

    ``makers`` are the methods, constructors among them, that gave instances the attribute.
    """

    owner: type
    name: str
    source: Rewritten
    definition: Definition
    makers: tuple[Member, ...]

    @property
    def written(self) -> property:
        """The property itself; raises :class:`Refused` where it needs locals around the class."""
        code = self.definition.code
        if code.co_freevars:
            raise Refused(f"{self.owner.__qualname__}: it needs a local name of what is around it")
        function = FunctionType(code, self.makers[0].function.__globals__, self.name)
        function.__qualname__ = f"{self.owner.__qualname__}.{self.name}"
        function.__module__ = self.owner.__module__
        return property(function)

    @property
    def rewritten_makers(self) -> tuple[Member, ...]:
        """Those that may be called again, and must not set it."""
        return tuple(maker for maker in self.makers if maker.name not in CONSTRUCTORS)


def properties(cls: type[nn.Module], settings: Settings) -> dict[str, Property]:
    """By ``module:qualified.name``; none where nothing of the kind is confirmed."""
    if not any(each.place.kind == KIND for each in settings.confirmed):
        return {}
    return {
        f"{base.__module__}:{base.__qualname__}.{each.name}": each
        for base in cls.__mro__
        for each in _of(base, settings)
    }


def _of(owner: type, settings: Settings) -> Iterator[Property]:
    found: dict[str, tuple[Rewritten, Definition, list[Member]]] = {}
    for member in members(owner):
        code = original_code(member.function)
        try:
            source = source_of(code, settings)
            changed = source.of(member.function, code)
        except Refused:
            continue
        if changed is None:
            continue
        for name, definition in source.properties_beside(code).items():
            old, new = changed
            if sets(old.node, name) and not sets(new.node, name):
                found.setdefault(name, (source, definition, []))[2].append(member)
    for name, (source, definition, by) in found.items():
        yield Property(owner, name, source, definition, tuple(by))


def refresh(module: nn.Module, cls: type[nn.Module], settings: Settings) -> None:
    """Have a module hold what its properties give now, for whoever reads it without these.

    ``cls`` is the class without them.
    """
    for each in properties(cls, settings).values():
        held = module._buffers if each.name in module._buffers else vars(module)
        old = held.get(each.name)
        if not isinstance(old, Tensor):
            continue
        try:
            with torch.set_grad_enabled(old.grad_fn is not None):
                now = each.written.__get__(module)
        except Exception:  # of what it was made of, something is gone
            continue
        if old.shape != now.shape or not torch.equal(old, now):
            held[each.name] = now if old.grad_fn is not None else now.detach().clone()


def stands_for(module: nn.Module, attribute: str, settings: Settings) -> bool:
    """Whether a module's class gets a property that gives what the module holds."""
    return _given(module, attribute, settings) is not None


def _given(module: nn.Module, attribute: str, settings: Settings) -> Tensor | None:
    """What a module holds, by a property that its class gets; None where that gives another."""
    found = properties(type(module), settings).values()
    for each in (each for each in found if each.name == attribute):
        held = module._buffers.get(attribute, vars(module).get(attribute))
        try:
            now: Tensor = each.written.__get__(module)
            torch.testing.assert_close(now, held, check_layout=False, check_stride=False)
        except Exception:  # it is another, or what it was made of is gone
            return None
        return now
    return None


def computed_from(
    model: nn.Module, weights: Mapping[str, Tensor], attributes: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """Those of the attributes that were computed once, by the names of weights, from some of them.

    The source says so of a statement that a property can stand for, and what that gives is what is
    held, and has the weights in its graph.
    """
    found: dict[str, tuple[str, ...]] = {}
    names = {id(weight): name for name, weight in weights.items()}
    for derived in attributes if names else ():
        path, _, attribute = derived.rpartition(".")
        module = model.get_submodule(path)
        made = made_at(module, attribute)
        if made is None:
            continue
        place = confirmed(made.path, Proven(made.line, KIND))
        with torch.enable_grad():
            now = _given(module, attribute, Settings(confirmed=(place,)))
        for name in () if now is None else sorted(Walk(names).parameters([now])):
            found[name] = (*found.get(name, ()), derived)
    return found
