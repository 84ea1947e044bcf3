"""TRN206 for learned numbers, a temperature or a scale, that are only ever read under a mode."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.carried import together
from ..facts.comments import explained
from ..facts.grad_bytes import MODES, mentions
from ..facts.grad_mode import Scope, scope_around
from ..facts.gradients import Gradients
from ..facts.guards import gradient_unwanted
from ..facts.losses import is_of_stranger
from ..facts.names import default_of, last_name
from ..facts.stops import looks_meant
from ..facts.trainable import is_trainable, submodules, trained_submodules
from ..facts.walk import walk
from ..facts.words import declare, places
from ..findings import STRATEGIES, Finding, Fix, Safety
from . import Look, Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options

RULES: tuple[Rule, ...] = ()  # TRN206 is of `frozen_scopes`

(_PARAMETER,) = declare(b"Parameter(")
_ATTRIBUTE = re.compile(rb"[ \t]*self\.(\w+)\b[^\n=]*=[ \t]*[\w.]*$")
_ONE = re.compile(
    rb"\s*\(?(?:\w+\.)*(?:tensor\(|(?:ones|zeros|full|rand|randn|empty)\(\s*"
    rb"(?:1\s*[,)]|\[\s*1?\s*\]|\(\s*(?:1\s*,\s*)?\)))"
)
"""How what is given to ``Parameter`` begins where it has one element."""
_NEAR = 400
"""Bytes of a decorated function in which it may read a parameter."""


def _may_concern(data: bytes) -> bool:
    if _PARAMETER not in data or b"def forward" not in data:
        return False
    names = []
    for at in places(data, _PARAMETER):
        if _ONE.match(data, at + len(_PARAMETER)):
            made = _ATTRIBUTE.match(data[data.rfind(b"\n", 0, at) + 1 : at])
            names += [b"self." + made[1]] if made else []
    for mention in mentions(data) if names else ():
        near = mention.block or data[mention.at : mention.at + _NEAR]
        if mention.kind in ("with", "decorator") and any(name in near for name in names):
            return True
    return False


NEEDLES: tuple[Needle, ...] = (Look(MODES, _may_concern),)

_SIZED = ("torch.ones", "torch.zeros", "torch.full", "torch.rand", "torch.randn", "torch.empty")
_INITIALIZES = re.compile(r"init|reset_parameters|extra_repr")


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for cls in module.classes:
        forward = next(
            (f for f in cls.body if isinstance(f, ast.FunctionDef) and f.name == "forward"), None
        )
        names = _numbers(module, cls) if forward is not None and is_trainable(module, cls) else []
        if forward is None or not names:
            continue
        result = together([r for r in Gradients(module, forward).returned() if not r.plain])
        for name in names:
            if f"{cls.name}.{name}" not in result.weights:
                continue
            scopes = _scopes_of_reads(module, cls, name)
            if len(scopes) == 1 and scopes[0].owner is not forward and scopes[0].wraps is None:
                yield _finding(module, cls, name, scopes[0])


def _numbers(module: ModuleFacts, cls: ast.ClassDef) -> list[str]:
    """The parameters of a class that are one number each, made to be trained."""
    trained = trained_submodules(module, cls)
    return [
        name
        for name, values in submodules(module, cls).items()
        if name in trained
        and all(
            isinstance(v, ast.Call)
            and last_name(v.func) == "Parameter"
            and len(v.args) == 1
            and not v.keywords
            and _is_number(module, v.args[0])
            for v in values
        )
    ]


def _is_number(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether a tensor has one element: ``torch.tensor(0.07)``, ``torch.ones(1) * 2``."""
    if isinstance(node, ast.BinOp):
        sides = (node.left, node.right)
        return any(_is_number(module, side) for side in sides) and all(
            _is_number(module, side) or _is_plain(module, side) for side in sides
        )
    if not isinstance(node, ast.Call) or not node.args:
        return False
    first = node.args[0]
    if isinstance(first, (ast.List, ast.Tuple)) and len(first.elts) == 1:
        first = first.elts[0]
    elif isinstance(first, (ast.List, ast.Tuple)) and not first.elts:
        first = ast.Constant(1)
    if module.is_name(node.func, *_SIZED):
        one = isinstance(first, ast.Constant) and first.value == 1
        filled = last_name(node.func) == "full"
        return one and (filled or not any(isinstance(a, ast.Constant) for a in node.args[1:]))
    return module.is_name(node.func, "torch.tensor") and _is_plain(module, first)


def _is_plain(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether an expression is a number of Python's."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    if isinstance(node, (ast.UnaryOp, ast.BinOp)):
        parts = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
        return all(_is_plain(module, part) for part in parts)
    if isinstance(node, ast.Call):
        names = [t.name for t in module.resolve(node.func)]
        of_numbers = last_name(node.func) == "float" or any(
            name.startswith(("math.", "numpy.")) for name in names
        )
        return of_numbers and all(_is_plain(module, a) for a in node.args)
    function = module.function(node)
    if not isinstance(node, ast.Name) or function is None:
        return False
    default = default_of(function.args, node.id)
    given = [a for a in function.args.args if a.arg == node.id and a.annotation is not None]
    return any(ast.unparse(a.annotation) == "float" for a in given if a.annotation) or (
        isinstance(default, ast.Constant) and isinstance(default.value, (int, float))
    )


def _scopes_of_reads(module: ModuleFacts, cls: ast.ClassDef, name: str) -> list[Scope]:
    """The scopes in which all of a project reads a parameter; none if some read is in none."""
    found: dict[ast.stmt, Scope] = {}
    for other in module.project.mentioning(module, f".{name}", f'"{name}"', f"'{name}'"):
        if other is not module:
            return []
    for node in walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value == name:
                return []  # getattr, state dicts
        if not isinstance(node, ast.Attribute) or node.attr != name:
            continue
        if is_of_stranger(module, node, cls):
            continue
        function = module.function(node)
        if function is not None and _INITIALIZES.search(function.name):
            continue
        if module.method_class(function) is not cls or not isinstance(node.ctx, ast.Load):
            return []
        scope = scope_around(module, node)
        if scope is None or _is_set(module, node):
            return []
        if explained(module, node) or looks_meant(module, module.statement(node)):
            return []
        found[scope.owner] = scope
    if any(gradient_unwanted(module, owner) for owner in found):
        return []
    return list(found.values())


def _is_set(module: ModuleFacts, node: ast.Attribute) -> bool:
    """``self.scale.clamp_(...)``, ``self.scale.data = x``: it changes other than by learning."""
    parent = module.parent(node)
    if isinstance(parent, ast.Subscript):
        return True
    return isinstance(parent, ast.Attribute) and (
        parent.attr.endswith("_") or parent.attr in ("data", "grad", "requires_grad")
    )


def _finding(module: ModuleFacts, cls: ast.ClassDef, name: str, scope: Scope) -> Finding:
    from ..rewrite import scopes as rewrite

    text = module.source(scope.node)
    message = (
        f"`self.{name}` reaches the result of `{cls.name}.forward` only through `{text}`, and so "
        "learns nothing."
    )

    def needed(statement: ast.stmt) -> bool:
        return any(isinstance(n, ast.Attribute) and n.attr == name for n in walk(statement))

    edits = rewrite.freed(module, scope, needed)
    look_at = f"self.{name} can learn now: requires_grad_(False) is what freezes"
    fix = Fix(f"Compute it outside {text}", tuple(edits), Safety.UNSAFE, look_at)
    fixes = dict.fromkeys(STRATEGIES, fix) if edits else {}
    return module.finding("TRN206", message, scope.node, fixes)
