"""What covers the forwards of a file: decorators, a ``with``, wrappers, delegates."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeGuard

from ...facts import ModuleFacts
from ...facts.called import functions_in, method_of
from ...facts.comments import explains_mode
from ...facts.grad_mode import (
    Scope,
    decorator_scope,
    no_grad_scope,
    own_nodes,
    scope_inside,
    scope_of_returns,
    wrapping,
)
from ...facts.graph import Graph
from ...facts.guards import is_forward
from ...facts.layers import is_module_class
from ...facts.learning import may_learn
from ...facts.memo import once
from ...facts.names import self_name
from ...facts.trainable import local_class, trained_submodules
from .cover import Cover, is_decorator
from .delegates import delegates, may_delegate
from .members import own_attributes
from .trained import KEEPS, is_to_train
from .wrappers import has_wrappers, renamed, wrapper_of

if TYPE_CHECKING:
    from ...facts.module import FunctionNode


@once
def covers_in(module: ModuleFacts) -> tuple[Cover, ...]:
    """The scopes over all that a forward computes, of modules that are there to be trained."""
    return tuple(
        cover
        for cover in _covers_in(module)
        if not (is_decorator(cover) and explains_mode(module, cover.scope.node))
    )


def _covers_in(module: ModuleFacts) -> Iterator[Cover]:
    scoped = module.scoped_functions
    wrapped = has_wrappers(module)
    for function in module.functions:
        cls = module.method_class(function)
        if cls is None:
            continue
        if function.name == "__call__":
            if function.decorator_list or function in scoped:
                yield from _on_calls(module, cls, function)
            continue
        if not is_forward(function):
            continue
        scope = decorator_scope(module, function)
        blocks: tuple[Scope, ...] = ()
        if scope is not None and scope.node not in function.decorator_list:
            scope = None  # a statement behind it
        elif scope is None and function in scoped:
            blocks = _around_body(module, cls, function)
            scope = blocks[0] if blocks else None
        if scope is None and cls.decorator_list:
            scope = _by_class_decorator(module, cls)
        if scope is not None:
            cover = Cover(function, scope, more=blocks[1:])
        elif wrapped and function.name == "forward":
            found = wrapper_of(module, cls, function)
            if found is None:
                continue
            cover = found
        else:
            if function.name == "forward" and may_delegate(module, cls, function):
                if is_to_train(module, cls, function):
                    yield from delegates(module, cls, function)
            continue
        if is_to_train(module, cls, function):
            yield cover
    if wrapped:
        for cls, cover in renamed(module):
            if is_to_train(module, cls, cover.function):
                yield cover


def _on_calls(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> Iterator[Cover]:
    """``__call__`` of a class, where it is all that calling a module runs that is to be trained.

    The module may be one of a class that derives from it.
    """
    derived = [c for c in module.classes if any(local_class(module, b) is cls for b in c.bases)]
    if not any(
        _runs_forward(module, each, function) and is_to_train(module, each, function)
        for each in (cls, *derived)
    ):
        return
    own = decorator_scope(module, function)
    scopes = (own,) if own is not None else _around_forward(module, cls, function)
    if scopes:
        yield Cover(function, scopes[0], more=scopes[1:])


def _runs_forward(module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode) -> bool:
    """Whether ``__call__`` of a module is all that calling it runs, its forward included."""
    if not is_module_class(module, cls) or KEEPS.search(cls.name):
        return False
    trained = trained_submodules(module, cls)
    if any(method.name == "forward" for method in functions_in(cls)):
        return bool(trained) and _CALLS_FORWARD.search(module.source(function)) is not None
    return bool(trained & own_attributes(module, function, self_name(function)))


_CALLS_FORWARD = re.compile(r"\bsuper\([^()]*\)\.__call__\(|\.forward\(")


def _around_forward(
    module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode
) -> tuple[Scope, ...]:
    """A ``with`` in ``__call__`` that holds the forward it runs, or all the work in its place."""
    calls = [
        node
        for node in own_nodes(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("__call__", "forward")
    ]
    if not calls:
        return _around_body(module, cls, function)
    scopes = {scope_inside(module, call, function) for call in calls}
    return _blocks(scopes) if len(scopes) == 1 else ()


def _around_body(
    module: ModuleFacts, cls: ast.ClassDef, function: FunctionNode
) -> tuple[Scope, ...]:
    """The ``with``, or several, that hold all the work of a forward with modules of its own."""
    if KEEPS.search(cls.name):
        return ()
    graph, me = Graph(module, function), self_name(function)
    scopes: set[Scope | None] = set()
    learns = False
    trained = frozenset[str]().union(
        *(trained_submodules(module, each) for each in module.names.with_bases(cls))
    )
    for node in own_nodes(function):
        if isinstance(node, ast.Call) and not _is_context(module, node) and may_learn(module, node):
            at = module.statement(node)
            scopes.add(wrapping(module, node.func, at) or scope_inside(module, node, function))
            learns = learns or graph.attribute(node, at) in trained
            learns = learns or bool(trained & _used_by_method(module, cls, me, node))
        elif _is_weight(node, module, me) and node.attr in trained:
            scopes.add(scope_inside(module, node, function))
    return _blocks(scopes) if learns else ()


def _blocks(scopes: set[Scope | None]) -> tuple[Scope, ...]:
    """Some scopes in the order of the text; none where something is in no scope.

    Each of several is a ``with``.
    """
    found = [scope for scope in scopes if scope is not None]
    several = len(found) > 1
    if len(found) < len(scopes) or (
        several and not all(isinstance(s.owner, (ast.With, ast.AsyncWith)) for s in found)
    ):
        return ()
    return tuple(sorted(found, key=lambda s: (s.node.lineno, s.node.col_offset)))


def _used_by_method(
    module: ModuleFacts, cls: ast.ClassDef, me: str | None, call: ast.Call
) -> frozenset[str]:
    """The attributes that a method of the object uses which is called: ``self.encode(x)``."""
    function = call.func
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return frozenset()
    callee = method_of(cls, function.attr) if function.value.id == me else None
    return own_attributes(module, callee, self_name(callee)) if callee is not None else frozenset()


def _is_weight(node: ast.AST, module: ModuleFacts, me: str | None) -> TypeGuard[ast.Attribute]:
    """``x @ self.weight``, ``F.linear(x, self.weight)``: a value, nothing that is called."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    parent = module.parent(node)
    if isinstance(parent, ast.Call):
        if node not in parent.args or wrapping(module, parent, module.statement(parent)):
            return False
    elif not isinstance(parent, (ast.BinOp, ast.Return)):
        return False
    return node.value.id == me


