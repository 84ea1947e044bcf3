"""The layers around a function: what decorators made of it, taken apart and put together again."""

from __future__ import annotations

import ast
import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from types import CellType, FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch

from .rewritten import Definition, Refused

_SCOPE = re.compile(r"\b(no_grad|inference_mode|set_grad_enabled|enable_grad)\b")


def _function() -> None:
    """Decorated to see what decorating gives."""


def _generator() -> Iterator[None]:
    """The same of a generator."""
    yield


# The code of what every scope of torch's returns.
_SCOPED = frozenset(torch.no_grad()(each).__code__ for each in (_function, _generator))


def innermost(value: Any) -> FunctionType | None:
    """The function that a decorated one, a method or a ``partial`` runs in the end."""
    *_, value = layers(value)
    return value if isinstance(value, FunctionType) else None


def layers(value: Any) -> Iterator[Any]:
    """A callable, and what decorators, methods and ``partial`` have in them, from outside in."""
    yield value
    seen = {id(value)}
    while (value := _inner(value)) is not None and id(value) not in seen:
        seen.add(id(value))
        yield value


def _inner(value: Any) -> Any:
    """One layer further in; None where there is none."""
    if isinstance(value, MethodType):  # it has its function's attributes, ``__wrapped__`` as well
        return value.__func__
    for name in ("__wrapped__", "__func__", "fget", "func"):
        inner = getattr(value, name, None)
        if callable(inner) and not isinstance(value, type):
            return inner
    if isinstance(value, FunctionType) and "<locals>" in value.__qualname__:
        # A decorator that does not use functools.wraps: the one function that it closes over.
        held = [c for c in _contents(value) if isinstance(c, FunctionType)]
        if len(held) == 1 and value.__name__ != held[0].__name__:
            return held[0]
    return None


