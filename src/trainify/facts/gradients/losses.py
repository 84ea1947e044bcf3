"""What a loss carries of its predictions and labels."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..carried import Carried, together
from ..differentiation import PASSED_ON

if TYPE_CHECKING:
    from . import Gradients

_LABEL = re.compile(r"(^|_)(y|labels?|targets?|gt|truth)(_|$)", re.IGNORECASE)


def of_loss(
    gradients: Gradients, node: ast.Call, values: Sequence[Carried], at: ast.stmt
) -> Carried:
    """What a loss of predictions and labels carries."""
    if len(node.args) == 2 and _is_label(gradients, node.args[1], at):
        sure = frozenset(cut for cut in values[0].cuts if cut.sure)
        if sure or not values[0].nothing:
            return replace(together([values[0], *values[2:]]), cuts=sure, plain=False)
    return replace(together(values), plain=False)


def _is_label(gradients: Gradients, node: ast.expr, at: ast.stmt) -> bool:
    """``y``, ``labels``: handed in, or from a loop over data."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in PASSED_ON and _is_label(gradients, node.func.value, at)
    if not isinstance(node, ast.Name) or not _LABEL.search(node.id):
        return False
    if not gradients.is_local(node.id):
        return False
    return all(
        d.is_parameter
        or isinstance(d.statement, (ast.For, ast.AsyncFor))
        or (
            isinstance(d.value, ast.Call)
            and isinstance(d.value.func, ast.Attribute)
            and d.value.func.attr in ("to", "cuda", "long", "float")
            and isinstance(d.value.func.value, ast.Name)
        )
        for d in gradients.flow.reaching(node.id, at)
    )