def _is_context(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call makes or enters a context, or sets the mode, and so computes nothing."""
    if module.grad_switches.get(module.statement(call)) is not None:
        return True
    if isinstance(call.func, ast.Attribute) and call.func.attr == "enter_context":
        return True
    return no_grad_scope(module, call) or any(
        target.name.startswith("contextlib.") for target in module.resolve(call.func)
    )


def _by_class_decorator(module: ModuleFacts, cls: ast.ClassDef) -> Scope | None:
    """An own decorator of a class that puts its forward under a mode.

    ``torch.no_grad()`` itself on a class only covers making an object.
    """
    for decorator in cls.decorator_list:
        function = next((f for f in module.functions if f.name == module.source(decorator)), None)
        if function is None or not function.args.args:
            continue
        inner = {s.name: s for s in function.body if isinstance(s, ast.FunctionDef)}
        for statement in function.body:
            if not isinstance(statement, ast.Assign):
                continue
            if module.source(statement.targets[0]) != f"{function.args.args[0].arg}.forward":
                continue
            scope = wrapping(module, statement.value, statement)
            if isinstance(statement.value, ast.Name) and statement.value.id in inner:
                replacement = inner[statement.value.id]
                scope = decorator_scope(module, replacement)
                scope = scope or scope_of_returns(module, replacement)
            if scope is not None:
                return Scope(scope.mode, decorator, cls)
    return None
