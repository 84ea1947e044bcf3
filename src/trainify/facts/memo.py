"""Facts that are worked out once for a file, however many passes ask for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from .module import ModuleFacts

P = ParamSpec("P")
T = TypeVar("T")

Memo = dict[tuple[object, tuple[object, ...]], object]


def once(
    fact: Callable[Concatenate[ModuleFacts, P], T],
) -> Callable[Concatenate[ModuleFacts, P], T]:
    """A fact about a file, or about nodes of it, that is remembered with the file's others."""

    @wraps(fact)
    def remembered(module: ModuleFacts, /, *args: P.args, **kwargs: P.kwargs) -> T:
        assert not kwargs
        key = (fact, args)
        if key not in module.memo:
            module.memo[key] = fact(module, *args, **kwargs)
        return cast("T", module.memo[key])

    return remembered


def once_judged(
    fact: Callable[Concatenate[ModuleFacts, P], T],
) -> Callable[Concatenate[ModuleFacts, P], T]:
    """The same for a fact that holds other files, or its own: its file must not hold it in turn.

    The project remembers it as long as one file is judged.
    """

    @wraps(fact)
    def remembered(module: ModuleFacts, /, *args: P.args, **kwargs: P.kwargs) -> T:
        assert not kwargs
        memo, key = module.project.judged, (fact, (module, *args))
        if key not in memo:
            memo[key] = fact(module, *args, **kwargs)
        return cast("T", memo[key])

    return remembered
