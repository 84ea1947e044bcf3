"""Where gradients are switched off: ``no_grad`` and its kin, in every form people write them.

A scope is a ``with``, a decorator, something entered on an ``ExitStack``, a statement that sets
the mode until another one does, or a wrapper around what is called: ``torch.no_grad()(f)(x)``.
Only what is off always is one: ``torch.no_grad() if frozen else nullcontext()`` is not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .grad_bytes import HELPER_NAME, defines_mode
from .memo import once
from .views import is_view_method
from .walk import children, statements, walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

Mode = Literal["no_grad", "inference_mode", "set_grad_enabled"]

_MODES: tuple[Mode, ...] = ("no_grad", "inference_mode", "set_grad_enabled")
_PLACES = ("torch", "torch.autograd", "torch.autograd.grad_mode")
_OFF = {f"{place}.{mode}": mode for place in _PLACES for mode in _MODES}
_ON = frozenset(f"{place}.enable_grad" for place in _PLACES)
SWITCHES = frozenset(
    [*(name for name in _OFF if name.endswith("set_grad_enabled")), "torch._C._set_grad_enabled"]
)
"""Functions that set the mode as they are called, and not only as a context."""
_ATTRIBUTES = frozenset("no_grad inference_mode set_grad_enabled enable_grad".split())
_HELPER = re.compile(HELPER_NAME, re.IGNORECASE)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MAX_DEPTH = 4


@dataclass(frozen=True)
class Scope:
    """A place where gradients are off: ``node`` names the mode, ``owner`` is the statement.

    ``owner`` is the ``with``, the decorated function, or the statement that enters the mode.
    ``wraps`` is the call that puts a function under it: ``torch.no_grad()(f)``.
    """

    mode: Mode
    node: ast.expr
    owner: ast.stmt
    wraps: ast.Call | None = None


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
            known = _mode_of_attribute(module, function, depth) if call is None else None
            return known or _mode_of_imported(module, function, at, depth)
    names = {t.name for t in module.resolve(function, at)}
    if names and names <= _OFF.keys():
        mode = min(_OFF[name] for name in names)
        return mode if _is_off(mode, call) else None
    if isinstance(function, ast.Name):
        if call is None:
            return _mode_of_value(module, function, at, depth)
        return _mode_of_helper(module, function.id, names, depth)
    if isinstance(function, ast.Attribute):
        return _mode_of_imported(module, function, at, depth)
    return None


def no_grad_scope(module: ModuleFacts, node: ast.expr, at: ast.stmt | None = None) -> bool:
    """Whether a context manager or decorator switches gradients off, always.

    One of which only the name is known says so by that: nothing is to be blamed for its absence.
    """
    return mode_of(module, node, at) is not None or _is_called_so(module, node, at)


def _is_called_so(module: ModuleFacts, node: ast.expr, at: ast.stmt | None) -> bool:
    """``with backend.no_grad():``, of a library that is not known."""
    function = node.func if isinstance(node, ast.Call) else node
    if not isinstance(function, ast.Attribute) or function.attr not in _MODES[:2]:
        return False
    names = {target.name for target in module.resolve(function, at)}
    return (
        isinstance(function.value, ast.Name)
        and not names & _OFF.keys()
        and (not names or all(name.endswith(f".{function.attr}") for name in names))
    )


def switches_on(module: ModuleFacts, node: ast.expr, at: ast.stmt | None = None) -> bool:
    """Whether a context manager or decorator may switch gradients (back) on."""
    call = node if isinstance(node, ast.Call) else None
    function = call.func if call is not None else node
    if isinstance(function, ast.Attribute) and function.attr not in _ATTRIBUTES:
        return False
    names = {t.name for t in module.resolve(function, at)}
    if not names.isdisjoint(_ON):
        return True
    return not names.isdisjoint(SWITCHES) and mode_of(module, node, at) is None


def first_argument(call: ast.Call | None) -> ast.expr | None:
    """What a call gives its function, by whatever name; None where that is nothing."""
    if call is None:
        return None
    return call.args[0] if call.args else next((k.value for k in call.keywords), None)


def _is_off(mode: Mode, call: ast.Call | None) -> bool:
    argument = first_argument(call)
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
        elif isinstance(binding.node, ast.ImportFrom) and binding.qualified is not None:
            found.add(_mode_of_helper(module, node.id, {binding.qualified}, depth))
        else:
            found.add(None)
    return found.pop() if len(found) == 1 else None


def _mode_of_attribute(module: ModuleFacts, node: ast.Attribute, depth: int) -> Mode | None:
    """``self.frozen = torch.no_grad()``, then ``with self.frozen:``."""
    cls = module.names.self_class(node.value)
    bindings = module.names.attributes(cls).get(node.attr, ()) if cls is not None else ()
    found = {
        mode_of(module, b.value, None, depth + 1) if isinstance(b.value, ast.Call) else None
        for b in bindings
    }
    return found.pop() if len(found) == 1 else None


def _mode_of_helper(module: ModuleFacts, name: str, names: set[str], depth: int) -> Mode | None:
    """The mode of ``helper()``, a function of this file or of the project."""
    for function in module.functions:
        if function.name == name and module.parent(function) is module.tree:
            return _mode_of_function(module, function, depth + 1)
    return _mode_of_foreign(module, names, depth)


def _mode_of_imported(
    module: ModuleFacts, node: ast.Attribute, at: ast.stmt | None, depth: int
) -> Mode | None:
    """The mode of ``utils.quiet``, a helper of a module that is imported by its name."""
    if not isinstance(node.value, (ast.Name, ast.Attribute)):
        return None
    return _mode_of_foreign(module, {t.name for t in module.resolve(node, at)}, depth)


def _mode_of_foreign(module: ModuleFacts, names: set[str], depth: int) -> Mode | None:
    """The mode of a helper of another file of the project, by its qualified names."""
    for qualified in names:
        owner, _, short = qualified.rpartition(".")
        if not owner or owner.startswith("torch"):
            continue
        path = module.project.find_module(module, owner)
        if path is None or not module.project.tells(path, defines_mode, short):
            continue
        other = module.project.load(path)
        if other is not None and other is not module:
            for binding in other.names.bindings(other.tree).get(short, ()):
                if isinstance(binding.value, ast.Call):  # frozen = torch.no_grad()
                    return mode_of(other, binding.value, None, depth + 1)
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
    under = scope_of_returns(module, function)
    return under.mode if under is not None else _mode_of_function(module, function, depth)


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


@once
def decorator_scope(module: ModuleFacts, function: FunctionNode | ast.ClassDef) -> Scope | None:
    """The decorator that switches gradients off for a whole function, or for making an object.

    It may stand behind the function: ``f = torch.no_grad()(f)``.
    """
    for decorator in function.decorator_list:
        mode = mode_of(module, decorator, function)
        if mode is not None and _holds_while_awaited(module, decorator, function):
            return Scope(mode, decorator, function)
    behind = _applied(module).get(function) if module.grad_wrappers else None
    if behind is None or isinstance(function, ast.AsyncFunctionDef):
        return None
    scope = _wrapper(module, behind, module.statement(behind))
    return Scope(scope.mode, scope.node, function) if scope is not None else None


def is_applied(module: ModuleFacts, node: ast.AST) -> bool:
    """Whether a call, or the statement that it is the value of, is a decorator behind a function.

    ``f = torch.no_grad()(f)``: of the name ``f`` there is one function, under that mode.
    """
    call = node.value if isinstance(node, ast.Assign) else node
    return module.grad_wrappers and call in _applied(module).values()


@once
def _applied(module: ModuleFacts) -> dict[ast.AST, ast.Call]:
    """Functions that a name stands for until one statement has called something on them.

    ``f = g(f)`` in the block of ``f``, ``Model.f = g(Model.f)`` behind the class, and
    ``self.f = g(self.f)`` in ``__init__``.
    """
    found: dict[ast.AST, list[ast.Call]] = {}
    for statement in module.statements:
        call = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(call, ast.Call) or len(call.args) != 1 or call.keywords:
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not isinstance(target, (ast.Name, ast.Attribute)):
            continue
        if module.source(target) == module.source(call.args[0]):
            function = _named_before(module, target, statement)
            if function is not None:
                found.setdefault(function, []).append(call)
    return {function: calls[0] for function, calls in found.items() if len(calls) == 1}


def _named_before(
    module: ModuleFacts, target: ast.Name | ast.Attribute, statement: ast.stmt
) -> FunctionNode | None:
    """The one function that a name stands for where a statement gives it another value."""
    parent = module.parent(statement)
    owner, name = parent, getattr(target, "id", "")
    if isinstance(target, ast.Attribute):
        name = target.attr
        if not isinstance(target.value, ast.Name):
            return None
        if parent is module.tree:
            owner = next((c for c in module.classes if c.name == target.value.id), None)
        elif isinstance(parent, ast.FunctionDef) and parent.name == "__init__":
            owner = module.names.self_class(target.value)
        else:
            return None
    body = getattr(owner, "body", None)
    if not isinstance(body, list):
        return None
    same = [f for f in body if isinstance(f, _FUNCTIONS) and f.name == name]
    if len(same) != 1 or (owner is parent and same[0].lineno > statement.lineno):
        return None
    block = module.block(statement)
    later = (*_FUNCTIONS, ast.ClassDef)  # what is in them runs by the name
    before = (s for s in block[: block.index(statement)] if not isinstance(s, later))
    if any(_reads(node, target) for each in before for node in walk(each)):
        return None  # it may go on under another name, as it is
    return same[0]


def _reads(node: ast.AST, target: ast.Name | ast.Attribute) -> bool:
    if isinstance(target, ast.Name):
        return isinstance(node, ast.Name) and node.id == target.id
    return isinstance(node, ast.Attribute) and node.attr == target.attr


def _holds_while_awaited(
    module: ModuleFacts, decorator: ast.expr, function: FunctionNode | ast.ClassDef
) -> bool:
    """Whether a decorator covers what a function does later, where that is a coroutine.

    torch's own modes and context managers are left as soon as the coroutine is made, before it
    runs; only a wrapper that awaits it stays.
    """
    if not isinstance(function, ast.AsyncFunctionDef):
        return True
    if isinstance(decorator, ast.Call):
        return False
    if any(target.name in _OFF for target in module.resolve(decorator, function)):
        return False
    if not isinstance(decorator, ast.Name):
        return True
    made = [binding.node for binding in module.names.visible_at(decorator.id, function)]
    here = [node for node in made if isinstance(node, (*_FUNCTIONS, ast.Assign))]
    return not here or any(isinstance(n, ast.AsyncFunctionDef) for f in here for n in walk(f))


def scope_inside(module: ModuleFacts, node: ast.AST, function: ast.AST | None) -> Scope | None:
    """The scope that a node stands in, inside of its function: the decorator does not count."""
    child = node
    switches = module.grad_switches
    for parent in module.ancestors(node):
        if switches and isinstance(child, ast.stmt) and parent is not module.tree:
            switched = switched_before(module, parent, child)
            if switched is not None:
                return switched[0]
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


@once
def scope_of_returns(module: ModuleFacts, function: FunctionNode) -> Scope | None:
    """A scope inside of a function that all it returns is computed in; one of several."""
    scopes = [
        scope_of_value(module, function, node.value, node)
        for node in statements(function)
        if isinstance(node, ast.Return) and node.value is not None
    ]
    return scopes[0] if scopes and all(scope is not None for scope in scopes) else None


def scope_of_value(
    module: ModuleFacts, function: FunctionNode, value: ast.expr, at: ast.stmt, depth: int = 0
) -> Scope | None:
    """The scope that a value has been computed in: at its statement, or where its name was set."""
    inside = scope_inside(module, at, function)
    if inside is not None or depth > _MAX_DEPTH:
        return inside
    scopes: list[Scope | None] = []
    if isinstance(value, (ast.Tuple, ast.List)):
        parts = [part for part in value.elts if not isinstance(part, ast.Constant)]
        scopes = [scope_of_value(module, function, part, at, depth + 1) for part in parts]
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if is_view_method(value.func.attr):
            return scope_of_value(module, function, value.func.value, at, depth + 1)
    elif isinstance(value, (ast.Attribute, ast.Subscript)):
        return scope_of_value(module, function, value.value, at, depth + 1)
    elif isinstance(value, ast.Name) and not _added_to(module, function, value.id):
        for made in module.flow(function).reaching(value.id, at):
            if made.statement is None:
                return None
            source = made.value if made.value is not None else ast.Constant(None)
            scopes.append(scope_of_value(module, function, source, made.statement, depth + 1))
    return scopes[0] if scopes and all(scope is not None for scope in scopes) else None


def _added_to(module: ModuleFacts, function: FunctionNode, name: str) -> bool:
    """Whether something is added to a name outside of all scopes: ``total += model(x)``."""
    return any(
        isinstance(node, ast.AugAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == name
        and scope_inside(module, node, function) is None
        for node in statements(function)
    )


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


def scope_of_flag(module: ModuleFacts, line: int) -> Scope | None:
    """``with torch.set_grad_enabled(flag)`` that a line begins: whether it is one, a run shows.

    Not where the flag is whether the module is in training, or what it was before.
    """
    for scope, flag in _scopes_of_flags(module, line):
        if not _ASKS.search(module.source(flag)):
            return scope
    return None


_ASKS = re.compile(r"training|grad_enabled|\beval\b|mode\b")


def flag_at(module: ModuleFacts, line: int) -> ast.expr | None:
    """The flag of ``with torch.set_grad_enabled(flag)`` that a line begins, whatever it is."""
    return next((flag for _, flag in _scopes_of_flags(module, line)), None)


def _scopes_of_flags(module: ModuleFacts, line: int) -> Iterator[tuple[Scope, ast.expr]]:
    for statement in module.statements:
        if isinstance(statement, (ast.With, ast.AsyncWith)) and _begins_at(statement, line):
            for item in statement.items:
                call = item.context_expr
                flag = first_argument(call) if isinstance(call, ast.Call) else None
                if not isinstance(call, ast.Call) or flag is None:
                    continue
                names = {target.name for target in module.resolve(call.func, statement)}
                if names and names <= SWITCHES and not isinstance(flag, ast.Constant):
                    yield Scope("set_grad_enabled", call, statement), flag


def _begins_at(statement: ast.With | ast.AsyncWith, line: int) -> bool:
    return statement.lineno <= line <= (statement.items[-1].context_expr.end_lineno or 0)


def scope_at(module: ModuleFacts, line: int) -> Scope | None:
    """The scope that a line begins."""
    for function in module.functions:
        if any(decorator.lineno == line for decorator in function.decorator_list):
            return decorator_scope(module, function)
    for statement in module.statements:
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            if _begins_at(statement, line):
                return _with_scope(module, statement)
        elif statement.lineno == line:
            switch = module.grad_switches.get(statement)
            if switch is not None and switch.mode is not None:
                return Scope(switch.mode, switch.node, statement)
            entered = _entered_by(module, statement)
            if entered is not None:
                return entered
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
    stacks = _stacks(statement)
    for before in statement.body if stacks else ():
        if before is child:
            return None
        entered = _entering(module, before, stacks)
        if entered is not None:
            return entered
    return None


def _entered_by(module: ModuleFacts, statement: ast.stmt) -> Scope | None:
    """The scope that a statement enters, of a stack that a ``with`` around it has opened."""
    stacks: set[str] = set()
    for parent in module.ancestors(statement):
        if isinstance(parent, (*_FUNCTIONS, ast.Lambda)):
            break
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            stacks |= _stacks(parent)
    return _entering(module, statement, stacks) if stacks else None


def _stacks(statement: ast.With | ast.AsyncWith) -> set[str]:
    return {i.optional_vars.id for i in statement.items if isinstance(i.optional_vars, ast.Name)}


def _entering(module: ModuleFacts, statement: ast.stmt, stacks: set[str]) -> Scope | None:
    """``stack.enter_context(torch.no_grad())``, of one of some stacks."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "enter_context"
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in stacks
        and call.args
    ):
        mode = mode_of(module, call.args[0], statement)
        if mode is not None:
            return Scope(mode, call.args[0], statement)
    return None


