"""Which functions of a project run when some code does, as far as the source shows."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from .called import functions_of, methods_named, modules_of
from .grad_mode import scope_around
from .layers import bases_of, classes_named
from .walk import walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_MOST = 200
"""Functions after which nobody looks any further."""


def reached(
    module: ModuleFacts, nodes: Iterable[ast.AST]
) -> Iterator[tuple[ModuleFacts, ast.Call]]:
    """The calls that run when some nodes do, of other functions, methods and modules as well.

    Of what is called, a part that has a scope without gradients of its own is left out.
    """
    seen: set[ast.AST] = set()
    pending = [(module, node, False) for node in nodes]
    while pending and len(seen) < _MOST:
        home, root, inner = pending.pop()
        for call in walk(root):
            if not isinstance(call, ast.Call) or (inner and scope_around(home, call) is not None):
                continue
            yield home, call
            for other, function in run_by(home, call):
                if function not in seen:
                    seen.add(function)
                    pending += ((other, statement, True) for statement in function.body)


def run_by(module: ModuleFacts, call: ast.Call) -> Iterator[tuple[ModuleFacts, FunctionNode]]:
    """The functions that one call may run; the forward, where it is of a module."""
    callee = call.func
    if isinstance(callee, ast.Call):  # torch.no_grad()(self.model)(x), or without the x
        wrapped = [*callee.args[:1], *call.args[:1]]
        callee = wrapped[0] if wrapped else callee
    yield from functions_of(module, callee)
    for home, made in _classes(module, callee):
        yield from methods_named(home, made, "forward")
    if not isinstance(callee, ast.Attribute):
        return
    owner = callee.value
    if isinstance(owner, ast.Call):
        cls = module.method_class(module.function(call))
        if cls is not None and isinstance(owner.func, ast.Name) and owner.func.id == "super":
            for home, base in bases_of(module, cls):
                yield from methods_named(home, base, callee.attr)
        return
    for home, made in _classes(module, owner):
        yield from methods_named(home, made, callee.attr)


def _classes(module: ModuleFacts, node: ast.expr) -> Iterator[tuple[ModuleFacts, ast.ClassDef]]:
    """The classes that what makes an object names, among them those of its parts."""
    made = modules_of(module, node)
    if isinstance(node, ast.Name):
        made += [b.value for b in module.names.visible(node) if b.value is not None]
    for value in made:
        for call in walk(value):
            if isinstance(call, ast.Call):
                yield from classes_named(module, call.func)
