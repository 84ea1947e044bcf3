"""Local names that hold an array, or a list of numbers, on the way from one tensor to another."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .flow import Definition, FunctionFlow
from .module import ModuleFacts
from .walk import walk


def way(module: ModuleFacts, flow: FunctionFlow, node: ast.expr) -> tuple[Definition, ...] | None:
    """The definitions of the arrays that an expression comes from by names, first ones last.

    None where one of them is used for anything else, or there may be another at that place.
    """
    found: dict[Definition, None] = {}
    waiting = [node]
    while waiting:
        for name in _names(waiting.pop()):
            definition = array(module, flow, name)
            if definition is not None and definition not in found:
                found[definition] = None
                assert definition.value is not None
                waiting.append(definition.value)
    values = [node, *(definition.value for definition in found if definition.value is not None)]
    own = {name for value in values for name in _names(value)}
    held = {definition.name for definition in found}
    for each in walk(flow.function) if found else ():
        if isinstance(each, ast.Name) and each.id in held and each not in own:
            around = module.parent(each)
            if isinstance(each.ctx, ast.Del) or isinstance(around, ast.AugAssign):
                return None
            if isinstance(each.ctx, ast.Load) and (
                module.function(each) is not flow.function
                or not found.keys().isdisjoint(flow.reaching(each.id, module.statement(each)))
            ):
                return None
    return tuple(found)


def array(module: ModuleFacts, flow: FunctionFlow, name: ast.Name) -> Definition | None:
    """The assignment of an array, alone in its statement, that ``name`` stands for."""
    reaching = flow.reaching(name.id, module.statement(name))
    definition = next(iter(reaching)) if len(reaching) == 1 else None
    if definition is None or definition.value is None or definition.index is not None:
        return None
    statement = definition.statement
    if not isinstance(statement, ast.Assign) or statement.value is not definition.value:
        return None
    plain = len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name)
    return definition if plain and _is_array(module, flow, definition.value) else None


def _is_array(module: ModuleFacts, flow: FunctionFlow, node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        if any(target.name.startswith("numpy.") for target in module.resolve(node.func)):
            return True
        if not isinstance(node.func, ast.Attribute):
            return False
        return node.func.attr == "numpy" or _is_array(module, flow, node.func.value)
    if isinstance(node, ast.BinOp):
        return _is_array(module, flow, node.left) or _is_array(module, flow, node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_array(module, flow, node.operand)
    if isinstance(node, ast.ListComp):
        return _is_number(node.elt)
    return isinstance(node, ast.Name) and array(module, flow, node) is not None


def _is_number(node: ast.expr) -> bool:
    """``float(g)``, ``g.item()``: numbers in a list are an array but for its name."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id == "float" and len(node.args) == 1
    return isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args


def _names(node: ast.expr) -> Iterator[ast.Name]:
    return (each for each in walk(node) if isinstance(each, ast.Name))