def functions_with_scopes(module: ModuleFacts) -> frozenset[ast.AST]:
    """The functions in whose bodies gradients are off; :class:`ModuleFacts` asks once."""
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
    for statement, switch in module.grad_switches.items():
        if switch is not None and switch.mode is not None:
            found.add(module.function(statement) or module.tree)
    if module.grad_wrappers:
        if any(_wrapper(module, call, module.statement(call)) for call in module.calls):
            return frozenset(module.functions)  # whatever they are called by
    return frozenset(found)


# -- switches that stay -------------------------------------------------------------------------


def switched_before(
    module: ModuleFacts, parent: ast.AST, child: ast.stmt
) -> tuple[Scope | None] | None:
    """What the statements before one in its block have set the mode to; None where they have not.

    The scope is None where gradients are on again, or where only the run knows.
    """
    switches = module.grad_switches
    if isinstance(parent, (ast.For, ast.AsyncFor, ast.While)) and parent in switches:
        around = (None,)  # the next turn starts with what the last one has left
    else:
        around = None
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if not isinstance(block, list) or child not in block:
            continue
        for before in reversed(block[: block.index(child)]):
            if before not in switches:
                continue
            statement = _last_switch(module, before)
            found = switches[statement] if statement is not None else None
            if found is None or found.mode is None:
                return (None,)
            assert statement is not None
            return (Scope(found.mode, found.node, statement),)
    return around


