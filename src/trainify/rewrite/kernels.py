"""Calling a kernel from another function of the file: what to call it, how to make its outputs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..facts import ModuleFacts, Target
from ..facts.names import is_none
from .expressions import one_line
from .template import fresh

_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_PARTIAL = "functools.partial"


@dataclass(frozen=True)
class Kernel:
    """A callee as it can be written in any function of the file, and the import it needs there."""

    text: str
    imports: str = ""


def spelled(module: ModuleFacts, node: ast.expr, target: Target) -> Kernel | None:
    """The kernel behind a callee, followed through ``self``, local names and partials.

    ``target`` is what it stands for.  None where it has no name that holds elsewhere.
    """
    kernel = _spelled(module, node)
    if kernel is not None and target.bound_elsewhere:
        return replace(kernel, text=f"{kernel.text}.func")
    return kernel


def _spelled(module: ModuleFacts, node: ast.expr) -> Kernel | None:
    if isinstance(node, ast.Call):
        partial = module.is_name(node.func, _PARTIAL) and node.args
        return _spelled(module, node.args[0]) if partial else None
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return None
    if module.names.self_class(root) is not None:
        values = [v for v in values_of(module, node) if not is_none(v)]
        return _spelled(module, values[0]) if len(values) == 1 and values[0] is not None else None
    scope = scope_of(module, root)
    if scope is None:
        return None
    bindings = module.names.bindings(scope)[root.id]
    last = bindings[-1]
    if isinstance(scope, ast.Module):
        behind = _spelled(module, last.value) if isinstance(last.value, ast.Call) else None
        return behind if behind is not None and node is root else Kernel(module.source(node))
    if len(bindings) > 1:
        return None
    if isinstance(last.node, (ast.Import, ast.ImportFrom)):
        return Kernel(module.source(node), _import(last.node, root.id))
    return _spelled(module, last.value) if last.value is not None and node is root else None


def passed(module: ModuleFacts, node: ast.expr, target: Target) -> str | None:
    """A callee as an argument: what a ``functools.partial`` calls, or the callee as it stands."""
    values = list(values_of(module, node))
    partial = [isinstance(v, ast.Call) and module.is_name(v.func, _PARTIAL) for v in values]
    if any(partial) and not all(partial):
        return None
    # What a table or another object holds has no value here, but is known to have bound some.
    return f"{module.source(node)}.func" if any(partial) or target.bound else module.source(node)


def values_of(module: ModuleFacts, node: ast.expr) -> Iterator[ast.expr | None]:
    """What is assigned to a local name or an attribute of ``self``."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        cls = module.names.self_class(node.value)
        if cls is not None:
            yield from (b.value for b in module.names.attributes(cls).get(node.attr, ()))
    elif isinstance(node, ast.Name):
        scope = scope_of(module, node)
        if scope is not None:
            yield from (b.value for b in module.names.bindings(scope)[node.id])


def scope_of(module: ModuleFacts, name: ast.Name) -> ast.AST | None:
    """The scope in which a name is bound, seen from where it stands."""
    first: ast.AST = module.scope(name)
    scope = first
    while name.id not in module.names.bindings(scope) or (
        isinstance(scope, ast.ClassDef) and scope is not first
    ):
        if isinstance(scope, ast.Module):
            return None
        scope = next(a for a in module.ancestors(scope) if isinstance(a, _SCOPES))
    return scope


def _import(node: ast.Import | ast.ImportFrom, name: str) -> str:
    """The part of an import statement that binds a name."""
    alias = next(a for a in node.names if (a.asname or a.name).partition(".")[0] == name)
    text = alias.name + (f" as {alias.asname}" if alias.asname else "")
    if isinstance(node, ast.Import):
        return f"import {text}"
    return f"from {'.' * node.level}{node.module or ''} import {text}"


# -- expressions ----------------------------------------------------------------------------------


class CannotMove(Exception):
    """An expression does not mean the same in another function."""


_OWN_SCOPE = (
    *(ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    *(ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom),
)


class Moved:
    """Expressions of one function as they can stand in another.

    ``known`` are the parameters of the other one by the expressions that are passed for them.  What
    else the expressions need of their own function becomes a parameter too: ``given``, likewise,
    under names that are not ``taken``.
    """

    def __init__(
        self, module: ModuleFacts, known: Mapping[str, str], taken: frozenset[str]
    ) -> None:
        self.module = module
        self.known = known
        self.taken = taken
        self.given: dict[str, str] = {}
        self._edits: list[tuple[int, int, str]] = []

    def text(self, node: ast.expr) -> str:
        """The text of an expression there; raises :class:`CannotMove`."""
        self._edits.clear()
        self._visit(node)
        start, text = self.module.start(node), self.module.source(node)
        for begin, end, new in sorted(self._edits, reverse=True):
            text = text[: begin - start] + new + text[end - start :]
        return one_line(text)

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, _OWN_SCOPE):
            raise CannotMove
        if isinstance(node, ast.expr) and self._replace(node, self.known):
            return
        if isinstance(node, (ast.Name, ast.Attribute)):
            self._chain(node, node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if not self._replace(node.func.value, self.known):
                self._chain(node.func.value, node.func.value)
            for child in (*node.args, *node.keywords):
                self._visit(child)
        else:
            for child in ast.iter_child_nodes(node):
                self._visit(child)

    def _chain(self, node: ast.expr, whole: ast.expr) -> None:
        """``x.shape``: of ``x`` if that is passed anyway, else passed itself."""
        while isinstance(node, ast.Attribute):
            node = node.value
            if self._replace(node, self.known):
                return
        if not isinstance(node, ast.Name):
            self._visit(node)
            return
        scope = scope_of(self.module, node)
        if scope is not None and not isinstance(scope, ast.Module):
            text = self.module.source(whole)
            if text not in self.given:
                name = whole.attr if isinstance(whole, ast.Attribute) else node.id
                self.given[text] = fresh(name, self.taken | set(self.given.values()))
            self._replace(whole, self.given)

    def _replace(self, node: ast.expr, by: Mapping[str, str]) -> bool:
        new = by.get(one_line(self.module.source(node)))
        if new is not None:
            self._edits.append((self.module.start(node), self.module.end(node), new))
        return new is not None
