"""Whose gradient a value carries, and where it is cut off: ``detach``, ``item``, ``torch.tensor``.

The answers of :class:`Gradients` lean to one side: what is not understood may carry any gradient.
So a weight that no value carries surely gets none, and a cut that is sure is one.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ..carried import Bound, Carried, blurred, either, together
from ..differentiation import NUMBER, UNKNOWN
from ..flow import Definition
from ..names import is_none
from ..trainable import is_trainable
from ..walk import walk
from .additions import Addition, additions
from .attributes import of_attribute
from .calls import of_call
from .elements import of_element
from .escapes import escaping
from .local_names import of_name
from .networks import bound_names

if TYPE_CHECKING:
    from ..module import FunctionNode, ModuleFacts

_MAX_DEPTH = 3
_MAX_STEPS = 800
"""Expressions looked at for one question; what is not done by then is not understood."""


@dataclass
class _Shared:
    """What a question and those that it leads to have in common."""

    steps: int = _MAX_STEPS
    foreign: bool = True
    """Whether functions of other files are followed."""
    trainable: dict[ast.ClassDef, bool] = field(default_factory=dict)
    gives_tensor: dict[ast.ClassDef, bool] = field(default_factory=dict)


class Gradients:
    """The gradients that the values of one function carry.

    ``arguments``: what is known of the function's parameters.
    """

    def __init__(
        self,
        module: ModuleFacts,
        function: FunctionNode | ast.Module,
        arguments: Mapping[str, Carried] | None = None,
        outer: Gradients | None = None,
        foreign: bool = True,
    ) -> None:
        self.module = module
        self.function = function
        self.flow = module.flow(function)
        self.arguments = arguments or {}
        self.depth: int = outer.depth + 1 if outer is not None else 0
        self.shared: _Shared = outer.shared if outer is not None else _Shared(foreign=foreign)
        self._local: dict[str, bool] = {}
        self.active: set[Definition] = set()
        self.known: dict[Definition, Carried] = {}
        self.cycles = 0

    def may_enter(self, function: FunctionNode) -> bool:
        """Whether another function can be asked on the way: not itself, nor too deep down."""
        return self.depth < _MAX_DEPTH and function is not self.function

    def inner(
        self,
        module: ModuleFacts,
        function: FunctionNode,
        arguments: Mapping[str, Carried] | None = None,
    ) -> Gradients:
        """The same question of a function that this one calls."""
        return Gradients(module, function, arguments, self)

    def returned(self) -> list[Carried]:
        """What each ``return`` with a value hands out."""
        return [
            self.value(node.value, node)
            for node in self.own_statements
            if isinstance(node, ast.Return) and node.value is not None and not is_none(node.value)
        ]

    def escaping(self) -> frozenset[str]:
        """Weights whose gradient leaves the function by another way than ``return``."""
        return escaping(self)

    @cached_property
    def own_statements(self) -> list[ast.stmt]:
        """The function's statements without those of functions inside it."""
        found: list[ast.stmt] = []
        stack: list[ast.AST] = list(reversed(self.function.body))
        while stack:
            node = stack.pop()
            if isinstance(node, ast.stmt):
                found.append(node)
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    continue
            inner = [
                child
                for child in ast.iter_child_nodes(node)
                if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case))
            ]
            stack.extend(reversed(inner))
        return found

    def is_local(self, name: str) -> bool:
        """Whether a name is bound in the function."""
        if name not in self._local:
            self._local[name] = self.flow.is_local(name)
        return self._local[name]

    def is_trainable(self, cls: ast.ClassDef) -> bool:
        """Whether a class has weights of its own, made from scratch, that nothing freezes."""
        known = self.shared.trainable
        if cls not in known:
            known[cls] = is_trainable(self.module, cls)
        return known[cls]

    def value(
        self,
        node: ast.expr | None,
        at: ast.stmt,
        scope: Bound | None = None,
    ) -> Carried:
        """What an expression in the statement ``at`` carries; ``scope`` holds a comprehension's."""
        self.shared.steps -= 1
        if self.shared.steps < 0:
            return UNKNOWN
        scope = scope or {}
        if node is None or isinstance(node, (ast.Constant, ast.JoinedStr, ast.Compare)):
            return NUMBER
        if isinstance(node, ast.Name):
            return of_name(self, node, at, scope)
        if isinstance(node, ast.Attribute):
            return of_attribute(self, node, at, scope)
        if isinstance(node, ast.Call):
            return of_call(self, node, at, scope)
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, (ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr, ast.BitXor)):
                return blurred([self.value(n, at, scope) for n in (node.left, node.right)])
            return together([self.value(n, at, scope) for n in (node.left, node.right)])
        if isinstance(node, ast.UnaryOp):
            if isinstance(node.op, (ast.Not, ast.Invert)):
                return UNKNOWN
            return self.value(node.operand, at, scope)
        if isinstance(node, ast.IfExp):
            return either([self.value(n, at, scope) for n in (node.body, node.orelse)])
        if isinstance(node, ast.BoolOp):
            return either([self.value(n, at, scope) for n in node.values])
        if isinstance(node, (ast.NamedExpr, ast.Starred)):
            return self.value(node.value, at, scope)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, at, scope)
        if isinstance(node, (ast.Tuple, ast.List)):
            return together([self.value(n, at, scope) for n in node.elts])
        if isinstance(node, ast.Dict):
            return together([self.value(n, at, scope) for n in node.values])
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            inner = dict(scope)
            for generator in node.generators:
                inner.update(bound_names(self, generator.target, generator.iter, at, inner))
            return self.value(node.elt, at, inner)
        return UNKNOWN

    def _subscript(self, node: ast.Subscript, at: ast.stmt, scope: Bound) -> Carried:
        index = node.slice
        if isinstance(node.value, ast.Call) and isinstance(index, ast.Constant):
            if isinstance(index.value, int):
                return of_element(self, node.value, index.value, at, scope)
        return self.value(node.value, at, scope)

    @cached_property
    def additions(self) -> dict[str | None, list[Addition]]:
        """What statements add to the values of names."""
        return additions(self.own_statements)

    @cached_property
    def trains(self) -> bool:
        """Whether the function calls ``backward``."""
        return ".backward(" in self.module.usual and any(
            isinstance(node, ast.Attribute) and node.attr == "backward"
            for node in walk(self.function)
        )
