"""Calls that are given a function, or a module, and run it: ``checkpoint(self.norm, x, residual)``.

What runs it gives it its other arguments, and most often what it returns.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from .called import positional
from .memo import once_judged
from .names import last_name
from .walk import walk

if TYPE_CHECKING:
    from .instances import Instances
    from .module import FunctionNode, ModuleFacts

_KEEPS = re.compile(
    r"partial|compile|script|isinstance|[gs]etattr|hasattr|print|append|extend|insert|add_module"
    r"|register|Sequential|Module(List|Dict)|load|init|hook|log|save|copy|type|zip",
    re.IGNORECASE,
)
"""Names of what takes a function, or a module, and does not run it there."""

_WRAPPERS = ("compile", "script", "disable")


class Handed(NamedTuple):
    """A call that hands something on, in its file.

    ``arguments`` are those that go with it, by the parameter that gets them, None where that does
    not show.
    """

    module: ModuleFacts
    call: ast.Call
    arguments: tuple[tuple[str | None, ast.expr], ...]


def objects_with(module: ModuleFacts, function: FunctionNode) -> Instances | None:
    """The objects whose forward a function is; None where it is none."""
    from .instances import instances_of

    cls = module.method_class(function)
    named = function.name in ("forward", "__call__")
    return instances_of(module, cls) if cls is not None and named else None


@once_judged
def handed_on(module: ModuleFacts, function: FunctionNode) -> tuple[Handed, ...]:
    """The calls in the project that a function is handed to, or an object whose forward it is."""
    return tuple(_handed_on(module, function))


def _handed_on(module: ModuleFacts, function: FunctionNode) -> Iterator[Handed]:
    files, is_it = _looked_for(module, function, objects_with(module, function))
    names = positional(module, function)
    for other in files:
        for call in other.calls:
            if len(call.args) + len(call.keywords) < 2 or _KEEPS.search(last_name(call.func)):
                continue
            around = other.function(call)
            if around is None or around.name == "__init__":
                continue
            for value in (*call.args, *(k.value for k in call.keywords)):
                if _is_handed(other, value, is_it):
                    yield Handed(other, call, _with_it(call, value, names, function))
                    break


def _looked_for(
    module: ModuleFacts, function: FunctionNode, objects: Instances | None
) -> tuple[Iterator[ModuleFacts], Callable[[ModuleFacts, ast.expr], bool]]:
    """The files to look at, and whether an expression in one of them is the function."""
    cls, name = module.method_class(function), function.name
    if objects is not None:

        def holds(other: ModuleFacts, node: ast.expr) -> bool:
            if isinstance(node, ast.Attribute) and node.attr == name:
                node = node.value
            return bool(objects.origins(other, node))

        return iter(objects.files), holds

    def names(other: ModuleFacts, node: ast.expr) -> bool:
        if cls is not None:
            return isinstance(node, ast.Attribute) and node.attr == name
        found = other.names.resolve(node)
        return any(target.name.rpartition(".")[2] == name for target in found)

    return module.project.mentioning(module, name), names


def _is_handed(
    module: ModuleFacts, value: ast.expr, is_it: Callable[[ModuleFacts, ast.expr], bool]
) -> bool:
    """Whether a value is what is looked for, by itself or in a ``partial`` or a lambda."""
    if isinstance(value, ast.Lambda):
        calls = (node for node in walk(value.body) if isinstance(node, ast.Call))
        return any(is_it(module, call.func) for call in calls)
    if isinstance(value, ast.Call) and value.args:
        if last_name(value.func) in ("partial", *_WRAPPERS):
            return _is_handed(module, value.args[0], is_it)
        return False
    return isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)) and is_it(module, value)


def _with_it(
    call: ast.Call, value: ast.expr, names: list[str], function: FunctionNode
) -> tuple[tuple[str | None, ast.expr], ...]:
    bound = value.args[1:] if isinstance(value, ast.Call) else []
    placed = [*bound, *(a for a in call.args if a is not value)]
    named = [(k.arg, k.value) for k in call.keywords if k.arg in names and k.value is not value]
    needed = len(names) - len(function.args.defaults)
    fits = (
        needed <= len(placed) + len(named) <= len(names)
        and not isinstance(value, ast.Lambda)
        and not any(isinstance(a, ast.Starred) for a in placed)
    )
    if fits:
        return (*zip(names, placed, strict=False), *named)
    parts = (a.value if isinstance(a, ast.Starred) else a for a in placed)
    return tuple((None, a) for a in (*parts, *(v for _, v in named)) if isinstance(a, ast.Name))
