"""Which attributes of a class a file freezes: ``self.embed.requires_grad_(False)``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .names import passed
from .walk import walk

if TYPE_CHECKING:
    from .module import ModuleFacts


def is_frozen(module: ModuleFacts, cls: ast.ClassDef, name: str) -> bool:
    """Whether ``self.name`` is frozen, where it is made or by a statement of the file."""
    for binding in module.names.attributes(cls).get(name, ()):
        if binding.value is not None and _makes_frozen(module, binding.value):
            return True
    return any(_is_of(module, cls, name, node) for node in module.frozen_places)


def _makes_frozen(module: ModuleFacts, node: ast.expr) -> bool:
    """``nn.Linear(...).eval().requires_grad_(False)``, ``nn.Embedding.from_pretrained(table)``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if freezes(node):
            return True
        if node.func.attr == "from_pretrained":
            if module.is_name(node.func.value, "torch.nn.Embedding", "torch.nn.EmbeddingBag"):
                return _freeze_argument(node)
        node = node.func.value
    return False


def _freeze_argument(call: ast.Call) -> bool:
    """What ``from_pretrained(table, freeze=True)`` of an embedding is told, or does by default."""
    given = [k.value for k in call.keywords if k.arg == "freeze"] or call.args[1:2]
    return all(isinstance(value, ast.Constant) and value.value is True for value in given)


def freezes(node: ast.expr) -> bool:
    """``x.requires_grad_(False)``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    given = passed(node)
    return node.func.attr == "requires_grad_" and any(is_false(value) for value in given)


def is_false(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _is_of(module: ModuleFacts, cls: ast.ClassDef, name: str, node: ast.expr) -> bool:
    """Whether what is frozen is ``name`` of an instance of ``cls``, or of one called a model."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in ("parameters", "named_parameters"):
            return False
        node = node.func.value
    if isinstance(node, ast.Attribute) and node.attr in ("weight", "bias"):
        node = node.value
    if not isinstance(node, ast.Attribute) or node.attr != name:
        return False
    if isinstance(node.value, ast.Name):
        owner = module.names.self_class(node.value)
        if owner is not None:
            return owner is cls
    return not _ANOTHER.search(module.source(node.value))


_ANOTHER = re.compile(r"teacher|ema|target|ref|frozen|old|critic|reward", re.IGNORECASE)
"""Names of models beside the one that is trained."""


def frozen_places(module: ModuleFacts) -> Iterator[ast.expr]:
    """What the statements of a file freeze; :class:`ModuleFacts` asks once."""
    for statement in module.statements:
        if isinstance(statement, ast.Expr) and freezes(statement.value):
            assert isinstance(statement.value, ast.Call)
            assert isinstance(statement.value.func, ast.Attribute)
            yield _through_loop(module, statement.value.func.value, statement)
        elif isinstance(statement, ast.Assign) and is_false(statement.value):
            for target in statement.targets:
                if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
                    yield _through_loop(module, target.value, statement)


def _through_loop(module: ModuleFacts, node: ast.expr, statement: ast.stmt) -> ast.expr:
    """``self.embed.parameters()`` for the ``p`` of a loop over them; of loops in loops as well."""
    root = node
    while isinstance(root, (ast.Attribute, ast.Call)):
        root = root.func if isinstance(root, ast.Call) else root.value
    loop = module.parent(statement)
    if isinstance(root, ast.Name) and isinstance(loop, ast.For):
        if any(isinstance(n, ast.Name) and n.id == root.id for n in walk(loop.target)):
            return _through_loop(module, loop.iter, loop)
    return node
