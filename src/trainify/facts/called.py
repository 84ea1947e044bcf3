"""What a call in a method runs, where the file shows it: ``self.f(x)``, ``b(x)`` in a loop."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .names import last_name

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts


def modules_of(module: ModuleFacts, callee: ast.expr) -> list[ast.expr]:
    """The expressions that make the module which is called; none where that does not show.

    ``self.f`` is one, ``self.blocks[i]`` and ``b`` in ``for b in self.blocks`` may be any of them.
    """
    holder = callee.value if isinstance(callee, ast.Subscript) else callee
    if isinstance(callee, ast.Name):
        holder = _iterated(module, callee) or callee
    if not isinstance(holder, ast.Attribute) or not isinstance(holder.value, ast.Name):
        return []
    cls = module.names.self_class(holder.value)
    if cls is None or holder.attr in module.rebound:
        return []
    made = [b.value for b in module.names.attributes(cls).get(holder.attr, ())]
    if holder is callee:
        return [value for value in made if value is not None]
    found: list[ast.expr] = []
    for value in made:
        found += _elements(module, value) if value is not None else ()
    return found


def _iterated(module: ModuleFacts, name: ast.Name) -> ast.expr | None:
    """What a loop around takes a name from: ``self.blocks``, in ``enumerate`` or not."""
    for scope in module.ancestors(name):
        if isinstance(scope, ast.For):
            target, source = scope.target, scope.iter
            if isinstance(source, ast.Call) and last_name(source.func) == "enumerate":
                if not isinstance(target, ast.Tuple) or len(target.elts) != 2 or not source.args:
                    continue
                target, source = target.elts[1], source.args[0]
            if isinstance(target, ast.Name) and target.id == name.id:
                return source
        elif isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
            break
    return None


def _elements(module: ModuleFacts, made: ast.expr) -> Sequence[ast.expr]:
    """What makes the modules of a ``ModuleList``."""
    if not isinstance(made, ast.Call) or last_name(made.func) != "ModuleList":
        return ()
    if len(made.args) != 1:
        return () if made.args else _appended(module, made)
    given = made.args[0]
    if isinstance(given, (ast.ListComp, ast.GeneratorExp)):
        return (given.elt,)
    return given.elts if isinstance(given, (ast.List, ast.Tuple)) else ()


def _appended(module: ModuleFacts, made: ast.Call) -> list[ast.expr]:
    """``self.blocks.append(Block())`` after ``self.blocks = nn.ModuleList()``."""
    statement = module.statement(made)
    if not isinstance(statement, ast.Assign):
        return []
    holder = module.source(statement.targets[0])
    return [
        call.args[0]
        for call in module.calls_named("append")
        if len(call.args) == 1
        and isinstance(call.func, ast.Attribute)
        and module.source(call.func.value) == holder
        and module.function(call) is module.function(made)
    ]


def method(cls: ast.ClassDef, name: str) -> FunctionNode | None:
    """The method that stands in the body of a class by this name."""
    return next(
        (node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name == name), None
    )


def positional(module: ModuleFacts, function: FunctionNode) -> list[str]:
    """The parameters that positional arguments become, without that for the object itself."""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    static = any(last_name(each) == "staticmethod" for each in function.decorator_list)
    bound = module.method_class(function) is not None and not static
    return names[1:] if bound else names