def _contents(function: FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            found.append(cell.cell_contents)
    return found


def rewrap(value: Any, old: Definition, new: Definition, function: FunctionType) -> Any:
    """What ``value``, which runs a function, is with another ``function`` in its place.

    The layers around it stay, but for grad modes that the new definition has no more, or has
    otherwise.  Raises :class:`Refused` where they cannot be told apart.
    """
    scopes = _scopes(value)
    left, right = (list(map(ast.unparse, d.node.decorator_list)) for d in (old, new))
    if left == right:
        return _copy(value, function, {})
    gone = _gone(left, right)
    around_it = list(layers(value))[:-1]
    if gone and len(around_it) == len(left):  # each decorator has put one function around it
        return _copy(value, function, {id(around_it[i]): None for i in gone})
    written = [d for d in left if _SCOPE.search(d)]
    if len(written) != len(scopes):
        raise Refused(f"{old.node.name}: its decorators do not show which of them sets a grad mode")
    others = [d for d in left if not _SCOPE.search(d)]
    if others != [d for d in right if not _SCOPE.search(d)]:
        raise Refused(f"{old.node.name}: a decorator that sets no grad mode would change")
    wanted = [d for d in right if _SCOPE.search(d)]
    if not others:
        inside = _copy(value, function, dict.fromkeys(map(id, scopes)))
        for text in reversed(wanted):
            inside = _evaluate(text, function)(inside)
        return inside
    if wanted and len(wanted) != len(written):
        raise Refused(f"{old.node.name}: a grad mode would come among other decorators")
    made: list[Any] = [_evaluate(text, function) for text in wanted] or [None] * len(scopes)
    return _copy(value, function, dict(zip(map(id, scopes), made, strict=True)))


def _gone(left: list[str], right: list[str]) -> list[int]:
    """Which of some decorators others are without; none where these are not what is left."""
    gone = [i for i, text in enumerate(left) if text not in right]
    return gone if [text for text in left if text in right] == right else []


def around(value: Any, old: Any, new: Any) -> Any:
    """What a callable with ``old`` in it is with ``new`` there; itself where it holds none."""
    if value is old:
        return new
    if isinstance(value, MethodType):
        return MethodType(around(value.__func__, old, new), value.__self__)
    inner = _inner(value)
    inside = None if inner is None else around(inner, old, new)
    if inside is None or inside is inner:
        return value
    if isinstance(value, functools.partial) and value.func is inner:
        return functools.partial(inside, *value.args, **value.keywords)
    if isinstance(value, FunctionType):
        return _copy_around(value, inner, inside)
    held = getattr(value, "__dict__", {})
    if not any(each is inner for name, each in held.items() if name != "__wrapped__"):
        return value
    made = object.__new__(type(value))
    vars(made).update({name: inside if each is inner else each for name, each in held.items()})
    return made


def _scopes(value: Any) -> list[FunctionType]:
    """The layers that set a grad mode, outermost first."""
    found = []
    while value is not None:
        if isinstance(value, FunctionType) and value.__code__ in _SCOPED:
            found.append(value)
        value = _inner(value)
    return found


def rescoped(
    value: Any, old: Definition, new: Definition, function: FunctionType
) -> list[tuple[CellType, Any]]:
    """What to put into which cells of ``value`` so that it sets the new definition's grad modes.

    For a function that has to stay the object it is.  Raises :class:`Refused` where its decorators
    change otherwise.
    """
    left, right = (list(map(ast.unparse, d.node.decorator_list)) for d in (old, new))
    if left == right:
        return []
    scopes = _scopes(value)
    wanted = [d for d in right if _SCOPE.search(d)]
    others = [d for d in left if not _SCOPE.search(d)]
    if others != [d for d in right if not _SCOPE.search(d)] or len(wanted) not in (0, len(scopes)):
        raise Refused(f"{old.node.name}: a decorator would come, or change, that sets no grad mode")
    made: list[Any] = [contextlib.nullcontext] * len(scopes)
    for i, text in enumerate(wanted):
        made[i] = _factory(_evaluate(text, function)(_function)).cell_contents
    return [(_factory(scope), factory) for scope, factory in zip(scopes, made, strict=True)]


def _factory(scope: Any) -> CellType:
    """The cell that holds what makes the context of a layer."""
    cells = dict(zip(scope.__code__.co_freevars, scope.__closure__, strict=True))
    found: CellType = cells["ctx_factory"]
    return found


def _evaluate(text: str, function: FunctionType) -> Callable[[Any], Any]:
    """A grad mode that a fix wrote: ``torch.no_grad()``."""
    decorator: Callable[[Any], Any] = eval(text, function.__globals__)
    return decorator


def _copy(value: Any, function: FunctionType, instead: dict[int, Any]) -> Any:
    """``value`` around another function; ``instead`` has what takes the place of a layer."""
    inner = _inner(value)
    if inner is None:
        return function
    inside = _copy(inner, function, instead)
    if id(value) in instead:
        layer = instead[id(value)]
        return inside if layer is None else layer(inside)
    if isinstance(value, (staticmethod, classmethod)):
        return type(value)(inside)
    if isinstance(value, property):
        return property(inside, value.fset, value.fdel, value.__doc__)
    copy = _copy_around(value, inner, inside) if isinstance(value, FunctionType) else value
    if copy is value:
        raise Refused(f"{_named(value)}: what decorates it is opaque ({type(value).__name__})")
    return copy


def _copy_around(value: FunctionType, inner: Any, inside: Any) -> FunctionType:
    """A function that closes over another one, with that replaced; itself if it does not."""
    if all(each is not inner for each in _contents(value)):
        return value
    cells = tuple(
        CellType(inside) if _holds(cell, inner) else cell for cell in value.__closure__ or ()
    )
    copy = FunctionType(
        value.__code__, value.__globals__, value.__name__, value.__defaults__, cells
    )
    _dress(copy, value)
    if "__wrapped__" in vars(copy):
        copy.__wrapped__ = inside  # type: ignore[attr-defined]
    original = _copied_from.get(value, value)
    _copied_from[copy] = original
    _copies.setdefault(original, WeakSet()).add(copy)
    return copy


def copies_of(function: FunctionType) -> list[FunctionType]:
    """What was made of a function so that it holds another one, and may be in use."""
    return list(_copies.get(function, ()))


_copies: WeakKeyDictionary[FunctionType, WeakSet[FunctionType]] = WeakKeyDictionary()
_copied_from: WeakKeyDictionary[FunctionType, FunctionType] = WeakKeyDictionary()


def _holds(cell: CellType, value: Any) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError:
        return False


def _named(value: Any) -> str:
    return str(getattr(value, "__qualname__", value))


def _dress(function: FunctionType, like: FunctionType) -> None:
    """Give a function what another one shows of itself."""
    function.__kwdefaults__ = like.__kwdefaults__
    function.__annotations__ = like.__annotations__
    function.__doc__ = like.__doc__
    function.__qualname__ = like.__qualname__
    function.__module__ = like.__module__
    function.__dict__.update(like.__dict__)


def renewed(function: FunctionType, old: Definition, new: Definition, owner: type) -> FunctionType:
    """A method of ``owner`` with a new definition: the same namespace, cells and defaults.

    Raises :class:`Refused` where the new definition needs what the old one does not hold.
    """
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells.setdefault("__class__", CellType(owner))
    closure = tuple(cells[name] for name in new.code.co_freevars if name in cells)
    if len(closure) != len(new.code.co_freevars):
        raise Refused(f"{function.__qualname__}: it needs another local name of what is around it")
    made = FunctionType(
        new.code, function.__globals__, function.__name__, function.__defaults__, closure
    )
    _dress(made, function)
    made.__defaults__, made.__kwdefaults__ = defaults(function, old, new)
    return made


def defaults(
    function: FunctionType, old: Definition, new: Definition
) -> tuple[tuple[Any, ...] | None, dict[str, Any] | None]:
    """The defaults under a new definition: those of before, and literals that a fix wrote."""
    before, after = old.node.args, new.node.args
    if ast.dump(before) == ast.dump(after):
        return function.__defaults__, function.__kwdefaults__
    known = dict(function.__kwdefaults__ or {})
    names = [a.arg for a in (*before.posonlyargs, *before.args)]
    values = function.__defaults__ or ()
    known.update(zip(names[len(names) - len(values) :], values, strict=True))
    try:
        names = [a.arg for a in (*after.posonlyargs, *after.args)]
        written = zip(names[len(names) - len(after.defaults) :], after.defaults, strict=True)
        positional = tuple(
            known[name] if name in known else ast.literal_eval(node) for name, node in written
        )
        keywords = {
            a.arg: known[a.arg] if a.arg in known else ast.literal_eval(node)
            for a, node in zip(after.kwonlyargs, after.kw_defaults, strict=True)
            if node is not None
        }
    except ValueError:
        raise Refused(f"{function.__qualname__}: a default would have to be computed") from None
    return positional or None, keywords or None
