"""What a value's autograd graph would be made of: back from a loss or a result, over definitions.

Nothing is run, so this is what may flow, judged name by name: an answer "nothing but this leads
there" can be trusted, an answer "this leads there" is a guess.
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .grad_mode import (
    Scope,
    decorator_scope,
    is_applied,
    own_nodes,
    scope_inside,
    scope_of_returns,
    wrapping,
)
from .memo import once
from .metadata import TRAITS
from .names import base_name, passed, self_name
from .trainable import returns_numbers
from .walk import statements, walk

if TYPE_CHECKING:
    from .flow import Definition
    from .module import FunctionNode, ModuleFacts

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WITHOUT_VALUES = TRAITS | frozenset("requires_grad grad grad_fn training".split())
ABOUT = frozenset(
    "size dim numel stride is_contiguous zeros_like ones_like full_like rand_like randn_like "
    "empty_like new_zeros new_ones new_full new_empty element_size get_device data_ptr".split()
)
DETACHING = frozenset(
    "detach detach_ item numpy tolist argmax argmin argsort nonzero multinomial bincount "
    "bernoulli eq ne gt lt ge le logical_not logical_and logical_or isnan isinf long int short "
    "bool byte searchsorted bucketize count_nonzero from_numpy tensor array asarray".split()
)
VIEWS = frozenset(
    "view reshape view_as reshape_as flatten unflatten squeeze unsqueeze transpose permute t "
    "movedim expand expand_as chunk split unbind narrow select to float half bfloat16 double "
    "type_as type cuda cpu contiguous get items values keys".split()
)
_ABOUT_BUILTINS = frozenset("len range isinstance str repr type print hasattr id".split())
_DETACHING_BUILTINS = frozenset({"int", "float", "bool"})
_MAX_STEPS = 16
_WRITING = frozenset(
    "append extend insert add update setdefault appendleft put register_hook".split()
)


@dataclass(frozen=True)
class Cut:
    """Where a graph ends: in a scope, or at a call that leaves it (``detach``, ``argmax``)."""

    node: ast.expr
    scope: Scope | None = None


@dataclass(frozen=True)
class Step:
    """A call, or a name that comes from outside, on the way to a value.

    ``cut`` is the scope nearest to the value, else the call nearest to ``node`` that leaves the
    graph; ``through`` the operation, nearest to ``node``, that makes a new tensor of the value
    where gradients are still recorded.
    """

    node: ast.expr
    at: ast.stmt
    cut: Cut | None
    through: ast.expr | None


@dataclass(frozen=True)
class Entry:
    """Where a way enters a scope: ``through`` is the first operation outside of it."""

    scope: Scope
    at: ast.stmt
    through: ast.expr | None


class Graph:
    """The ways that lead to values of one function, or of a module's top level.

    Those through the expressions ``avoided`` are left out.
    """

    def __init__(
        self,
        module: ModuleFacts,
        function: FunctionNode | ast.Module,
        avoided: Collection[ast.expr] = (),
        depth: int = 0,
    ) -> None:
        # Without a cycle, a file's facts are freed as soon as the file is done.
        proxied = isinstance(module, weakref.ProxyTypes)
        self.module: ModuleFacts = module if proxied else weakref.proxy(module)
        self.function = function
        self._avoided = avoided
        self._depth = depth
        self.me = self_name(function) if module.method_class(function) is not None else None
        self._flow = module.flow(function)
        self._steps: list[Step] = []
        self.entries: list[Entry] = []
        self.ways: dict[ast.stmt, set[ast.stmt]] = {}
        """Which statements a statement takes a value from that has a gradient, or only a scope
        keeps from having one; with those that write into it."""
        self._seen: set[tuple[int, int, int, int]] = set()

    def back_from(self, values: Iterable[tuple[ast.expr, ast.stmt]]) -> list[Step]:
        """Every step on the ways to some values; each comes with its statement."""
        self._steps, self._seen, self.entries, self.ways = [], set(), [], {}
        for value, at in values:
            self._visit(value, at, self._cut_at(value, at, None, None), None)
        return self._steps

    # -- expressions ----------------------------------------------------------------------------

    def _visit(
        self, node: ast.expr, at: ast.stmt, cut: Cut | None, through: ast.expr | None
    ) -> None:
        key = id(node), id(at), id(cut.node) if cut else 0, id(through)
        if key in self._seen or node in self._avoided:
            return
        self._seen.add(key)
        if isinstance(node, ast.Name):
            self._name(node, at, cut, through)
        elif isinstance(node, ast.Attribute):
            self._attribute(node, at, cut, through)
        elif isinstance(node, ast.Call):
            self._call(node, at, cut, through)
        elif isinstance(node, ast.Compare):
            self._detached(node, [node.left, *node.comparators], at, cut, through)
        elif isinstance(node, ast.Subscript):
            copies = cut is None and not is_slice(node.slice)
            self._visit(node.value, at, cut, node if copies else through)
        elif isinstance(node, (ast.BinOp, ast.UnaryOp)):
            parts = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
            for part in parts:
                self._visit(part, at, cut, node if cut is None else through)
        elif isinstance(node, ast.IfExp):
            self._visit(node.body, at, cut, through)
            self._visit(node.orelse, at, cut, through)
        elif not isinstance(node, (ast.Lambda, ast.Constant, ast.JoinedStr)):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    own = self._cut_at(child, at, cut, through) if _holds(node) else cut
                    self._visit(child, at, own, through)
                elif isinstance(child, ast.comprehension):
                    self._visit(child.iter, at, cut, through)

    def _detached(
        self,
        node: ast.expr,
        parts: Iterable[ast.expr],
        at: ast.stmt,
        cut: Cut | None,
        through: ast.expr | None,
    ) -> None:
        """Behind a call that leaves the graph; what a scope has cut as well is meant so."""
        if cut is not None and cut.scope is not None:
            return
        for part in parts:
            self._visit(part, at, Cut(node), through)

    def _attribute(
        self, node: ast.Attribute, at: ast.stmt, cut: Cut | None, through: ast.expr | None
    ) -> None:
        if node.attr in _WITHOUT_VALUES:
            return
        if isinstance(node.value, ast.Name) and node.value.id == self.me:
            self._steps.append(Step(node, at, cut, through))
        elif node.attr == "data":
            self._detached(node, [node.value], at, cut, through)
        else:
            self._visit(node.value, at, cut, through)

    def _call(
        self, node: ast.Call, at: ast.stmt, cut: Cut | None, through: ast.expr | None
    ) -> None:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else None
        parts = passed(node)
        if isinstance(function, ast.Attribute):
            if not self._is_callee(function.value) or self._is_own_part(function.value):
                parts.append(function.value)
        elif not isinstance(function, (ast.Name, ast.Attribute)):
            parts.append(function)
        if self.module.grad_wrappers:
            cut = self._wrapped(function, at, parts, cut, through)
        if isinstance(function, ast.Name):
            if function.id in _ABOUT_BUILTINS:
                return
            if function.id in _DETACHING_BUILTINS:
                self._detached(node, parts, at, cut, through)
                return
        if name in ABOUT:
            return
        if name in DETACHING:
            self._detached(node, parts, at, cut, through)
            return
        self._steps.append(Step(node, at, cut, through))
        callee = self.callee(node)
        if callee is not None and cut is None:
            if returns_numbers(callee):
                cut = Cut(node)
            elif (scope := scope_of_results(self.module, callee)) is not None:
                cut = Cut(node, scope)
                self.entries.append(Entry(scope, at, through))
        elif callee is not None and cut is not None and cut.scope is not None:
            if not self._hands_on(callee):
                return  # what it gives has no gradient in any case
        if cut is None and name not in VIEWS:
            through = node
        for part in parts:
            self._visit(part, at, cut, through)

    def _wrapped(
        self,
        function: ast.expr,
        at: ast.stmt,
        parts: list[ast.expr],
        cut: Cut | None,
        through: ast.expr | None,
    ) -> Cut | None:
        """The cut behind ``torch.no_grad()(f)(x)``; what is wrapped becomes a part of the way."""
        scope = wrapping(self.module, function, at)
        if scope is None or scope.wraps is None:
            return cut
        (wrapped,) = scope.wraps.args
        parts[:] = [part for part in parts if part is not function]
        parts.append(wrapped.body if isinstance(wrapped, ast.Lambda) else wrapped)
        if cut is not None:
            return cut
        self.entries.append(Entry(scope, at, through))
        return Cut(scope.node, scope)

    def _hands_on(self, callee: FunctionNode) -> bool:
        """Whether gradients could pass from a function's arguments to what it returns."""
        values = list(results(callee))
        if not values or self._depth:
            return True
        steps = Graph(self.module, callee, depth=1).back_from(values)
        return any(
            isinstance(step.node, ast.Name) and (step.cut is None or step.cut.scope is not None)
            for step in steps
        )

    def _is_own_part(self, node: ast.expr) -> bool:
        """``self.part``, whatever it is."""
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node, inner = node.value, node
            if isinstance(node, ast.Name):
                return node.id == self.me and isinstance(inner, ast.Attribute)
        return False

    def _is_callee(self, node: ast.expr) -> bool:
        """Whether ``node.f(...)`` calls something of a module or of ``self``, not of a value."""
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        if not isinstance(node, ast.Name):
            return False
        if node.id == self.me:
            return True
        return any(b.qualified is not None for b in self.module.names.visible(node))

    # -- names ----------------------------------------------------------------------------------

    def _name(
        self, node: ast.Name, at: ast.stmt, cut: Cut | None, through: ast.expr | None
    ) -> None:
        reaching = self._flow.reaching(node.id, at)
        if not reaching or any(d.is_parameter for d in reaching):
            self._steps.append(Step(node, at, cut, through))
        ways = self.ways.setdefault(at, set()) if cut is None or cut.scope is not None else set()
        for definition in reaching:
            for value in _values(definition):
                statement = definition.statement
                assert statement is not None
                ways.add(statement)
                self._visit(value, statement, self._cut_at(value, statement, cut, through), through)
        for statement, value in self._writes.get(node.id, ()):
            ways.add(statement)
            self._visit(value, statement, self._cut_at(value, statement, cut, through), through)

    def _cut_at(
        self, value: ast.expr, statement: ast.stmt, cut: Cut | None, through: ast.expr | None
    ) -> Cut | None:
        """The cut for what a statement computes, on a way that is cut already or not."""
        if cut is not None or isinstance(value, ast.Name) or _holds(value):
            return cut  # only handed on
        scope = scope_inside(self.module, statement, self.function)
        if scope is None:
            return None
        self.entries.append(Entry(scope, statement, through))
        return Cut(scope.node, scope)

    @cached_property
    def _writes(self) -> dict[str, list[tuple[ast.stmt, ast.expr]]]:
        """What is written into a name: ``x += v``, ``x[i] = v``, ``x.add_(v)``, ``f(v, out=x)``."""
        found: dict[str, list[tuple[ast.stmt, ast.expr]]] = {}
        for statement in statements(self.function):
            for name, value in _written(statement):
                found.setdefault(name, []).append((statement, value))
        return found

    def attribute(self, node: ast.expr, at: ast.stmt) -> str | None:
        """The attribute of ``self`` that a callee or a value comes from, loops looked through.

        ``self.layers`` in ``for layer in self.layers: x = layer(x)``.
        """
        for _ in range(_MAX_STEPS):
            if isinstance(node, ast.Call):
                scope = wrapping(self.module, node.func, at) if self.module.grad_wrappers else None
                if scope is not None and scope.wraps is not None:
                    node = scope.wraps.args[0]
                    node = node.body if isinstance(node, ast.Lambda) else node
                    continue
                looped = isinstance(node.func, ast.Name) and node.func.id in ("enumerate", "zip")
                node = node.args[0] if looped and node.args else node.func
            elif isinstance(node, ast.Attribute):
                if isinstance(node.value, ast.Name) and node.value.id == self.me:
                    return node.attr
                node = node.value
            elif isinstance(node, ast.Subscript):
                node = node.value
            elif isinstance(node, ast.Name):
                reaching = self._flow.reaching(node.id, at)
                definition = next(iter(reaching)) if len(reaching) == 1 else None
                value = next(_values(definition), None) if definition is not None else None
                if definition is None or definition.statement is None or value is None:
                    return None
                node, at = value, definition.statement
            else:
                return None
        return None

    # -- functions ------------------------------------------------------------------------------

    def callee(self, call: ast.Call) -> FunctionNode | None:
        """The function of this file that a call runs, where that is clear."""
        function = call.func
        if isinstance(function, ast.Call) and self.module.grad_wrappers:
            scope = wrapping(self.module, function, self.module.statement(call))
            function = scope.wraps.args[0] if scope is not None and scope.wraps else function
        if isinstance(function, ast.Name):
            nodes = [
                binding.node
                for binding in self.module.names.visible(function)
                if binding.node is None or not is_applied(self.module, binding.node)
            ]
            if len(nodes) == 1 and isinstance(nodes[0], _FUNCTIONS):
                return nodes[0]
            return None
        if not isinstance(function, ast.Attribute):
            return None
        same = self.module.functions_named(function.attr)
        methods = [f for f in same if self.module.method_class(f) is not None]
        if isinstance(function.value, ast.Attribute):
            return methods[0] if len(methods) == 1 and self._holds(function, methods[0]) else None
        if not isinstance(function.value, ast.Name):
            return None
        if function.value.id == self.me:
            cls = self.module.names.self_class(function.value)
            own = [f for f in methods if self.module.method_class(f) is cls]
            return own[0] if len(own) == 1 else None
        if len(methods) != 1 or self._is_callee(function.value):
            return None
        return methods[0]

    def _holds(self, callee: ast.Attribute, method: FunctionNode) -> bool:
        """Whether ``self.part.method`` is a method of the class that ``self.part`` is made from."""
        part, cls = callee.value, self.module.method_class(method)
        if not isinstance(part, ast.Attribute) or not isinstance(part.value, ast.Name) or not cls:
            return False
        owner = self.module.names.self_class(part.value)
        found = self.module.names.attributes(owner).get(part.attr, ()) if owner else ()
        return any(
            isinstance(node, ast.Call) and getattr(node.func, "id", None) == cls.name
            for binding in found
            if binding.value is not None
            for node in walk(binding.value)
        )


