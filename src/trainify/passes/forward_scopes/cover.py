"""A scope over all that a forward computes, and what a reader calls the function under it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.grad_mode import Scope

if TYPE_CHECKING:
    from ...facts.module import FunctionNode


@dataclass(frozen=True)
class Cover:
    """A scope over all that a forward computes.

    ``wrapper`` is the statement that wraps it: ``self.forward = torch.no_grad()(self.forward)``.
    ``more`` are further blocks, where it takes several to cover all.
    """

    function: FunctionNode
    scope: Scope
    wrapper: ast.stmt | None = None
    more: tuple[Scope, ...] = ()

    @property
    def scopes(self) -> tuple[Scope, ...]:
        return (self.scope, *self.more)

    def each(self) -> list[Cover]:
        """A cover for each of the scopes."""
        return [replace(self, scope=scope, more=()) for scope in self.scopes]


def is_decorator(cover: Cover) -> bool:
    """Whether a cover stands above the function, not around what it does."""
    return cover.scope.owner is cover.function


def owner_of(module: ModuleFacts, function: FunctionNode) -> ast.ClassDef | None:
    """The class whose method a function is, or stands in."""
    return module.method_class(function) or module.method_class(module.function(function))


def label_of(module: ModuleFacts, function: FunctionNode) -> str:
    """``Model.forward``: a function as messages name it."""
    cls = module.method_class(function)
    return f"{cls.name}.{function.name}" if cls is not None else function.name
