"""Attributes that an operation saved for backward, and that the same method overwrites later."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .activations import carries
from .destroyed import runs_before
from .grad_mode import no_grad_scope
from .guards import gradient_unwanted
from .kept import is_kept_buffer
from .names import self_name
from .saved import Saver, savers
from .walk import walk
from .writes import Write, attribute_of, is_view, root_of

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts


def destroyed_attribute(module: ModuleFacts, write: Write) -> Saver | None:
    """An operation before a write that saved the attribute of ``self`` which it overwrites.

    ``y = x * self.scale`` before ``self.scale.mul_(0.9)``, under ``no_grad`` as well: the values
    are no longer those that were saved.
    """
    function = module.function(write.statement)
    written = attribute_of(write.target)
    if function is None or written is None or _is_data(write.target):
        return None
    if gradient_unwanted(module, _outside(module, write.statement)):
        return None
    if module.method_class(function) is None or written.value.id != self_name(function):  # type: ignore[attr-defined]
        return None

    def is_written(operand: ast.expr) -> bool:
        saved = attribute_of(operand)
        return saved is not None and saved.attr == written.attr and not _is_data(operand)

    for saver in savers(module, function, is_written):
        _, path = root_of(saver.operand)
        if any(isinstance(n, ast.Subscript) and not is_view(module, n) for n in path):
            continue  # a copy: self.table[index]
        if not runs_before(module, saver.node, write) or gradient_unwanted(module, saver.node):
            continue
        if _is_tensor(module, function, written) and not _is_set(module, function, saver, write):
            return saver
    return None


def _outside(module: ModuleFacts, statement: ast.stmt) -> ast.stmt:
    """The statement, or the outermost of those around it that only switch gradients off."""
    parent = module.parent(statement)
    while isinstance(parent, (ast.With, ast.AsyncWith)) and any(
        no_grad_scope(module, item.context_expr, parent) for item in parent.items
    ):
        statement, parent = parent, module.parent(parent)
    return statement


def _is_data(node: ast.expr) -> bool:
    """Whether a write or an operand goes by ``.data``, whose writes nobody counts."""
    return any(isinstance(n, ast.Attribute) and n.attr == "data" for n in walk(node))


def _is_tensor(module: ModuleFacts, function: FunctionNode, written: ast.Attribute) -> bool:
    """Whether an attribute surely is a tensor: a number would get a new value, not be written."""
    if is_kept_buffer(module, written):
        return True
    cls = module.method_class(function)
    bindings = module.names.attributes(cls).get(written.attr, []) if cls is not None else []
    return bool(bindings) and all(
        b.value is not None and module.function(b.node) is function and carries(module, b.value)
        for b in bindings
    )


def _is_set(module: ModuleFacts, function: FunctionNode, saver: Saver, write: Write) -> bool:
    """Whether the attribute may be another tensor by the time of the write."""
    written = attribute_of(write.target)
    assert written is not None
    first, last = module.statement(saver.node).lineno, write.statement.lineno
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == written.attr
        and isinstance(node.ctx, ast.Store)
        and first <= node.lineno <= last
        and module.statement(node) is not write.statement
        for node in walk(function)
    )
