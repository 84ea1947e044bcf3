"""Classes with other methods, for modules that are built already.

A module changes its class, never its instance ``forward``: so it stays an instance of what it was,
other modules of the same class stay as they are, and what copies or pickles it keeps the change.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from .decorators import around, layers
from .rewritten import Refused, Settings


@dataclass(frozen=True)
class Plan:
    """What is changed for a module, so that another process can do it again.

    ``methods`` and ``helpers`` are ``module:qualified.name`` of functions that are rewritten, in
    its own class, which may get properties besides, and beside it; ``ops`` are registered ops,
    ``symbols`` functions around kernels (``module:name``) that get a backward.  ``own`` are the
    names of ops that were registered with :func:`trainify.register`, without which the same source
    is rewritten to something else.
    """

    settings: Settings = field(default_factory=Settings)
    methods: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.methods or self.helpers or self.ops or self.symbols)


class NotReapplied(UserWarning):
    """A module was loaded, and what made it trainable could not be done again."""


def swapped(cls: type[nn.Module], plan: Plan, methods: dict[type, dict[str, Any]]) -> type:
    """A class like ``cls`` with other methods, by the class that defines them.

    Those of a base class are put before that base, where ``super()`` finds them.  Raises
    :class:`~.rewritten.Refused` where ``cls`` cannot be derived from.
    """
    bases = tuple(
        type(base.__name__, (base,), {**methods[base], "__module__": base.__module__})
        for base in cls.__mro__[1:]
        if base in methods
    )
    namespace = {
        **methods.get(cls, {}),
        "__module__": cls.__module__,
        "__doc__": cls.__doc__,
        "__reduce_ex__": _reduce,
        "__trainify__": (cls, plan),
    }
    if any(isinstance(each, property) for own in methods.values() for each in own.values()):
        namespace["_save_to_state_dict"] = _save_to_state_dict
    try:
        metaclass: Any = type(cls)
        made: type = metaclass(f"Trainable{cls.__name__}", (cls, *bases), namespace)
    except TypeError as error:
        raise Refused(f"{cls.__qualname__} cannot be derived from: {error}") from None
    made.__name__, made.__qualname__ = cls.__name__, cls.__qualname__
    return made


def plan_of(module: nn.Module) -> tuple[type, Plan] | None:
    """The class that a module had, and what was changed; None where nothing was."""
    found: tuple[type, Plan] | None = getattr(type(module), "__trainify__", None)
    return found


def become(module: nn.Module, cls: type) -> None:
    """Change a module's class, and the methods of its old class that it holds itself.

    Libraries that hook into ``forward`` (accelerate) keep the bound method that was there, or what
    they have put around it.
    """
    held = {
        name: (value, *method)
        for name, value in vars(module).items()
        if isinstance(value, (MethodType, FunctionType, partial))
        and (method := _own_method(module, value)) is not None
    }
    module.__class__ = cls
    for name, (value, function, own) in held.items():
        vars(module)[name] = around(value, function, getattr(cls, own))


def _own_method(module: nn.Module, value: Any) -> tuple[Any, str] | None:
    """The method of a module's class that a callable runs, on that module, and its name there."""
    for layer in layers(value):
        if isinstance(layer, MethodType) and layer.__self__ is not module:
            return None
        if isinstance(layer, FunctionType):
            for name in (layer.__name__, *_named(type(module), layer)):
                if getattr(type(module), name, None) is layer:
                    return layer, name
    return None


def _named(cls: type, function: FunctionType) -> Iterator[str]:
    """Under which names a class holds a function; what decorators make need not say it."""
    for base in cls.__mro__:
        yield from (name for name, value in vars(base).items() if value is function)


def without(cls: type) -> type:
    """A class less what :func:`swapped` put into it, whatever was derived from that since."""
    if "__trainify__" in vars(cls):
        original: type = vars(cls)["__trainify__"][0]
        return original
    bases = tuple(without(base) for base in cls.__bases__)
    if bases == cls.__bases__:
        return cls
    return _on(cls, bases)


def beneath(cls: type) -> tuple[type, Callable[[type], type]]:
    """What ``torch.nn.utils.parametrize`` has derived a class from, and how to do so again.

    It takes its own class off a module when the last parametrization goes, and with it whatever is
    derived from that.
    """
    own = getattr(vars(cls).get("__getstate__"), "__module__", None)
    if own != parametrize.__name__:
        return cls, lambda other: other
    return cls.__bases__[0], lambda other: _on(cls, (other,))


def _on(cls: type, bases: tuple[type, ...]) -> type:
    """A class derived from other bases."""
    namespace = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
    made: type = type(cls)(cls.__name__, bases, namespace)
    return made


# -- copies and pickles ---------------------------------------------------------------------------

Build = Callable[..., nn.Module]


def _save_to_state_dict(self: nn.Module, *given: Any) -> None:
    """As the original class would, with buffers as the properties in place of them are now."""
    from .properties import refresh

    original, plan = type(self).__trainify__  # type: ignore[attr-defined]
    refresh(self, original, plan.settings)
    original._save_to_state_dict(self, *given)


def _reduce(self: nn.Module, protocol: int) -> Any:
    """As the original class would, wrapped so that what is loaded is changed again."""
    original, plan = type(self).__trainify__  # type: ignore[attr-defined]
    reduced = super(_holder(type(self)), self).__reduce_ex__(protocol)  # type: ignore[arg-type]
    if isinstance(reduced, str):
        return reduced
    build, args, *rest = reduced
    args = tuple(original if arg is type(self) else arg for arg in args)
    return (_rebuild, (original, plan, build, args), *rest)


def _holder(cls: type) -> type:
    """The class in which :func:`_reduce` stands."""
    return next(each for each in cls.__mro__ if vars(each).get("__reduce_ex__") is _reduce)


def _rebuild(original: type[nn.Module], plan: Plan, build: Build, args: Any) -> nn.Module:
    """What a pickle calls: the plain module, made trainable before it gets its state."""
    from .apply import again
    from .attach import CannotAttach

    module = build(*args)
    try:
        again(module, plan)
    except (Refused, CannotAttach, ImportError) as reason:
        warnings.warn(
            f"{original.__qualname__} was made trainable when it was saved, and is not now: "
            f"{reason}. Call trainify.trainify(model) again",
            NotReapplied,
            stacklevel=2,
        )
    return module
