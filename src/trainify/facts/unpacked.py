"""What a call passes by ``*`` and ``**``, where the list or the dict can be read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts


def argument_for(
    module: ModuleFacts, function: FunctionNode, other: ModuleFacts, call: ast.Call, parameter: str
) -> ast.expr | None:
    """What a call in ``other`` passes for a parameter of a function; None when it is left out.

    Where it may be in something that is unpacked and cannot be read, that.
    """
    if not any(isinstance(a, ast.Starred) for a in call.args) and all(
        k.arg is not None for k in call.keywords
    ):
        return module.project.argument(module, function, call, parameter)
    placed, named = list(_placed(other, call)), list(_named(other, call))
    plain = ast.Call(call.func, placed, [k for k in named if k.arg is not None])
    unread = next((a for a in placed if isinstance(a, ast.Starred)), None)
    if unread is not None:
        plain.args = placed[: placed.index(unread)]
    found = module.project.argument(module, function, plain, parameter)
    if found is not None:
        return found
    if unread is not None:
        return unread.value
    return next((k.value for k in named if k.arg is None), None)


def _placed(module: ModuleFacts, call: ast.Call) -> Iterator[ast.expr]:
    for argument in call.args:
        if isinstance(argument, ast.Starred):
            made = _literal(module, call, argument.value)
            if isinstance(made, (ast.List, ast.Tuple)):
                yield from made.elts
                continue
        yield argument


def _named(module: ModuleFacts, call: ast.Call) -> Iterator[ast.keyword]:
    for keyword in call.keywords:
        made = _literal(module, call, keyword.value) if keyword.arg is None else None
        if isinstance(made, ast.Dict):
            for key, value in zip(made.keys, made.values, strict=True):
                text = key.value if isinstance(key, ast.Constant) else None
                yield ast.keyword(text if isinstance(text, str) else None, value)
        elif isinstance(made, ast.Call) and not made.args:  # dict(x=x)
            yield from made.keywords
        else:
            yield keyword


def _literal(module: ModuleFacts, call: ast.Call, node: ast.expr) -> ast.expr:
    """What is unpacked, or the one thing that a local name of it was last set to."""
    if isinstance(node, ast.Name):
        flow = module.flow(module.function(call) or module.tree)
        made = flow.only_definition(node.id, module.statement(call))
        if made is not None and made.index is None and made.value is not None:
            node = made.value
    if isinstance(node, ast.Call) and not (
        isinstance(node.func, ast.Name) and node.func.id == "dict"
    ):
        return ast.Name("_")
    return node