def _last_switch(module: ModuleFacts, statement: ast.stmt) -> ast.stmt | None:
    """The statement that surely sets the mode last, of those in another one."""
    while isinstance(statement, ast.Try) and statement.finalbody:
        inside = [s for s in statement.finalbody if s in module.grad_switches]
        if not inside:
            return None
        statement = inside[-1]
    return statement if module.grad_switches.get(statement) is not None else None


# -- wrappers -------------------------------------------------------------------------------------


_WRAPPERS = ("no_grad()(", "inference_mode()(", "inference_mode(True)(", "grad_enabled(False)(")
_WRAPS_NAME = re.compile(r"no_grad\(\s*\w")


def wraps_functions(module: ModuleFacts) -> bool:
    """Whether a file may put functions under a mode; :class:`ModuleFacts` asks once."""
    text = module.text
    return any(word in text for word in _WRAPPERS) or _WRAPS_NAME.search(text) is not None


def wrapping(module: ModuleFacts, node: ast.expr, at: ast.stmt) -> Scope | None:
    """The scope that calling ``node`` runs in, where that is a wrapper: ``torch.no_grad()(f)``.

    ``node`` may be the wrapper, or a name or attribute of ``self`` that holds one.
    """
    if isinstance(node, ast.Call):
        return _wrapper(module, node, at)
    values: list[ast.expr | None] = []
    if isinstance(node, ast.Name):
        reaching = module.flow(module.function(at) or module.tree).reaching(node.id, at)
        values = [d.value if d.index is None else None for d in reaching]
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        cls = module.names.self_class(node.value)
        if cls is not None and node.attr != "forward":
            values = [b.value for b in module.names.attributes(cls).get(node.attr, ())]
    if any(value is not None and is_applied(module, value) for value in values):
        return None  # as a decorator of the function
    scopes = [
        _wrapper(module, value, module.statement(value)) if isinstance(value, ast.Call) else None
        for value in values
    ]
    return scopes[0] if len(scopes) == 1 else None


def _wrapper(module: ModuleFacts, call: ast.Call, at: ast.stmt) -> Scope | None:
    if len(call.args) != 1 or call.keywords:
        return None
    if isinstance(call.func, ast.Call):
        mode = mode_of(module, call.func, at)
        return Scope(mode, call.func, at, call) if mode is not None else None
    wrapped = call.args[0]
    if isinstance(wrapped, (ast.Name, ast.Attribute, ast.Lambda)):  # torch.no_grad(f)
        names = {t.name for t in module.resolve(call.func)}
        if names and all(_OFF.get(name) == "no_grad" for name in names):
            return Scope("no_grad", call.func, at, call)
    return None
