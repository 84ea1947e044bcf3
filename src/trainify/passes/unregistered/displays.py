"""Which expressions make a plain list or dict, and what they put into it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal

from ...facts import ModuleFacts
from ...facts.layers import elements

_MAKERS: dict[str, Literal["list", "dict"]] = {
    "list": "list",
    "tuple": "list",
    "dict": "dict",
    "OrderedDict": "dict",
}


@dataclass(frozen=True)
class _Parts:
    """What a call of ``list``, ``tuple`` or ``dict`` puts into what it makes."""

    values: list[ast.expr]
    keys: list[ast.expr]
    more: bool = False

    @property
    def elements(self) -> list[ast.expr]:
        return [element for value in self.values for element in elements(value)]


def parts_of(call: ast.Call) -> _Parts | None:
    """``list(Layer() for _ in range(n))``, ``dict(a=Layer())``; None where that does not show."""
    name = ast.unparse(call.func).rpartition(".")[2]
    if _MAKERS.get(name) == "dict":
        return _pairs(call)
    if len(call.args) != 1 or call.keywords or name not in _MAKERS:
        return None
    (argument,) = call.args
    if isinstance(argument, (ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp)):
        looped = isinstance(argument, (ast.ListComp, ast.GeneratorExp))
        return _Parts([argument], [], looped)
    if isinstance(argument, ast.Call) and isinstance(argument.func, ast.Name):
        function = argument.args[0] if argument.args else None
        if argument.func.id == "map" and isinstance(function, ast.Lambda):
            return _Parts([function.body], [], True)
    return None


def _pairs(call: ast.Call) -> _Parts | None:
    """The keys and values of ``dict(a=x)``, ``dict([("a", x)])``, ``dict((k, x) for k in ks)``."""
    found = _Parts([], [], True)
    for keyword in call.keywords:
        if keyword.arg is None:
            return None
        found.keys.append(ast.Constant(keyword.arg))
        found.values.append(keyword.value)
    for argument in call.args:
        if isinstance(argument, (ast.ListComp, ast.GeneratorExp)):
            pairs = [argument.elt]
        elif isinstance(argument, (ast.List, ast.Tuple)):
            pairs = argument.elts
        else:
            return None
        for pair in pairs:
            if not isinstance(pair, (ast.Tuple, ast.List)) or len(pair.elts) != 2:
                return None
            found.keys.append(pair.elts[0])
            found.values.append(pair.elts[1])
    return found


def kind_of(module: ModuleFacts, value: ast.expr | None) -> Literal["list", "dict"] | None:
    """Which of the two an expression is, or names where it is a local; None for all others."""
    if isinstance(value, (ast.List, ast.ListComp)):
        return "list"
    if isinstance(value, ast.Tuple) and value.elts:
        bare = module.start(value) == module.start(value.elts[0])
        return None if bare else "list"
    if isinstance(value, (ast.Dict, ast.DictComp)):
        return "dict"
    if isinstance(value, ast.BinOp) and adds_to_itself(module, value):
        return kind_of(module, value.right)
    if isinstance(value, ast.BinOp):
        sides = (value.left, value.right) if isinstance(value.op, ast.Add) else (value.left,)
        known = isinstance(value.op, (ast.Add, ast.Mult))
        return "list" if known and all(kind_of(module, side) == "list" for side in sides) else None
    if isinstance(value, ast.Call):
        maker = _MAKERS.get(module.source(value.func).rpartition(".")[2])
        empty = not value.args and not value.keywords
        return maker if empty or parts_of(value) is not None else None
    if isinstance(value, ast.Name):
        made = made_locally(module, value)
        return None if made is None or isinstance(made, ast.Name) else kind_of(module, made)
    return None


def adds_to_itself(module: ModuleFacts, value: ast.expr) -> bool:
    """``self.layers = self.layers + [Layer()]``."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return False
    statement = module.parent(value)
    if not isinstance(statement, ast.Assign) or not isinstance(value.left, ast.Attribute):
        return False
    return [module.source(target) for target in statement.targets] == [module.source(value.left)]


def made_locally(module: ModuleFacts, name: ast.Name) -> ast.expr | None:
    """The one value that a local name was given."""
    function = module.function(name)
    if function is None:
        return None
    statement = module.statement(name)
    definition = module.flow(function).only_definition(name.id, statement)
    if definition is None or definition.statement is None or definition.index is not None:
        return None
    return definition.value
