"""Functions of the project that give what an operation in them made and saved for backward.

``def gate(x): return torch.sigmoid(x)``, a module whose forward does, and an ``autograd.Function``
that saves its own output.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .called import functions_of, method_of, methods_named, modules_of
from .constants import is_constant
from .grad_mode import own_nodes
from .guards import is_autograd_function
from .layers import classes_named
from .names import is_none, last_name, passed
from .saved import maker_of, saved_result, saving_call
from .writes import are_views, root_of, roots

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts


def saved_inside(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether whatever a call runs has saved for backward the very tensor that it gives."""
    given = passed(call)
    if given and all(is_constant(module, each) for each in given):
        return False
    function = _function_applied(module, call)
    if function is not None:
        return _saves_output(*function) or keeps_output(module, call)
    runs = list(functions_of(module, call.func))
    if not runs:
        made = modules_of(module, call.func)
        classes = [_class_made(module, each) for each in made]
        if None in classes:
            return False
        runs = [run for each in classes if each for run in methods_named(*each, "forward")]
    return bool(runs) and all(_gives_saved(home, each) for home, each in runs)


def keeps_output(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call is of an ``autograd.Function`` that keeps its output as ``ctx.out``.

    Nothing counts the versions of that: backward does not notice what is written over it.
    """
    found = _function_applied(module, call)
    if found is None:
        return False
    home, cls = found
    forward = method_of(cls, "forward")
    if forward is None or not forward.args.args:
        return False
    ctx, output = forward.args.args[0].arg, _output(home, forward)
    return output is not None and any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Name)
        and _holds(home, forward, node.value) & output
        and any(isinstance(t, ast.Attribute) and last_name(t.value) == ctx for t in node.targets)
        for node in own_nodes(forward)
    )


def _function_applied(
    module: ModuleFacts, call: ast.Call
) -> tuple[ModuleFacts, ast.ClassDef] | None:
    """The ``autograd.Function`` of ``Gate.apply(x)``."""
    callee = call.func
    if not isinstance(callee, ast.Attribute) or callee.attr != "apply":
        return None
    found = list(classes_named(module, callee.value))
    if len(found) == 1 and is_autograd_function(*found[0]):
        return found[0]
    return None


def _saves_output(module: ModuleFacts, cls: ast.ClassDef) -> bool:
    setup, forward = method_of(cls, "setup_context"), method_of(cls, "forward")
    if forward is None:
        return False
    if setup is not None:
        last = setup.args.args[-1].arg if setup.args.args else ""
        return any(last_name(argument) == last for argument in _saved(setup))
    output = _output(module, forward)
    return output is not None and any(
        isinstance(argument, ast.Name) and _holds(module, forward, argument) & output
        for argument in _saved(forward)
    )


def _saved(function: FunctionNode) -> list[ast.expr]:
    """What a function gives to ``ctx.save_for_backward``."""
    return [
        argument
        for call in own_nodes(function)
        if isinstance(call, ast.Call) and last_name(call.func) == "save_for_backward"
        for argument in call.args
    ]


def _output(module: ModuleFacts, forward: FunctionNode) -> frozenset[object] | None:
    """The definitions of what a forward returns, if that is one tensor which it computed."""
    returned = [n for n in own_nodes(forward) if isinstance(n, ast.Return)]
    if len(returned) != 1 or not isinstance(returned[0].value, ast.Name):
        return None
    return _holds(module, forward, returned[0].value)


def _holds(module: ModuleFacts, function: FunctionNode, name: ast.Name) -> frozenset[object]:
    found = roots(module, module.flow(function), name.id, module.statement(name))
    return frozenset(r.definition for r in found if not r.definition.is_parameter)


def _class_made(module: ModuleFacts, made: ast.expr) -> tuple[ModuleFacts, ast.ClassDef] | None:
    found = list(classes_named(module, made.func)) if isinstance(made, ast.Call) else []
    return found[0] if len(found) == 1 else None


def _gives_saved(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether all that a function returns was saved by the operation that made it."""
    memo, key = module.project.judged, (_gives_saved, (module, function))
    if key not in memo:
        memo[key] = False  # of a function that calls itself
        memo[key] = _returns_saved(module, function)
    return bool(memo[key])


def _returns_saved(module: ModuleFacts, function: FunctionNode) -> bool:
    if any(last_name(each) != "staticmethod" for each in function.decorator_list):
        return False
    returned = [n for n in own_nodes(function) if isinstance(n, ast.Return)]
    values = [each.value for each in returned if not is_none(each.value)]
    return bool(values) and all(
        value is not None and _is_saved(module, function, value) for value in values
    )


def _is_saved(module: ModuleFacts, function: FunctionNode, value: ast.expr) -> bool:
    if saving_call(module, maker_of(value)) is not None:
        return True
    root, path = root_of(value)
    if root is None or not are_views(module, path):
        return False
    found = roots(module, module.flow(function), root.id, module.statement(value))
    return bool(found) and all(saved_result(module, r.definition) is not None for r in found)
