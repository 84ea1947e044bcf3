"""Where gradients are switched off: ``no_grad`` and its kin, in every form people write them.

A scope is a ``with``, a decorator, or something entered on an ``ExitStack``.  Only what is off
always is one: ``torch.no_grad() if frozen else nullcontext()`` is not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .walk import children

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

Mode = Literal["no_grad", "inference_mode", "set_grad_enabled"]

_MODES: tuple[Mode, ...] = ("no_grad", "inference_mode", "set_grad_enabled")
_PLACES = ("torch", "torch.autograd", "torch.autograd.grad_mode")
_OFF = {f"{place}.{mode}": mode for place in _PLACES for mode in _MODES}
_ON = frozenset(f"{place}.enable_grad" for place in _PLACES)
_SWITCHES = frozenset(
    [*(name for name in _OFF if name.endswith("set_grad_enabled")), "torch._C._set_grad_enabled"]
)
_ATTRIBUTES = frozenset("no_grad inference_mode set_grad_enabled enable_grad".split())
_HELPER = re.compile(r"grad|infer|eval|frozen|freeze", re.IGNORECASE)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MAX_DEPTH = 4


@dataclass(frozen=True)
class Scope:
    """A place where gradients are off: ``node`` names the mode, ``owner`` is the statement.

    ``owner`` is the ``with``, the decorated function, or the statement that enters the mode.
    """

    mode: Mode
    node: ast.expr
    owner: ast.stmt


def mode_of(
    module: ModuleFacts, node: ast.expr, at: ast.stmt | None = None, depth: int = 0
) -> Mode | None:
    """The mode that a context manager or decorator switches on, always; None where it does not.

    ``at`` is the ``with`` statement or the decorated function.
    """
    if depth > _MAX_DEPTH:
        return None
    call = node if isinstance(node, ast.Call) else None
    function = call.func if call is not None else node
    if isinstance(function, ast.Attribute):  # most decorators and contexts; an alias is a name
        if function.attr not in _ATTRIBUTES and not _HELPER.search(function.attr):
            return None
    names = {t.name for t in module.resolve(function, at)}
    if names and names <= _OFF.keys():
        mode = min(_OFF[name] for name in names)
        return mode if _is_off(mode, call) else None
    if isinstance(function, ast.Name):
        if call is None:
            return _mode_of_value(module, function, at, depth)
        return _mode_of_helper(module, function.id, names, depth)
    return None


def no_grad_scope(module: ModuleFacts, node: ast.expr, at: ast.stmt | None = None) -> bool:
    """Whether a context manager or decorator switches gradients off, always."""
    return mode_of(module, node, at) is not None


def switches_on(module: ModuleFacts, node: ast.expr, at: ast.stmt | None = None) -> bool:
    """Whether a context manager or decorator may switch gradients (back) on."""
    call = node if isinstance(node, ast.Call) else None
    function = call.func if call is not None else node
    if isinstance(function, ast.Attribute) and function.attr not in _ATTRIBUTES:
        return False
    names = {t.name for t in module.resolve(function, at)}
    if not names.isdisjoint(_ON):
        return True
    return not names.isdisjoint(_SWITCHES) and mode_of(module, node, at) is None


def _argument(call: ast.Call | None) -> ast.expr | None:
    if call is None:
        return None
    return call.args[0] if call.args else next((k.value for k in call.keywords), None)


def _is_off(mode: Mode, call: ast.Call | None) -> bool:
    argument = _argument(call)
    if mode == "set_grad_enabled":
        return isinstance(argument, ast.Constant) and argument.value in (False, 0)
    return argument is None or (isinstance(argument, ast.Constant) and argument.value is True)


# -- names and helpers ----------------------------------------------------------------------------


def _mode_of_value(
    module: ModuleFacts, node: ast.Name, at: ast.stmt | None, depth: int
) -> Mode | None:
    """``frozen = torch.no_grad()``, then ``with frozen:``; or ``@frozen`` for an own decorator."""
    found: set[Mode | None] = set()
    for binding in module.names.visible_at(node.id, at or node):
        if isinstance(binding.value, ast.Call):
            found.add(mode_of(module, binding.value, None, depth + 1))
        elif isinstance(binding.node, _FUNCTIONS):
            found.add(_mode_of_function(module, binding.node, depth + 1))
        else:
            found.add(None)
    return found.pop() if len(found) == 1 else None


def _mode_of_helper(module: ModuleFacts, name: str, names: set[str], depth: int) -> Mode | None:
    """The mode of ``helper()``, a function of this file or of the project."""
    for function in module.functions:
        if function.name == name and module.parent(function) is module.tree:
            return _mode_of_function(module, function, depth + 1)
    if not _HELPER.search(name):
        return None
    for qualified in names:
        owner, _, short = qualified.rpartition(".")
        path = module.project.find_module(module, owner) if owner else None
        other = module.project.load(path) if path is not None else None
        if other is not None and other is not module:
            return _mode_of_helper(other, short, set(), depth + 1)
    return None


def _mode_of_function(module: ModuleFacts, function: FunctionNode, depth: int) -> Mode | None:
    """What an own helper wraps: a function that gives a mode, a context manager, a decorator."""
    if depth > _MAX_DEPTH:
        return None
    if any("contextmanager" in module.source(d) for d in function.decorator_list):
        return _mode_of_each(module, _own(function, (ast.Yield,)), function)
    inner = {s.name: s for s in function.body if isinstance(s, _FUNCTIONS)}
    found: set[Mode | None] = set()
    for node in _own(function, (ast.Return,)):
        assert isinstance(node, ast.Return)
        value = node.value
        if _passes_on(module, function, node):
            continue  # in inference mode already
        if isinstance(value, ast.Name) and value.id in inner:
            found.add(_mode_of_wrapper(module, inner[value.id], depth + 1))
        elif isinstance(value, ast.Call):
            wraps = isinstance(value.func, ast.Call)  # torch.no_grad()(function)
            found.add(mode_of(module, value.func if wraps else value, None, depth + 1))
        else:
            found.add(None)
    return found.pop() if len(found) == 1 else None


def _passes_on(module: ModuleFacts, function: FunctionNode, node: ast.Return) -> bool:
    """``if torch.is_inference_mode_enabled(): return function``, in a decorator."""
    parent = module.parent(node)
    arguments = {argument.arg for argument in function.args.args}
    return (
        isinstance(node.value, ast.Name)
        and node.value.id in arguments
        and isinstance(parent, ast.If)
        and "is_inference_mode_enabled" in module.source(parent.test)
    )


def _mode_of_wrapper(module: ModuleFacts, function: FunctionNode, depth: int) -> Mode | None:
    """What a decorator puts in place of a function: it calls that one under a mode."""
    scope = decorator_scope(module, function)
    if scope is not None:
        return scope.mode
    returns = list(_own(function, (ast.Return,)))
    under = _mode_of_each(module, returns, function)
    return under or _mode_of_function(module, function, depth)


def _mode_of_each(
    module: ModuleFacts, nodes: Iterator[ast.AST] | list[ast.AST], function: FunctionNode
) -> Mode | None:
    """The mode that all of these places stand under, inside of the function."""
    scopes = [scope_inside(module, node, function) for node in nodes]
    modes = {scope.mode if scope is not None else None for scope in scopes}
    return modes.pop() if len(modes) == 1 else None


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Everything in a function that runs when it is called; nested functions run later."""
    pending = children(function)
    if isinstance(function, _FUNCTIONS):
        pending = list(function.body)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.Lambda, ast.ClassDef)):
            pending += children(node)


