"""Weights that are derived the first time that they are asked for, and kept.

Under a key, ``if dtype not in self.cache: self.cache[dtype] = self.weight.to(dtype)``, and by a
decorator: ``@cached_property``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.graph import results
from ...facts.guards import gradient_unwanted, is_forward
from ...facts.names import is_none
from ...facts.walk import walk
from ...facts.weights import is_weight_use
from .derivation import Derivation, Place
from .once import gives_weight, is_used

if TYPE_CHECKING:
    from ...facts.module import FunctionNode

_CONVERSIONS = frozenset("to type type_as half float bfloat16 double".split())
_EMPTIES = frozenset("clear pop popitem update".split())


def cached(module: ModuleFacts, cls: ast.ClassDef) -> Iterator[tuple[str, Derivation]]:
    """The tables of a class that keep what its forward derives from weights, and one entry."""
    for method in cls.body:
        if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if method.name == "__init__" or not _is_run(module, method):
            continue
        for statement in walk(method):
            if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                continue
            entry = statement.targets[0]
            table = _table(module, cls, entry)
            if table is None or not _is_first(module, statement, entry):
                continue
            derived = Derivation(module, cls, Place(statement, statement.value))
            derived.copied |= _converts(statement.value)
            if derived.is_stale and _is_kept(module, cls, table) and _is_used(module, cls, table):
                yield table, derived


_MEMOIZERS = ("functools.cached_property", "functools.lru_cache", "functools.cache")


def memoized(
    module: ModuleFacts, cls: ast.ClassDef
) -> Iterator[tuple[FunctionNode, ast.expr, Derivation]]:
    """The methods of a class whose decorator keeps what they first derive from weights.

    Each comes with the decorator.
    """
    for method in cls.body:
        if not isinstance(method, ast.FunctionDef) or not method.decorator_list:
            continue
        decorator = method.decorator_list[-1]
        named = decorator.func if isinstance(decorator, ast.Call) else decorator
        if not module.is_name(named, *_MEMOIZERS) or _is_forgotten(module, method):
            continue
        returned = list(results(method))
        if len(returned) != 1:
            continue
        value, statement = returned[0]
        derived = Derivation(module, cls, Place(statement, value))
        if derived.is_stale and _is_asked(module, cls, method):
            yield method, decorator, derived


def _is_forgotten(module: ModuleFacts, method: FunctionNode) -> bool:
    """Whether somebody has what a method gave computed again: ``del self.packed``."""
    name = re.escape(method.name)
    again = rf"\bdel [^\n]*\.{name}\b|\b{name}\.cache_clear\b|[\"']{name}[\"']"
    return re.search(again, module.usual) is not None


def _is_asked(module: ModuleFacts, cls: ast.ClassDef, method: FunctionNode) -> bool:
    """Whether what a method gives is used as a weight: ``F.linear(x, self.packed)``."""
    for use in module.names.uses(cls, method.name):
        call = module.parent(use)
        if isinstance(call, ast.Call) and call.func is use:
            if gives_weight(module, call):
                return True
        elif is_used(module, use, [method]):
            return True
    return False


def _is_run(module: ModuleFacts, method: FunctionNode) -> bool:
    callers = (module.function(call) for call in module.calls_named(method.name))
    return is_forward(method) or any(c is not None and is_forward(c) for c in callers)


def _table(module: ModuleFacts, cls: ast.ClassDef, entry: ast.expr) -> str | None:
    """``cache`` of ``self.cache[key]``."""
    owner = entry.value if isinstance(entry, ast.Subscript) else None
    if isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name):
        if module.names.self_class(owner.value) is cls:
            return owner.attr
    return None


def _is_first(module: ModuleFacts, statement: ast.stmt, entry: ast.expr) -> bool:
    """Whether an entry is only set where there is none, and a gradient may be wanted."""
    around = module.parent(statement)
    if not isinstance(around, ast.If):
        return False
    if not isinstance(around.test, ast.Compare) or gradient_unwanted(module, around):
        return False
    assert isinstance(entry, ast.Subscript)
    (asked, *_), test = around.test.comparators, around.test
    key, table = ast.dump(entry.slice), ast.dump(entry.value)
    if isinstance(test.ops[0], (ast.In, ast.NotIn)):
        block = around.orelse if isinstance(test.ops[0], ast.In) else around.body
        if statement not in block:
            return False
        return ast.dump(test.left) == key and ast.dump(asked) == table
    got = test.left
    return (
        statement in around.body
        and isinstance(test.ops[0], ast.Is)
        and is_none(asked)
        and isinstance(got, ast.Call)
        and isinstance(got.func, ast.Attribute)
        and got.func.attr == "get"
        and ast.dump(got.func.value) == table
        and [ast.dump(argument) for argument in got.args[:1]] == [key]
    )


def _converts(value: ast.expr) -> bool:
    function = value.func if isinstance(value, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr in _CONVERSIONS


def _is_kept(module: ModuleFacts, cls: ast.ClassDef, table: str) -> bool:
    """Whether nothing empties a table again."""
    for use in module.names.uses(cls, table):
        function, parent = module.function(use), module.parent(use)
        if isinstance(use.ctx, ast.Store) and getattr(function, "name", "") != "__init__":
            return False
        if isinstance(parent, ast.Attribute) and parent.attr in _EMPTIES:
            return False
        if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Del):
            return False
    return True


def _is_used(module: ModuleFacts, cls: ast.ClassDef, table: str) -> bool:
    """Whether an entry is used as a weight, at once or by a local name, or handed out."""
    for use in module.names.uses(cls, table):
        entry = module.parent(use)
        if not isinstance(entry, ast.Subscript) or not isinstance(entry.ctx, ast.Load):
            continue
        if gradient_unwanted(module, use):
            continue
        if is_weight_use(module, entry) or isinstance(module.parent(entry), ast.Return):
            return True
        made, function = module.parent(entry), module.function(use)
        if isinstance(made, ast.Assign) and isinstance(made.targets[0], ast.Name) and function:
            name = made.targets[0].id
            if any(
                isinstance(node, ast.Name)
                and node.id == name
                and (is_weight_use(module, node) or isinstance(module.parent(node), ast.Return))
                for node in walk(function)
            ):
                return True
    return False
