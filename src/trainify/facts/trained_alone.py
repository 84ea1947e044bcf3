"""Which modules a step of the project trains for certain, whatever they are called."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .learning import backward_values
from .memo import once
from .names import last_name, passed

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_LOSS = re.compile(r"loss|criterion|entropy", re.IGNORECASE)
_SAME = ("train", "to", "cuda", "float", "double")
_CUTS = ("detach", "item", "numpy", "tolist", "data")


@once
def is_trained_alone(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    """Whether a step calls ``backward`` for what only an object of a class gives.

    ``scorer(x).pow(2).sum().backward()``, ``criterion(scorer(x), y)``: with gradients switched off
    in its forward, that raises.
    """
    made = f"{cls.name}("
    return any(
        made in home.text and _trains(home, cls)
        for home in module.project.mentioning(module, made, containing=b".backward(")
    )


def _trains(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    owners: list[FunctionNode | ast.Module] = [module.tree, *module.functions]
    return any(
        _runs(module, owner, cls, value)
        for owner in owners
        for value, _ in backward_values(module, owner)
    )


def _runs(
    module: ModuleFacts, owner: FunctionNode | ast.Module, cls: ast.ClassDef, value: ast.expr
) -> bool:
    """Whether a value is computed from one call of such an object, and from data."""
    for _ in range(20):
        if isinstance(value, ast.Name):
            made = _made(module, owner, value)
            if made is None:
                return False
            value = made
        elif isinstance(value, ast.BinOp) and isinstance(value.right, ast.Constant):
            value = value.left
        elif isinstance(value, ast.UnaryOp):
            value = value.operand
        elif isinstance(value, ast.Call):
            function = value.func
            if isinstance(function, ast.Name) and _is_object(module, owner, cls, function):
                return True
            tensor = not module.resolve(function) and not _LOSS.search(last_name(function))
            if isinstance(function, ast.Attribute) and tensor:
                if function.attr in _CUTS or not _are_data(module, owner, passed(value)):
                    return False
                value = function.value
            elif value.args and _are_data(module, owner, passed(value)[1:]):
                if not _LOSS.search(last_name(function)) and not module.resolve(function):
                    return False
                value = value.args[0]
            else:
                return False
        else:
            return False
    return False


def _made(module: ModuleFacts, owner: FunctionNode | ast.Module, name: ast.Name) -> ast.expr | None:
    """The whole value of a name, where it can have only one."""
    made = module.flow(owner).only_definition(name.id, module.statement(name))
    if made is None or made.index is not None or not isinstance(made.statement, ast.Assign):
        return None
    return made.value


def _is_object(
    module: ModuleFacts, owner: FunctionNode | ast.Module, cls: ast.ClassDef, name: ast.Name
) -> bool:
    made = _made(module, owner, name)
    while isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute):
        if made.func.attr not in _SAME:
            return False
        made = made.func.value
    return isinstance(made, ast.Call) and (
        isinstance(made.func, ast.Name) and made.func.id == cls.name
    )


def _are_data(module: ModuleFacts, owner: FunctionNode | ast.Module, given: list[ast.expr]) -> bool:
    """Whether other arguments are numbers, or what a function or a loop is given."""
    for each in given:
        if isinstance(each, ast.UnaryOp):
            each = each.operand
        if isinstance(each, ast.Constant):
            continue
        if not isinstance(each, ast.Name):
            return False
        for made in module.flow(owner).reaching(each.id, module.statement(each)):
            if not made.is_parameter and not isinstance(made.statement, (ast.For, ast.AsyncFor)):
                return False
    return True