def _own(function: FunctionNode, kinds: tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    return (node for node in own_nodes(function) if isinstance(node, kinds))


# -- where code stands ----------------------------------------------------------------------------


def decorator_scope(module: ModuleFacts, function: FunctionNode | ast.ClassDef) -> Scope | None:
    """The decorator that switches gradients off for a whole function, or for making an object."""
    for decorator in function.decorator_list:
        mode = mode_of(module, decorator, function)
        if mode is not None:
            return Scope(mode, decorator, function)
    return None


def scope_inside(module: ModuleFacts, node: ast.AST, function: ast.AST | None) -> Scope | None:
    """The scope that a node stands in, inside of its function: the decorator does not count."""
    child = node
    for parent in module.ancestors(node):
        if isinstance(parent, (*_FUNCTIONS, ast.Lambda)) or parent is function:
            return None
        if isinstance(parent, (ast.With, ast.AsyncWith)) and child in parent.body:
            if any(switches_on(module, i.context_expr, parent) for i in parent.items):
                return None
            scope = _with_scope(module, parent) or _entered_scope(module, parent, child)
            if scope is not None:
                return scope
        child = parent
    return None


def scope_around(module: ModuleFacts, node: ast.AST) -> Scope | None:
    """The scope that a node stands in, decorators of its function included."""
    function = module.function(node)
    inside = scope_inside(module, node, function)
    if inside is not None or function is None:
        return inside
    for parent in module.ancestors(node):
        if parent is function:
            return decorator_scope(module, function)
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            if any(switches_on(module, i.context_expr, parent) for i in parent.items):
                return None
    return None


def _with_scope(module: ModuleFacts, statement: ast.With | ast.AsyncWith) -> Scope | None:
    for item in statement.items:
        mode = mode_of(module, item.context_expr, statement)
        if mode is not None:
            return Scope(mode, item.context_expr, statement)
    return None


def _entered_scope(
    module: ModuleFacts, statement: ast.With | ast.AsyncWith, child: ast.AST
) -> Scope | None:
    """``stack.enter_context(torch.no_grad())`` before a place in the body of ``with ... stack``."""
    stacks = {i.optional_vars.id for i in statement.items if isinstance(i.optional_vars, ast.Name)}
    if not stacks:
        return None
    for before in statement.body:
        if before is child:
            return None
        call = before.value if isinstance(before, ast.Expr) else None
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "enter_context"
            and isinstance(call.func.value, ast.Name)
            and call.func.value.id in stacks
            and call.args
        ):
            mode = mode_of(module, call.args[0], before)
            if mode is not None:
                return Scope(mode, call.args[0], before)
    return None


