"""Matmuls of codes that an activation is rounded to on the spot: in training, of the activation.

No gradient passes through the rounding, so that one of the codes reaches nothing.  The weight's
codes and their scale are constants; times them, the activation itself has its gradient.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ...catalog import FusedOp
from ...catalog.reasons import CODES
from ...facts import ModuleFacts
from ...facts.walk import walk
from .calls import op_of
from .site import Site

if TYPE_CHECKING:
    from ...engine import Options

ACTIVATION = "before_rounding"
"""What the row of such a matmul calls what it computes from, which its call is not given."""

# Of what codes, weight and scales are: the activation, the weight, its scale, and the rest.
FORMS = {
    "scaled_mm": ("mm_of_codes", (1, 3)),
    "block_scaled_mm": ("block_mm_of_codes", (1, 3)),
}
_MOST = 2
"""So many arguments of a quantizing call are the activation, and what is known of its scale."""
_LOOK_AT = (
    "that `{0}` may count as it is when a gradient is wanted: `{1}` no longer rounds it there, and "
    "its gradient is that of the rounded one, straight through"
)


def of_activation(
    module: ModuleFacts,
    call: ast.Call,
    op: FusedOp,
    bound: Mapping[str, ast.expr | None],
    options: Options,
) -> tuple[FusedOp, dict[str, ast.expr | None]] | None:
    """The row and the arguments of a matmul by what its codes were rounded from.

    None where a call is no such matmul, or does not show it.
    """
    value = getattr(ast.parse(op.equivalent).body[0], "value", None) if op.equivalent else None
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return None
    form = FORMS.get(value.func.id)
    if form is None or not isinstance(value.args[0], ast.Name) or value.keywords:
        return None
    codes = bound.get(value.args[0].id)
    rounding = made_by(module, codes, call, options) if codes is not None else None
    if rounding is None or not 1 <= len(rounding.args) <= _MOST or _pads(rounding):
        return None
    activation = rounding.args[0]
    if not _same_there(module, activation, rounding, call):
        return None
    name, kept = form
    arguments = [ACTIVATION, *(ast.unparse(value.args[i]) for i in kept)]
    arguments += [ast.unparse(argument) for argument in value.args[4:]]
    left = (op.equivalent or "").partition("=")[0] if _assigns(op) else ""
    new = replace(
        op,
        schema=_with_argument(op.schema),
        equivalent=f"{f'{left.strip()} = ' if left else ''}{name}({', '.join(arguments)})",
        look_at=_LOOK_AT.format(module.source(activation), module.source(rounding.func)),
    )
    return new, {**bound, ACTIVATION: activation}


def only_codes(site: Site, options: Options) -> str:
    """Why no gradient reaches anything by a call that reads codes alone; empty where it does."""
    read = [node for name in site.differentiable if (node := site.bound[name]) is not None]
    made = [made_by(site.module, node, site.call, options) for node in read]
    if not made or None in made or ACTIVATION in site.bound:
        return ""
    names = dict.fromkeys(f"`{site.module.source(call.func)}`" for call in made if call is not None)
    return f"its codes come from {' and '.join(names)}, through which no gradient passes"


def made_by(
    module: ModuleFacts, codes: ast.expr, reader: ast.expr, options: Options
) -> ast.Call | None:
    """The call that surely gave codes which are read by their name: ``codes, scale = quant(x)``."""
    if not isinstance(codes, ast.Name):
        return None
    statement = module.statement(reader)
    flow = module.flow(module.function(statement) or module.tree)
    made = flow.only_definition(codes.id, statement)
    if made is None or made.index not in (None, 0) or not isinstance(made.value, ast.Call):
        return None
    op = op_of(module, made.value, options)
    return made.value if op is not None and op.note == CODES.text else None


def _pads(rounding: ast.Call) -> bool:
    """Whether a quantizing call gives more rows than it gets, or says so by what is not shown."""
    return any(k.arg is None or "padding" in k.arg for k in rounding.keywords) or any(
        isinstance(argument, ast.Starred) for argument in rounding.args
    )


def _same_there(module: ModuleFacts, node: ast.expr, made: ast.expr, there: ast.expr) -> bool:
    """Whether an expression of names means at one place what it did at another before it."""
    allowed = (ast.Name, ast.Attribute, ast.Call, ast.Constant, ast.Subscript, ast.Tuple)
    nodes = list(walk(node))
    if not all(isinstance(n, allowed) or _is_negative(n) for n in nodes):
        return False
    calls = [n.func for n in nodes if isinstance(n, ast.Call)]
    if not all(isinstance(f, ast.Attribute) and f.attr in _VIEWS for f in calls):
        return False
    first, last = module.statement(made), module.statement(there)
    flow = module.flow(module.function(last) or module.tree)
    return flow.is_steady(node, first, last)


def _is_negative(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


_VIEWS = frozenset("view reshape flatten contiguous squeeze unsqueeze to size".split())


def _assigns(op: FusedOp) -> bool:
    return isinstance(ast.parse(op.equivalent or "").body[0], ast.Assign)


def _with_argument(schema: str) -> str:
    """A schema that also takes the activation, which no call passes."""
    arguments, arrow, returns = schema.rpartition(" -> ")
    assert arguments.endswith(")")
    return f"{arguments[:-1]}, Tensor {ACTIVATION}=None){arrow}{returns}"
