"""TRN508: parameters that an operation turned into plain tensors before a module got them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.layers import is_module_class
from ..facts.words import declare, places
from ..findings import STRATEGIES, Edit, Finding, Fix, Safety
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options

RULES = (
    Rule(
        code="TRN508",
        name="parameter-behind-an-operation",
        summary="A module is given what an operation makes of a parameter, not the parameter.",
        why=(
            "`nn.Parameter(w).to(device)` and `nn.Parameter(w) * 0.02` are results, not leaves: "
            "the module registers nothing, `parameters()` and the state_dict do not know them, and "
            "no optimizer changes them, while gradients flow to a tensor that nobody holds. Where "
            ".to() has nothing to do it gives the parameter back, so this may work on a CPU and "
            "fail on a GPU. What is to happen to the values belongs into the parentheses."
        ),
        before="""\
import torch
from torch import nn


class Gain(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d)) * 0.02

    def forward(self, x):
        return x * self.weight
""",
        after="""\
import torch
from torch import nn


class Gain(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d) * 0.02)

    def forward(self, x):
        return x * self.weight
""",
    ),
)

(_MADE,) = declare(b"Parameter(")
_CHANGED = re.compile(
    rb"Parameter\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\)"
    rb"(?: [-+*/] |\.(?:to|cuda|half|bfloat16|double|clone|t|view|reshape)\()"
)
_SCALED = re.compile(rb"= [\d.e-]+ [-+*/] (?:torch\.)?(?:nn\.)?$")
_MOVES = frozenset("to cuda half bfloat16 double".split())
_COPIES = frozenset("clone t view reshape".split())
_OPERATORS = (ast.Mult, ast.Div, ast.Add, ast.Sub)


def _changes(data: bytes) -> bool:
    return any(
        _CHANGED.match(data, at) or _SCALED.search(data, max(0, at - _NEAR), at)
        for at in places(data, _MADE)
    )


_NEAR = 40


NEEDLES: tuple[Needle, ...] = (Look((_MADE,), _changes),)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for cls in module.classes:
        for name, bindings in module.names.attributes(cls).items():
            value = bindings[0].value if len(bindings) == 1 else None
            made = _changed(module, value) if value is not None else None
            if made is None or not _is_used(module, cls, name) or not is_module_class(module, cls):
                continue
            assert value is not None
            yield _finding(module, name, value, *made)


def _changed(module: ModuleFacts, value: ast.expr) -> tuple[ast.Call, str] | None:
    """The parameter that a value is made of, by one operation or more, and what is done to it."""
    scaled = _scaled(value)
    made = scaled or value
    while True:
        if isinstance(made, ast.BinOp) and isinstance(made.op, _OPERATORS):
            made = made.left
        elif isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute):
            if made.func.attr not in _MOVES | _COPIES:
                break
            made = made.func.value
        else:
            break
    if not isinstance(made, ast.Call) or len(made.args) != 1 or made.keywords or made is value:
        return None
    if not module.is_name(made.func, "torch.nn.Parameter", "torch.nn.parameter.Parameter"):
        return None
    if scaled is not None:
        done = module.text[module.start(value) : module.start(made)].strip()
        return (made, done) if made is scaled and "(" not in done else None
    if module.start(made) != module.start(value):
        return None  # in parentheses
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.value is made:
            return made, f".{value.func.attr}()"
    return made, module.source(value)[len(module.source(made)) :].strip()


def _scaled(value: ast.expr) -> ast.expr | None:
    """``nn.Parameter(...)`` of ``0.02 * nn.Parameter(...)``."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, _OPERATORS):
        return value.right if isinstance(value.left, ast.Constant) else None
    return None


def _is_used(module: ModuleFacts, cls: ast.ClassDef, name: str) -> bool:
    return any(isinstance(use.ctx, ast.Load) for use in module.names.uses(cls, name))


def _finding(module: ModuleFacts, name: str, value: ast.expr, made: ast.Call, done: str) -> Finding:
    where = ", where that has something to do," if done[1:-2] in _MOVES else ""
    message = (
        f"`self.{name}` is what `{done}` makes of a parameter{where} and not the parameter: it is "
        "not among `parameters()`, so it never learns."
    )
    fixes: dict[str, Fix] = {}
    given = made.args[0]
    if isinstance(given, (ast.Call, ast.Name, ast.Attribute, ast.Subscript)):
        end = module.end(made)
        edits: tuple[Edit, ...]
        first, start, inside = module.start(value), module.start(made), module.start(given)
        if first < start:  # 0.02 * nn.Parameter(...)
            edits = Edit(first, first, module.text[start:inside]), Edit(start, inside, "")
        else:
            edits = Edit(end - 1, end, ""), Edit(module.end(value), module.end(value), ")")
        look_at = f"`{name}` joins the state_dict, which checkpoints that were saved lack"
        fix = Fix(f"Make {name} the parameter", edits, Safety.UNSAFE, look_at)
        fixes = dict.fromkeys(STRATEGIES, fix)
    return module.finding("TRN508", message, module.statement(value), fixes)
