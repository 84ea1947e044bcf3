"""What a call in a method runs, where the file shows it: ``self.f(x)``, ``b(x)`` in a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from .elements import elements_of, looped_over
from .layers import bases_of, imported_function
from .names import last_name, placed
from .walk import walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MAX_DEPTH = 3


def functions_of(
    module: ModuleFacts, callee: ast.expr
) -> Iterator[tuple[ModuleFacts, FunctionNode]]:
    """The functions of the project that a call by name, or of an own method, runs."""
    if isinstance(callee, ast.Name):
        nodes = [binding.node for binding in module.names.visible(callee)]
        own = [node for node in nodes if isinstance(node, _FUNCTIONS)]
        yield from ((module, function) for function in own)
        if own:
            return
    elif isinstance(callee, ast.Attribute) and isinstance(callee.value, ast.Name):
        cls = module.names.self_class(callee.value)
        if cls is not None:
            yield from methods_named(module, cls, callee.attr)
            return
    if isinstance(callee, (ast.Name, ast.Attribute)):
        found = imported_function(module, callee)
        if found is not None:
            yield found


def methods_named(
    module: ModuleFacts, cls: ast.ClassDef, name: str, depth: int = 0
) -> Iterator[tuple[ModuleFacts, FunctionNode]]:
    """The methods of a class by a name, else those of its bases in the project."""
    own = [node for node in cls.body if isinstance(node, _FUNCTIONS) and node.name == name]
    yield from ((module, function) for function in own)
    if not own and depth < _MAX_DEPTH:
        for home, base in bases_of(module, cls):
            yield from methods_named(home, base, name, depth + 1)


def modules_of(module: ModuleFacts, callee: ast.expr) -> list[ast.expr]:
    """The expressions that make the module which is called; none where that does not show.

    ``self.f`` is one, ``self.blocks[i]`` and ``b`` in ``for b in self.blocks`` may be any of them.
    """
    held: Iterable[ast.expr | None] = ()
    if isinstance(callee, ast.Subscript):
        held = elements_of(module, callee)
    elif isinstance(callee, ast.Name):
        loop = _loop(module, callee)
        held = looped_over(module, loop, callee.id) if loop is not None else ()
    elif isinstance(callee, ast.Attribute) and isinstance(callee.value, ast.Name):
        cls = module.names.self_class(callee.value)
        if cls is not None and callee.attr not in module.rebound:
            held = (b.value for b in module.names.attributes(cls).get(callee.attr, ()))
    return [made for made in held if made is not None]


def _loop(module: ModuleFacts, name: ast.Name) -> ast.For | ast.AsyncFor | None:
    """The loop around that takes a name from something: ``for block in self.blocks``."""
    for scope in module.ancestors(name):
        if isinstance(scope, (ast.For, ast.AsyncFor)):
            if any(isinstance(n, ast.Name) and n.id == name.id for n in walk(scope.target)):
                return scope
        elif isinstance(scope, _FUNCTIONS):
            break
    return None


def functions_in(node: ast.ClassDef | FunctionNode) -> Iterator[FunctionNode]:
    """The functions that stand in the body of a class, or of a function."""
    return (each for each in node.body if isinstance(each, _FUNCTIONS))


def method_of(cls: ast.ClassDef, name: str) -> FunctionNode | None:
    """The method that stands in the body of a class by this name."""
    return next((each for each in functions_in(cls) if each.name == name), None)


def positional(module: ModuleFacts, function: FunctionNode) -> list[str]:
    """The parameters that positional arguments become, without that for the object itself."""
    names = placed(function)
    static = any(last_name(each) == "staticmethod" for each in function.decorator_list)
    bound = module.method_class(function) is not None and not static
    return names[1:] if bound else names
