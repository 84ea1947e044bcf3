"""Whether what is written into a tensor goes into what the function returns.

A function that writes into its argument and hands the new value back can as well compute it: its
callers have it.  Where the value goes nowhere, the write itself is what the function is for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from .views import view_of
from .walk import children, statements, walk

if TYPE_CHECKING:
    from .flow import Definition, FunctionFlow

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def is_handed_back(
    flow: FunctionFlow,
    names: Iterable[str],
    statement: ast.stmt,
    fills: Mapping[ast.stmt, frozenset[str]],
) -> bool:
    """Whether what ``names`` hold once ``statement`` ran may go into a result of the function.

    ``fills`` has the calls of kernels, with the names of the tensors that these compute anew from
    what they read.  Other calls are taken to fill nothing: ``log(x, h)``.
    """
    return _Trace(flow, statement, fills).reaches_result(names)


class _Trace:
    """The definitions that a value goes into, from one statement on."""

    def __init__(
        self,
        flow: FunctionFlow,
        statement: ast.stmt,
        fills: Mapping[ast.stmt, frozenset[str]],
    ) -> None:
        self.flow = flow
        self.statement = statement
        self.fills = fills
        self.tainted: set[Definition] = set()
        self.attributes: set[str] = set()

    def reaches_result(self, names: Iterable[str]) -> bool:
        sure, maybe = self.flow.definitions_in(self.statement)
        for name in names:
            self.tainted |= self.flow.reaching(name, self.statement)
            self.tainted |= {d for d in (*sure, *maybe) if d.name == name}
        later = [s for s in statements(self.flow.function) if self._runs_later(s)]
        later.sort(key=lambda s: (s.lineno, s.col_offset))
        known = -1
        while known != len(self.tainted) + len(self.attributes):
            known = len(self.tainted) + len(self.attributes)
            if any(self._passes_on(each) for each in later):
                return True
        return False

    def _passes_on(self, statement: ast.stmt) -> bool:
        """Follow the value through one statement; True where it leaves the function."""
        heads = list(_heads(statement))
        if not any(self._has(statement, head) for head in heads):
            return False
        if isinstance(statement, ast.Return):
            return True
        if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for head in heads for n in walk(head)):
            return True
        sure, maybe = self.flow.definitions_in(statement)
        for made in (*sure, *maybe):
            if made.statement is statement:
                if made.value is None or self._has(statement, made.value):
                    self.tainted.add(made)
        for target in self._written(statement):
            view = view_of(target)
            if view is not None:
                for name in (view.base, *self.flow.observers(view.base, statement)):
                    self.tainted |= self.flow.reaching(name, statement)
            elif isinstance(target, ast.Attribute):
                self.attributes.add(ast.unparse(target))
        return False

    def _written(self, statement: ast.stmt) -> Iterator[ast.expr]:
        """What a statement puts something into, beside the names that it binds."""
        if isinstance(statement, ast.AugAssign):
            yield _container(statement.target)
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if not isinstance(each, ast.Name):
                        yield _container(each)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            if isinstance(call.func, ast.Attribute):  # out.copy_(x), states.append(x)
                yield _container(call.func.value)
            yield from (k.value for k in call.keywords if k.arg == "out")
        for name in self.fills.get(statement, ()):
            yield ast.Name(name, ast.Load())

    def _has(self, statement: ast.stmt, node: ast.AST) -> bool:
        for each in walk(node):
            if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Store):
                if not self.tainted.isdisjoint(self.flow.reaching(each.id, statement)):
                    return True
            elif isinstance(each, ast.Attribute) and self.attributes:
                if ast.unparse(each) in self.attributes:
                    return True
        return False

    def _runs_later(self, other: ast.stmt) -> bool:
        """Whether a statement may run after the one that writes."""
        ancestors = list(self.flow.module.ancestors(self.statement))
        theirs = set(self.flow.module.ancestors(other))
        if any(isinstance(a, _LOOPS) and a in theirs for a in ancestors):
            return True
        if (other.lineno, other.col_offset) <= (self.statement.lineno, self.statement.col_offset):
            return False
        current: ast.AST = self.statement
        for ancestor in ancestors:
            block = _block(ancestor, current)
            rest = block[block.index(current) + 1 :] if block else []
            if ancestor in theirs or ancestor is other:
                within = any(each is other or each in theirs for each in rest)
                return within or not isinstance(ancestor, (ast.If, ast.Match))
            if any(isinstance(each, (ast.Return, ast.Raise)) for each in rest):
                return False
            current = ancestor
        return True


def _block(parent: ast.AST, node: ast.AST) -> list[ast.AST]:
    """The statements among which a node stands."""
    blocks = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
    return next((b for b in blocks if isinstance(b, list) and node in b), [])


def _heads(statement: ast.stmt) -> list[ast.AST]:
    """What a statement itself evaluates, its blocks left out; a definition is all of it."""
    if isinstance(statement, _DEFINITIONS):
        return [statement]
    blocks = (ast.stmt, ast.ExceptHandler, ast.match_case)
    return [node for node in children(statement) if not isinstance(node, blocks)]


def _container(node: ast.expr) -> ast.expr:
    """``self.kept`` of ``self.kept[0]``."""
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    return node