def scope_of_results(module: ModuleFacts, function: FunctionNode) -> Scope | None:
    """The scope that everything a function returns is computed in."""
    return decorator_scope(module, function) or scope_of_returns(module, function)


@once
def under_scopes(module: ModuleFacts) -> tuple[FunctionNode, ...]:
    """The functions that compute everything they return without gradients, in scopes of theirs."""
    return tuple(
        function
        for function in module.functions
        if (function.decorator_list or function in module.scoped_functions)
        and scope_of_results(module, function) is not None
    )


def calls_any(module: ModuleFacts, function: FunctionNode, names: frozenset[str]) -> bool:
    """Whether a function calls one of these functions, by name or as a method."""
    last = function.end_lineno or function.lineno
    calls = {
        call
        for name in names
        for call in module.calls_named(name)
        if function.lineno <= call.lineno <= last
    }
    return bool(calls) and not calls.isdisjoint(own_nodes(function))


def _holds(node: ast.expr) -> bool:
    """Whether an expression only puts values side by side: ``{"logits": logits}``."""
    return isinstance(node, (ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Starred))


def results(function: FunctionNode) -> Iterator[tuple[ast.expr, ast.stmt]]:
    """The values that a function returns or yields."""
    for node in statements(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value, node


def effects(function: FunctionNode) -> Iterator[tuple[ast.expr, ast.stmt]]:
    """Values that leave a function in other ways: stored, passed on, seen by inner functions."""
    for node in statements(function):
        if isinstance(node, ast.Assign):
            if any(isinstance(t, ast.Attribute) for t in node.targets):
                yield node.value, node
        elif isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
            yield node.value, node
        elif isinstance(node, ast.Expr) and isinstance(node.value, (ast.Yield, ast.YieldFrom)):
            if node.value.value is not None:
                yield node.value.value, node
        elif isinstance(node, _FUNCTIONS):
            for inner in walk(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
                    yield inner, node


def is_slice(index: ast.expr) -> bool:
    """Whether an index gives a view, or an element of a list: by other tensors it gives a copy."""
    if isinstance(index, ast.Tuple):
        return all(is_slice(part) for part in index.elts)
    if isinstance(index, ast.UnaryOp):
        return is_slice(index.operand)
    return isinstance(index, (ast.Slice, ast.Constant))


def _values(definition: Definition) -> Iterator[ast.expr]:
    """The expressions that a definition takes its value from."""
    statement = definition.statement
    if definition.value is not None:
        yield definition.value
    elif isinstance(statement, (ast.For, ast.AsyncFor)):
        yield statement.iter
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        yield from (item.context_expr for item in statement.items)
    elif isinstance(statement, ast.Assign):
        yield statement.value


def _written(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(statement, ast.AugAssign):
        name = base_name(statement.target)
        if name is not None:
            yield name, statement.value
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Subscript) and (name := base_name(target)) is not None:
                yield name, statement.value
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        written: list[ast.expr] = []
        link: ast.expr = call  # x.mul_(a).add_(b)
        while isinstance(link, ast.Call) and isinstance(link.func, ast.Attribute):
            if link.func.attr in _WRITING or link.func.attr.endswith("_"):
                written += passed(link)
            link = link.func.value
        name = base_name(link)
        if name is not None:
            yield from ((name, value) for value in written)
        for keyword in call.keywords:
            if keyword.arg == "out" and isinstance(keyword.value, ast.Name):
                yield keyword.value.id, call
