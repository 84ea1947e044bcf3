"""What a tensor says of itself beside its values."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .names import last_name

if TYPE_CHECKING:
    from .module import ModuleFacts

TRAITS = frozenset("shape dtype device ndim layout is_cuda itemsize".split())
"""Attributes that no gradient passes, and that computing another value does not change."""

SIZES = frozenset("size dim numel stride".split())
"""Methods that give the same."""

METADATA = TRAITS | SIZES

_LEAVES_GRAPH = METADATA | frozenset("item detach data numpy tolist argmax argmin backward".split())
_SHOWS = frozenset("print len float int bool str isinstance isnan isfinite isinf".split())


def keeps_graph(module: ModuleFacts, name: ast.Name) -> bool:
    """Whether what reads a tensor goes on with its graph, or cannot take it: ``hist.append(loss)``.

    Text, numbers, indices and tensors that are only made like it have none.
    """
    parent = module.parent(name)
    if isinstance(parent, ast.Attribute):
        return parent.attr not in _LEAVES_GRAPH and not parent.attr.startswith("new_")
    if isinstance(parent, ast.Call) and name in parent.args:
        called = last_name(parent.func)
        return called not in _SHOWS and not called.endswith("_like")
    return not isinstance(parent, (ast.FormattedValue, ast.Compare)) and isinstance(
        name.ctx, ast.Load
    )
