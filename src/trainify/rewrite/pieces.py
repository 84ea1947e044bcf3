"""A piece of a tensor that is written anew, and the tensor that it was cut from.

What ``split`` gives are views of which none may be written in place once there is a graph, so the
whole tensor is put together anew, of the new piece and the old ones beside it.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from ..facts import ModuleFacts
from ..facts.flow import Definition, FunctionFlow
from ..facts.names import last_name
from ..facts.views import SPLITS
from ..facts.walk import walk

_RESHAPES = frozenset("view squeeze unsqueeze unflatten".split())
"""Others copy a piece where it has to be, so that the whole is not written."""
_SPLITS = ("split", "split_with_sizes")


def gives_several(node: ast.expr) -> bool:
    """Whether an expression gives several views of a tensor, in a tuple."""
    return isinstance(node, ast.Call) and last_name(node.func) in SPLITS


def put_together(
    module: ModuleFacts, flow: FunctionFlow, made: Definition, base: str, statement: ast.stmt
) -> str | None:
    """The line that makes ``base`` anew after a piece of it is, or None where that is not plain.

    ``made`` is ``k = x.split([a, b], dim=-1)[1]`` or ``k = x[..., a:].unsqueeze(1)``, with shapes
    changed behind it or not, or ``q, k = x.split([a, b], dim=-1)``.
    """
    node, reshaped = made.value, False
    while isinstance(node, ast.Call) and last_name(node.func) in _RESHAPES:
        if not isinstance(node.func, ast.Attribute):
            return None
        node, reshaped = node.func.value, True
    bounds = _sliced(node, base) if reshaped else None
    if bounds is None:
        bounds = _split(module, node, base, made.index)
    torch = module.names.resolve_name("torch", statement)
    if bounds is None or [target.name for target in torch] != ["torch"]:
        return None
    if made.statement is None:
        return None
    if not all(flow.is_steady(size, made.statement, statement) for size in bounds.read):
        return None
    piece = made.name
    if reshaped:
        piece += f".reshape_as({base}[..., {bounds.start}:{bounds.end}])"
    before = [f"{base}[..., :{bounds.start}]"] if bounds.start else []
    behind = [f"{base}[..., {bounds.end}:]"] if bounds.end else []
    return f"{base} = torch.cat(({', '.join([*before, piece, *behind])}), dim=-1)"


class _Bounds(NamedTuple):
    """Where a piece of the last dimension starts and ends, empty for the ends of it."""

    start: str
    end: str
    read: list[ast.expr]


def _sliced(node: ast.expr | None, base: str) -> _Bounds | None:
    """``a`` of ``x[..., a:]``, where x is the name ``base``."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
        return None
    index = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
    if node.value.id != base or len(index) != 2 or not isinstance(index[1], ast.Slice):
        return None
    if not isinstance(index[0], ast.Constant) or index[0].value is not Ellipsis or index[1].step:
        return None
    bounds = [each for each in (index[1].lower, index[1].upper) if each is not None]
    if not bounds or not _are_plain(bounds):
        return None
    start, end = ("" if b is None else ast.unparse(b) for b in (index[1].lower, index[1].upper))
    return _Bounds(start, end, bounds)


def _split(module: ModuleFacts, node: ast.expr | None, base: str, index: object) -> _Bounds | None:
    """``a`` and the end of ``x.split([a, b], dim=-1)[1]``, where x is the name ``base``."""
    if index is None and isinstance(node, ast.Subscript):
        index = node.slice.value if isinstance(node.slice, ast.Constant) else None
        node = node.value
    sizes = _sizes(node, base)
    if sizes is None or not isinstance(index, int) or not 0 <= index < len(sizes):
        return None
    texts = [module.source(each) for each in sizes]
    end = " + ".join(texts[: index + 1]) if index < len(sizes) - 1 else ""
    return _Bounds(" + ".join(texts[:index]), end, sizes)


def _sizes(node: ast.expr | None, base: str) -> list[ast.expr] | None:
    """``[a, b]`` of ``x.split([a, b], dim=-1)``, where x is the name ``base``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    owner, given = node.func.value, {k.arg: k.value for k in node.keywords}
    if node.func.attr not in _SPLITS or not isinstance(owner, ast.Name) or owner.id != base:
        return None
    dim = given.get("dim", node.args[1] if len(node.args) > 1 else None)
    sizes = node.args[0] if node.args else None
    if dim is None or ast.unparse(dim) != "-1" or not isinstance(sizes, (ast.List, ast.Tuple)):
        return None
    return sizes.elts if _are_plain(sizes.elts) else None


def _are_plain(nodes: list[ast.expr]) -> bool:
    """Whether numbers may be computed a second time."""
    plain = (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.UnaryOp)
    return all(isinstance(n, plain) for each in nodes for n in walk(each))
