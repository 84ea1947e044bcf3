"""Functions that give a kernel: ``get_op()(out, x)``, ``self.op = ops.get_op()``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from .names import Binding, Target, last_name
from .rebound import set_by_others
from .walk import walk

if TYPE_CHECKING:
    from .module import ModuleFacts

_MAX_DEPTH = 3
_KEEPS = frozenset({"staticmethod", "classmethod", "cache", "lru_cache"})
"""Decorators of a function that gives what it gave without them."""

Relevant = Callable[[bytes, str], bool]


def given_by_functions(
    module: ModuleFacts, callee: ast.expr, relevant: Relevant
) -> tuple[Target, ...]:
    """What a callee stands for that a function of the project gave; none where that is left open.

    A name or an attribute of ``self`` holds it, it is an attribute of what a function gave, or the
    function is called on the spot; or it is a property.  Several are given where each return gives
    one.  Of other files, those are read that are relevant by their bytes.
    """
    return tuple(dict.fromkeys(_Search(module, relevant).given(callee, 0)))


def is_property(module: ModuleFacts, callee: ast.expr) -> bool:
    """Whether an attribute of ``self`` is what a method gives, by ``@property`` or the like."""
    return property_behind(module, callee) is not None


def value_of_property(module: ModuleFacts, node: ast.expr) -> ast.expr | None:
    """The one thing that ``self.w`` gives, by a property that nobody else sets."""
    method = property_behind(module, node)
    cls = module.method_class(method) if method is not None else None
    if method is None or cls is None or any(set_by_others(module, cls, method.name)):
        return None
    last = method.body[-1]
    others = [s for s in method.body[:-1] if not isinstance(s, ast.Expr)]
    return last.value if isinstance(last, ast.Return) and not others else None


def property_behind(module: ModuleFacts, node: ast.expr) -> ast.FunctionDef | None:
    """The method by which an attribute of ``self`` is a property."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return None
    cls = module.names.self_class(node.value)
    found = module.names.inherited(cls, node.attr) if cls is not None else []
    return _property(found[0]) if len(found) == 1 else None


def _property(binding: Binding) -> ast.FunctionDef | None:
    """The method that is bound as a property."""
    node = binding.node
    if isinstance(node, ast.FunctionDef) and len(node.decorator_list) == 1:
        if last_name(node.decorator_list[0]) in ("property", "cached_property"):
            return node
    return None


class _Search:
    def __init__(self, module: ModuleFacts, relevant: Relevant) -> None:
        self.module = module
        self.relevant = relevant

    def given(self, node: ast.expr, depth: int) -> Iterator[Target]:
        names = self.module.names
        if depth > _MAX_DEPTH:
            return
        if isinstance(node, ast.Call):
            for owner, function in self._functions(node.func):
                yield from _returned(owner, function)
        elif isinstance(node, ast.Name):
            yield from self._held(names.visible(node), depth)
        elif isinstance(node, ast.Attribute):
            cls = names.self_class(node.value)
            if cls is not None:
                yield from self._held(self.module.names.inherited(cls, node.attr), depth)
            else:
                for base in self.given(node.value, depth + 1):
                    yield Target(f"{base.name}.{node.attr}")

    def _held(self, found: Iterable[Binding], depth: int) -> Iterator[Target]:
        """What the one call gives that something is bound to."""
        bindings = list(found)
        if len(bindings) != 1:
            return
        made = _property(bindings[0])
        if made is not None:
            yield from _returned(self.module, made)
        elif isinstance(bindings[0].value, ast.Call):
            yield from self.given(bindings[0].value, depth + 1)

    def _functions(self, callee: ast.expr) -> Iterator[tuple[ModuleFacts, ast.FunctionDef]]:
        """The functions of the project that a callee names, of this file or of another."""
        module, project = self.module, self.module.project
        base = callee.value if isinstance(callee, ast.Attribute) else None
        if module.names.self_class(base) is not None:
            return  # a subclass may have another
        for target in module.resolve(callee):
            parts = target.name.split(".")
            for cut in range(len(parts) - 1, 0, -1):
                owner = ".".join(parts[:cut])
                if owner == module.module_name:
                    yield from _within(module, parts[cut:])
                    break
                path = project.find_module(module, owner)
                if path is not None:
                    defined = project.tells(path, _defines, parts[-1])
                    if defined and project.tells(path, self.relevant, ""):
                        other = project.load(path)
                        if other is not None:
                            yield from _within(other, parts[cut:])
                    break


def _defines(data: bytes, name: str) -> bool:
    return b"def %s(" % name.encode() in data


def _within(module: ModuleFacts, names: list[str]) -> Iterator[tuple[ModuleFacts, ast.FunctionDef]]:
    """A function at the top of a file, or of a class there: ``Ops.get_op``."""
    scope: ast.Module | ast.ClassDef = module.tree
    for name in names[:-1]:
        made = module.names.bindings(scope).get(name, ())
        if len(made) != 1 or not isinstance(made[0].node, ast.ClassDef):
            return
        scope = made[0].node
    found = module.names.bindings(scope).get(names[-1], ())
    if len(found) == 1 and isinstance(found[0].node, ast.FunctionDef):
        decorators = (getattr(d, "func", d) for d in found[0].node.decorator_list)
        if all(last_name(decorator) in _KEEPS for decorator in decorators):
            yield module, found[0].node


def _returned(module: ModuleFacts, function: ast.FunctionDef) -> Iterator[Target]:
    """What the returns of a function give, if each is the name of something."""
    returns = [part for part in walk(function) if isinstance(part, ast.Return)]
    found = [module.resolve(r.value) if r.value is not None else () for r in returns]
    if all(found):
        yield from (target for targets in found for target in targets)
