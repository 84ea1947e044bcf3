"""Gradients that are stopped on purpose, as far as names and what is kept show it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .grad_mode import own_nodes

if TYPE_CHECKING:
    from .module import ModuleFacts

_ON_PURPOSE = re.compile(
    r"fake|discrim|\bdisc(?:\b|_)|\bD$|netD\b|critic|advantage|baseline"
    r"|teacher|target|momentum|frozen|\bema(?:\b|_)|_ema\b|\bold_|\bref_|reference"
    r"|stop_?grad|codebook|probe|lpips|vgg|inception|perceptual|reward",
    re.IGNORECASE,
)

_IN_PLACE = re.compile(r"[a-z]_$|^(?:append|extend|insert|update|setdefault)$")


def looks_meant(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether a gradient that ends at a statement is likely to be stopped on purpose.

    By its names (those that it assigns, what it calls, its function): what a generator has made,
    for its discriminator; targets and what gives them; a critic's value; networks that losses are
    measured with.  Or since it keeps a value for the next call, which must not keep its history.
    """
    return is_named_so(module, statement) or keeps_value(statement)


def is_named_so(module: ModuleFacts, statement: ast.stmt) -> bool:
    """The same, by its names alone."""
    return any(_ON_PURPOSE.search(name) for name in _names(module, statement))


def keeps_value(statement: ast.stmt) -> bool:
    """Whether a statement keeps a value for the next call."""
    return any(_is_kept(node) for node in (statement, *own_nodes(statement)))


def _is_kept(node: ast.AST) -> bool:
    """``self.state = ...``, ``self.cache[i] = ...``, ``self.cache.copy_(...)``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _IN_PLACE.search(node.func.attr) is not None and _is_attribute(node.func.value)
    return isinstance(getattr(node, "ctx", None), ast.Store) and _is_attribute(node)


def _is_attribute(node: ast.AST) -> bool:
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Attribute)


def _names(module: ModuleFacts, statement: ast.stmt) -> Iterator[str]:
    yield getattr(module.function(statement), "name", "")
    for node in (statement, *own_nodes(statement)):
        if isinstance(node, ast.Call):
            yield module.source(node.func)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