def functions_with_scopes(module: ModuleFacts) -> frozenset[ast.AST]:
    """The functions, and the module where it has some, in whose bodies gradients are off."""
    found = set()
    for statement in module.statements:
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            scoped = _with_scope(module, statement) is not None
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            function = statement.value.func
            scoped = isinstance(function, ast.Attribute) and function.attr == "enter_context"
        else:
            continue
        if scoped:
            found.add(module.function(statement) or module.tree)
    return frozenset(found)


# -- switches that stay ---------------------------------------------------------------------------


def switch(module: ModuleFacts, statement: ast.stmt) -> tuple[ast.Call, bool | None] | None:
    """A statement that sets the mode until something sets it again, and what it sets.

    ``torch.set_grad_enabled(False)`` as a statement, ``torch.no_grad().__enter__()``; not
    ``torch.no_grad()``, which does nothing.  None stands for a mode that only the run knows.
    """
    call = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, (ast.Attribute, ast.Name)):
        return None
    if isinstance(call.func, ast.Attribute) and call.func.attr == "__enter__":
        entered = call.func.value
        if mode_of(module, entered, statement) is not None:
            return call, False
        return (call, True) if switches_on(module, entered, statement) else None
    names = {t.name for t in module.resolve(call.func, statement)}
    if not names or not names <= _SWITCHES:
        return None
    argument = _argument(call)
    if isinstance(argument, ast.Constant):
        return call, bool(argument.value)
    return call, None
