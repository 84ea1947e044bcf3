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


def _goes_into_loss(stop: ast.expr, parents: dict[ast.AST, ast.AST]) -> bool:
    parent = parents[stop]
    if not (isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name)):
        return _is_argument(stop, parents)
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
    return len(parent.targets) == 1 and bool(loads) and all(_is_argument(n, parents) for n in loads)


def _is_argument(node: ast.expr, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether it is given to a loss function as it is, beside something else."""
    call = parents[node]
    if isinstance(call, ast.keyword):
        call = parents[call]
    if not isinstance(call, ast.Call) or call.func is node or len(call.args + call.keywords) < 2:
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    return name.lower().endswith(_LOSSES)


@lru_cache(maxsize=32)
def with_parents(path: str) -> tuple[ast.Module | None, dict[ast.AST, ast.AST]]:
    """The tree of a source file, None where there is none, and what stands around its nodes."""
    tree = parsed(path)
    if tree is None:
        return None, {}
    return tree, {child: node for node in walk(tree) for child in ast.iter_child_nodes(node)}
