"""Objects that outlive a call and are not handed to it: globals, and who gives one."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .called import functions_of
from .graph import results

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts


def is_global_object(module: ModuleFacts, name: ast.Name) -> bool:
    """Whether a name holds such an object: ``CTX``, or ``ctx`` in ``ctx = get_context()``.

    A context variable's ``VAR.get()`` gives one as well; a module that is imported is none.
    """
    function = module.function(name)
    if function is None:
        return False
    flow = module.flow(function)
    if not flow.is_local(name.id):
        return _is_assigned(module, name)
    made = flow.only_definition(name.id, module.statement(name))
    value = made.value if made is not None and made.index is None else None
    if isinstance(value, ast.Name):
        return not flow.is_local(value.id) and _is_assigned(module, value)
    if not isinstance(value, ast.Call):
        return False
    called = value.func
    if isinstance(called, ast.Attribute) and called.attr == "get" and not value.args:
        owner = called.value
        return isinstance(owner, ast.Name) and _is_assigned(module, owner)
    makers = list(functions_of(module, called))
    return bool(makers) and all(_gives_global(home, each) for home, each in makers)


def _gives_global(module: ModuleFacts, function: FunctionNode) -> bool:
    given = [value for value, _ in results(function)]
    return bool(given) and all(
        isinstance(value, ast.Name)
        and not module.flow(function).is_local(value.id)
        and _is_assigned(module, value)
        for value in given
    )


def _is_assigned(module: ModuleFacts, name: ast.Name) -> bool:
    """Whether the top level of a file gives a name a value, here or where it is imported from."""
    bindings = module.names.visible(name)
    nodes = [binding.node for binding in bindings]
    if any(isinstance(node, (ast.ClassDef, ast.FunctionDef)) for node in nodes):
        return False
    if any(binding.value is not None for binding in bindings):
        return all(module.function(node) is None for node in nodes)
    for target in module.resolve(name):
        owner, _, last = target.name.rpartition(".")
        path = module.project.find_module(module, owner) if owner else None
        other = module.project.load(path) if path is not None else None
        for statement in other.tree.body if other is not None else ():
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if any(isinstance(t, ast.Name) and t.id == last for t in targets):
                return True
    return False
