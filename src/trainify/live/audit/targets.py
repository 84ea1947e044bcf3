"""Values that are detached because a loss holds others against them.

The codebook of a VQ-VAE, the other branch of a siamese network, a soft label: such a stop is a part
of the loss.  The source shows it: what ``detach`` returns goes nowhere but into a loss function.
"""

from __future__ import annotations

import ast
from functools import lru_cache

from ...facts.walk import walk
from .places import Place, parsed

_LOSSES = ("loss", "similarity", "kl_div", "entropy")
"""How the names of functions and modules end that hold values against each other."""

_RANKINGS = ("ranking_loss", "rankingloss")
"""How those of them end that make one result larger than another, and teach both."""


def is_target(place: Place) -> bool:
    """Whether each ``detach()`` on the line gives a loss function what it holds others against."""
    tree, parents = with_parents(place.path)
    stops = [
        node
        for node in (walk(tree) if tree else ())
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "detach"
        and node.func.end_lineno == place.line
    ]
    return bool(stops) and all(_goes_into_loss(stop, parents) for stop in stops)


_SAME_PLACE = frozenset(
    "softmax log_softmax sigmoid tanh exp log sqrt square pow mul div add sub neg clamp float to "
    "view reshape unsqueeze squeeze".split()
)
"""What a target is computed by, element by element: ``(v / t.detach()).exp()``."""


def _goes_into_loss(stop: ast.expr, parents: dict[ast.AST, ast.AST]) -> bool:
    top = _computed(stop, parents)
    made = top is not stop
    parent = parents[top]
    if not (isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name)):
        return _is_argument(top, parents, made)
    function: ast.AST = parent
    while not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
        function = parents[function]
    loads = [
        node
        for node in walk(function)
        if isinstance(node, ast.Name)
        and node.id == parent.targets[0].id
        and isinstance(node.ctx, ast.Load)
        and node.lineno > stop.lineno
    ]
    one = len(parent.targets) == 1 and bool(loads)
    return one and all(_is_argument(n, parents, made) for n in loads)


def _computed(node: ast.expr, parents: dict[ast.AST, ast.AST]) -> ast.expr:
    """What is computed of a value by operators and by functions of each element."""
    while True:
        parent = parents[node]
        if isinstance(parent, (ast.BinOp, ast.UnaryOp)):
            node = parent
            continue
        call = parents.get(parent) if isinstance(parent, ast.Attribute) else parent
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return node
        if call.func is not parent and call.args[:1] != [node]:
            return node
        if call.func.attr not in _SAME_PLACE:
            return node
        node = call


def _is_argument(node: ast.expr, parents: dict[ast.AST, ast.AST], made: bool = False) -> bool:
    """Whether it is given to a loss function as it is, beside something else.

    What is ``made`` of a stop is one only where the function takes what others are held against.
    """
    call = parents[node]
    keyword = call.arg if isinstance(call, ast.keyword) else None
    if isinstance(call, ast.keyword):
        call = parents[call]
    if not isinstance(call, ast.Call) or call.func is node or len(call.args + call.keywords) < 2:
        return False
    if made and keyword != "target" and call.args[1:2] != [node]:
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    return name.lower().endswith(_LOSSES) and not name.lower().endswith(_RANKINGS)


@lru_cache(maxsize=32)
def with_parents(path: str) -> tuple[ast.Module | None, dict[ast.AST, ast.AST]]:
    """The tree of a source file, None where there is none, and what stands around its nodes."""
    tree = parsed(path)
    if tree is None:
        return None, {}
    return tree, {child: node for node in walk(tree) for child in ast.iter_child_nodes(node)}
