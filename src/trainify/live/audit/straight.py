"""Stops beside which the same value stands with its history.

``x + (rounded - x).detach()``, or ``hard - soft.detach() + soft``: the value of one thing with the
gradient of another.  ``exp(logp - logp.detach())``, or ``p / p.detach()``: a number that is known,
with the gradient of a ratio.  ``0.1 * h + 0.9 * h.detach()``: a share of a gradient.  Nobody
computes these for their values, so they are meant.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from functools import lru_cache

from ...facts.walk import walk
from .places import Place
from .targets import with_parents

_SUMS = (ast.Add, ast.Sub)
_COMPUTED = (*_SUMS, ast.Mult, ast.Div)
_DIFFERENCES = {"sub", "subtract"}

Term = tuple[int, str, bool]
"""A sign, a value as it is written, and whether it is stopped."""


@lru_cache(maxsize=4096)
def is_straight_through(place: Place) -> bool:
    """Whether each stop on a line takes away, or divides by, what stands beside it."""
    tree, parents = with_parents(place.path)
    stops = [
        node
        for node in (walk(tree) if tree else ())
        if (value := _stopped(node)) is not None
        and isinstance(node, ast.expr)
        and value.lineno <= place.line <= (node.end_lineno or 0)
    ]
    return bool(stops) and all(_is_taken_away(stop, parents) for stop in stops)


def _is_taken_away(stop: ast.expr, parents: dict[ast.AST, ast.AST]) -> bool:
    loads: list[ast.AST] = [stop]
    names: dict[str, ast.expr] = {}
    parent = parents[stop]
    while isinstance(parent, ast.IfExp):  # `logp.detach() if old is None else old`
        parent = parents[parent]
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        name = parent.targets[0].id
        names[name] = stop
        function = _function(parent, parents)
        stores = [n for n in walk(function) if _is_name(n, name, ast.Store)]
        loads = [n for n in walk(function) if _is_name(n, name, ast.Load)]
        if len(stores) != 1 or not loads:
            return False
    own = {text for _, text, _ in _terms(stop, {})}
    return all(any(_cancels(each, names, own) for each in _around(n, parents)) for n in loads)


def _is_name(node: ast.AST, name: str, context: type) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, context)


def _function(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.AST:
    while not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)):
        node = parents[node]
    return node


def _around(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.AST]:
    """The sums, differences, products and quotients in which a value stands, from inside out."""
    while True:
        yield node
        parent = parents[node]
        if isinstance(parent, ast.Attribute):  # of a method, `a.sub`
            parent = parents[parent]
        computed = isinstance(parent, ast.BinOp) and isinstance(parent.op, _COMPUTED)
        if not (computed or isinstance(parent, ast.UnaryOp) or _difference(parent)):
            return
        node = parent


def _cancels(node: ast.AST, names: dict[str, ast.expr], own: Set[str]) -> bool:
    """Whether what stands there takes away, or divides by, a value that it has with its history.

    One of ``own``, of which the stopped value is made: ``(a - a.detach()) + b.detach()`` loses the
    gradient of ``b``.
    """
    terms = list(_terms(node, names))
    stops = [(sign, text) for sign, text, stopped in terms if stopped and text in own]
    if any((-sign, text, False) in terms for sign, text in stops):
        return True
    if _shares(node, names, own):
        return True
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
        return False
    over, under = list(_terms(node.left, names)), list(_terms(node.right, names))
    meant = any(text in own and not stopped for _, text, stopped in over)
    return meant and under == [(sign, text, True) for sign, text, _ in over]


def _shares(node: ast.AST, names: dict[str, ast.expr], own: Set[str]) -> bool:
    """``0.1 * h + 0.9 * h.detach()``: a share of the gradient, with all of the value."""
    summands, shares = [node], set()
    while summands:
        each = summands.pop()
        if not isinstance(each, ast.BinOp):
            continue
        if isinstance(each.op, _SUMS):
            summands += [each.left, each.right]
        elif isinstance(each.op, ast.Mult):
            for factor, other in ((each.left, each.right), (each.right, each.left)):
                found = list(_terms(factor, names))
                if len(found) == 1 and not any(stopped for *_, stopped in _terms(other, names)):
                    shares.add(found[0][1:])
    return any((text, True) in shares and (text, False) in shares for text in own)


def _terms(
    node: ast.AST, names: dict[str, ast.expr], sign: int = 1, stopped: bool = False
) -> Iterator[Term]:
    if isinstance(node, ast.Name) and node.id in names:
        yield from _terms(names[node.id], {}, sign, stopped)
    elif (value := _stopped(node)) is not None:
        yield from _terms(value, names, sign, True)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield from _terms(node.operand, names, -sign, stopped)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, _SUMS):
        yield from _terms(node.left, names, sign, stopped)
        other = -sign if isinstance(node.op, ast.Sub) else sign
        yield from _terms(node.right, names, other, stopped)
    elif (pair := _difference(node)) is not None:
        yield from _terms(pair[0], names, sign, stopped)
        yield from _terms(pair[1], names, -sign, stopped)
    else:
        yield sign, ast.unparse(node), stopped


def _difference(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """``torch.sub(a, b)`` or ``a.sub(b)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    values = [node.func.value, *node.args]
    if ast.unparse(values[0]) == "torch":
        del values[0]
    if node.func.attr not in _DIFFERENCES or node.keywords or len(values) != 2:
        return None
    return values[0], values[1]


def _stopped(node: ast.AST) -> ast.expr | None:
    """What ``x.detach()`` or ``x.data`` takes the value of."""
    if isinstance(node, ast.Attribute) and node.attr == "data":
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.value if node.func.attr == "detach" else None
    return None
