"""Models that are put together of modules which they are given: ``Sam(encoder, decoder)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .called import method_of
from .frozen import is_frozen
from .layers import classes_named, has_weights, is_module_class
from .memo import once
from .names import parameters
from .trainable import is_reference
from .walk import walk

if TYPE_CHECKING:
    from .module import ModuleFacts


@once
def is_put_together(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether a class is given several modules with weights, by the classes of the project.

    One alone is wrapped by what only uses it, to measure or to draw.
    """
    return sum(1 for _ in _parts(module, cls)) > 1


def _parts(module: ModuleFacts, cls: ast.ClassDef) -> Iterator[str]:
    """The attributes that hold such modules: ``self.encoder = encoder``."""
    init = method_of(cls, "__init__")
    if init is None:
        return
    given = {a.arg: a.annotation for a in parameters(init.args) if a.annotation is not None}
    for statement in init.body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        target, value = statement.targets[0], statement.value
        if not isinstance(target, ast.Attribute) or not isinstance(value, ast.Name):
            continue
        annotation = given.get(value.id)
        if annotation is None or is_reference(target.attr) or is_frozen(module, cls, target.attr):
            continue
        if any(_is_with_weights(module, node) for node in walk(annotation)):
            yield target.attr


def _is_with_weights(module: ModuleFacts, node: ast.AST) -> bool:
    """Whether an annotation, or a part of one, names a module of the project that has weights."""
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    for home in classes_named(module, node):
        if is_module_class(*home):
            return has_weights(*home) or is_put_together(*home)
    return False
