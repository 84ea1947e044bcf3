"""Which models a file makes, and of which of its classes they consist."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .frozen import is_frozen
from .layers import made_by
from .walk import walk

if TYPE_CHECKING:
    from .module import ModuleFacts

_MAX_DEPTH = 6
"""How far functions that hand a model on are followed."""


def values_of(
    module: ModuleFacts, node: ast.expr, depth: int = 0
) -> Iterator[ast.expr | ast.ClassDef]:
    """What a model was made by: its class where it is ``self``, else the expressions."""
    if isinstance(node, ast.Name):
        cls = module.names.self_class(node)
        if cls is not None:
            yield cls
            return
        function = module.function(node)
        flow = module.flow(function or module.tree)
        definition = flow.only_definition(node.id, module.statement(node))
        if definition is None:
            return
        if definition.value is not None and definition.index is None:
            yield definition.value
        elif definition.is_parameter and function is not None:
            for call in module.calls:
                if function.name not in (
                    getattr(call.func, "id", ""),
                    getattr(call.func, "attr", ""),
                ):
                    continue
                argument = module.project.argument(module, function, call, node.id)
                if isinstance(argument, ast.Name) and depth < _MAX_DEPTH:
                    yield from values_of(module, argument, depth + 1)
                elif isinstance(argument, ast.Call):
                    yield argument
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        cls = module.names.self_class(node.value)
        for binding in module.names.attributes(cls).get(node.attr, ()) if cls else ():
            if binding.value is not None:
                yield binding.value


def classes_in(module: ModuleFacts, made: ast.expr | ast.ClassDef) -> Iterator[ast.ClassDef]:
    """The classes of the file whose instances a model holds, each once."""
    seen: set[ast.ClassDef] = set()
    pending: list[ast.expr | ast.ClassDef] = [made]
    while pending:
        current = pending.pop()
        if not isinstance(current, ast.ClassDef):
            pending += _constructed(module, current)
        elif current not in seen:
            seen.add(current)
            yield current
            for bindings in module.names.attributes(current).values():
                pending += [b.value for b in bindings if b.value is not None]


def learns(module: ModuleFacts, layer: ast.expr) -> bool:
    """Whether an expression, ``model.fc``, surely is a layer of torch's whose weights learn."""
    if not isinstance(layer, ast.Attribute) or layer.attr in module.rebound:
        return False
    owners = list(_classes_of(module, layer.value))
    return bool(owners) and all(_holds_layer(module, cls, layer.attr) for cls in owners)


def _classes_of(module: ModuleFacts, node: ast.expr) -> Iterator[ast.ClassDef]:
    """The classes of the file that an object can be an instance of."""
    if isinstance(node, ast.Name):
        for made in values_of(module, node):
            if isinstance(made, ast.ClassDef):
                yield made
            else:
                yield from _constructed(module, made)
    elif isinstance(node, ast.Attribute):
        for owner in _classes_of(module, node.value):
            for binding in module.names.attributes(owner).get(node.attr, ()):
                if binding.value is not None:
                    yield from _constructed(module, binding.value)


def _holds_layer(module: ModuleFacts, cls: ast.ClassDef, name: str) -> bool:
    bindings = module.names.attributes(cls).get(name, [])
    return (
        bool(bindings)
        and not is_frozen(module, cls, name)
        and all(
            isinstance(b.value, ast.Call)
            and any(t.name.startswith("torch.nn.") for t in module.resolve(b.value.func))
            and made_by(module, b.value) == "weights"
            for b in bindings
        )
    )


def _constructed(module: ModuleFacts, value: ast.expr) -> Iterator[ast.ClassDef]:
    """The classes of the file that an expression calls."""
    for node in walk(value):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for binding in module.names.visible(node.func):
                if isinstance(binding.node, ast.ClassDef):
                    yield binding.node
