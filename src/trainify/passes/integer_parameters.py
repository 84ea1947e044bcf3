"""TRN504: every parameter of a model told to require a gradient, integers among them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.frozen import is_false
from ..facts.models import classes_in, values_of
from ..facts.names import passed
from ..facts.walk import walk
from ..findings import Finding
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options

RULES = (
    Rule(
        code="TRN504",
        name="integer-parameter-made-trainable",
        summary="Every parameter is told to require a gradient, and one holds integers.",
        why=(
            "Packed weights are integers, and integers have no gradient: `requires_grad=False` on "
            "them is no choice but the only way to have them as parameters. Switching everything "
            "to trainable raises at the first one. Leave out what is not floating point, and train "
            "adapters, scales, or a dequantized copy of the weight."
        ),
        before="""\
import torch
from torch import nn


class W8Linear(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(o, i, dtype=torch.int8), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(o))


model = nn.Sequential(W8Linear(8, 8), nn.Linear(8, 2))
for p in model.parameters():
    p.requires_grad_(True)
""",
        after="",
    ),
)

_INTEGER = re.compile(rb"\bu?int(?:8|16|32|64)\b|randint|\.(?:char|byte|short|int|long)\(\)")
_SWITCH = (b"requires_grad_(True)", b"requires_grad_()", b".requires_grad = True")


def _may_switch_integers(data: bytes) -> bool:
    return b"requires_grad=False" in data and _INTEGER.search(data) is not None


NEEDLES: tuple[Needle, ...] = (Look(_SWITCH, _may_switch_integers),)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for statement in module.statements:
        switched = _switched(module, statement)
        if switched is None:
            continue
        for value in values_of(module, switched):
            found = _integers(module, value)
            if found is not None:
                cls, name = found
                message = (
                    f"`{module.source(statement)}` raises at `{name}` of `{cls.name}`, which holds "
                    "integers: only floating point tensors can require a gradient. Leave out the "
                    "others."
                )
                yield module.finding("TRN504", message, statement)
                break


# -- the switch -----------------------------------------------------------------------------------


def _switched(module: ModuleFacts, statement: ast.stmt) -> ast.expr | None:
    """The module all of whose parameters a statement tells to require a gradient."""
    target = _told(statement)
    if target is None:
        return None
    loop = module.parent(statement)
    if not isinstance(target, ast.Name) or not isinstance(loop, ast.For):
        return target if isinstance(statement, ast.Expr) else None
    call = loop.iter
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    parameter = loop.target
    if call.func.attr == "named_parameters" and isinstance(parameter, ast.Tuple):
        parameter = parameter.elts[-1]
    elif call.func.attr != "parameters":
        return None
    if _skips_some(loop, statement):
        return None
    is_it = isinstance(parameter, ast.Name) and parameter.id == target.id
    return call.func.value if is_it else None


def _told(statement: ast.stmt) -> ast.expr | None:
    """``x`` of ``x.requires_grad_(True)`` and ``x.requires_grad = True``."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
            if isinstance(value, ast.Constant) and value.value is True:
                return target.value
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
            given = passed(call)
            if all(isinstance(value, ast.Constant) and value.value is True for value in given):
                return call.func.value
    return None


def _skips_some(loop: ast.For, statement: ast.stmt) -> bool:
    """Whether a turn of the loop can end before the statement: ``continue`` for integers."""
    before = loop.body[: loop.body.index(statement)] if statement in loop.body else loop.body
    return any(
        isinstance(node, (ast.Continue, ast.Break)) for each in before for node in walk(each)
    )


# -- the integers ---------------------------------------------------------------------------------


def _integers(
    module: ModuleFacts, made: ast.expr | ast.ClassDef
) -> tuple[ast.ClassDef, str] | None:
    """The class and name of an integer parameter in what an expression makes."""
    for cls in classes_in(module, made):
        for name, bindings in module.names.attributes(cls).items():
            if any(
                b.value is not None and _is_integer_parameter(module, b.value) for b in bindings
            ):
                return cls, name
    return None


def _is_integer_parameter(module: ModuleFacts, value: ast.expr) -> bool:
    if not isinstance(value, ast.Call) or not value.args:
        return False
    if not module.is_name(value.func, "torch.nn.Parameter", "torch.nn.parameter.Parameter"):
        return False
    fixed = any(k.arg == "requires_grad" and is_false(k.value) for k in value.keywords)
    return (fixed or is_false(value.args[-1])) and _is_integer(value.args[0])


_INTEGER_TYPE = re.compile(r"(u?int(8|16|32|64)?|long|short|bool)$")


def _is_integer(tensor: ast.expr) -> bool:
    """Whether a tensor is made of integers: ``dtype=torch.int8``, ``.to(torch.uint8)``."""
    if not isinstance(tensor, ast.Call) or not isinstance(tensor.func, ast.Attribute):
        return False
    given = [k.value for k in tensor.keywords if k.arg == "dtype"]
    if tensor.func.attr in ("to", "type", "view"):
        given += tensor.args
    types = [g.attr for g in given if isinstance(g, ast.Attribute)]
    if types:
        return any(_INTEGER_TYPE.match(name) for name in types)
    if tensor.func.attr in ("randint", "char", "byte", "short", "int", "long"):
        return True
    if tensor.func.attr in ("t", "contiguous", "clone", "cuda", "cpu", "view", "reshape", "to"):
        return _is_integer(tensor.func.value)
    return False
