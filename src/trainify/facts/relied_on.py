"""Which of its arguments callers of a function expect to be written.

Where a caller takes the new value from the result, the function may as well compute it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from .called import modules_of, positional
from .flow import COMPOUND
from .handed_on import handed_on, objects_with
from .memo import once
from .names import default_of, is_none, last_name, parameters
from .none import tested_not_none
from .unpacked import argument_for
from .views import view_of
from .walk import walk

if TYPE_CHECKING:
    from .flow import FunctionFlow
    from .module import FunctionNode, ModuleFacts


_MAX_DEPTH = 3


@once
def relied_on(
    module: ModuleFacts, function: FunctionNode, statement: ast.stmt, depth: int = 0
) -> frozenset[str]:
    """The parameters whose arguments some caller expects a statement to write.

    Its callers are looked for once, which takes longer than to ask about all of them; theirs, at a
    ``depth``, in their own file.
    """
    names = frozenset(argument.arg for argument in parameters(function.args))
    if depth:
        near = list(_calls_near(module, function))
        return frozenset(_by_calls(module, function, statement, near, names, depth))
    objects = objects_with(module, function)
    known = list(module.project.calls_of(module, function))
    if objects is not None:  # also of those that lists and tables hold
        files = objects.files
        known += ((f, call) for f in files for call in f.calls if objects.origins(f, call.func))
    if _may_be_thrown_away(module, function, {call for _, call in known}):
        return names
    found = _by_calls(module, function, statement, known, names, depth)
    found |= {n for n in names if _STATE.search(n) and _is_kept_at_times(function, n)}
    for handed in handed_on(module, function):
        statement = handed.module.statement(handed.call)
        if isinstance(statement, ast.Expr) and statement.value is handed.call:
            return names
        for name, argument in handed.arguments:
            if _is_read_elsewhere(handed.module, handed.call, argument):
                found |= names if name is None else {name}
    return frozenset(found)


def _calls_near(
    module: ModuleFacts, function: FunctionNode
) -> Iterator[tuple[ModuleFacts, ast.Call]]:
    """The calls of a function in its own file, also as a layer that a list holds."""
    found = list(module.project.calls_of(module, function, among=()))
    yield from found
    cls = module.method_class(function)
    if cls is None or not function.name.startswith(("forward", "__call__")):
        return
    known = {call for _, call in found}
    for call in module.calls:
        if call not in known and any(
            isinstance(made, ast.Call) and last_name(made.func) == cls.name
            for made in modules_of(module, call.func)
        ):
            yield module, call


def _by_calls(
    module: ModuleFacts,
    function: FunctionNode,
    statement: ast.stmt,
    known: Iterable[tuple[ModuleFacts, ast.Call]],
    names: Collection[str],
    depth: int,
) -> set[str]:
    """Those of the parameters whose arguments one of the calls expects to be written."""
    running = [each for each in known if _runs(module, function, statement, *each)]
    return {
        name
        for name in names
        if any(_relies(module, function, name, other, call, depth) for other, call in running)
    }


def _runs(
    module: ModuleFacts,
    function: FunctionNode,
    statement: ast.stmt,
    other: ModuleFacts,
    call: ast.Call,
) -> bool:
    """Whether a call of a function may get to a statement, by what it leaves out."""
    return not any(
        is_none(default_of(function.args, each.arg))
        and is_none(argument_for(module, function, other, call, each.arg) or ast.Constant(None))
        and tested_not_none(module, statement, each.arg)
        for each in parameters(function.args)
    )


def _relies(
    module: ModuleFacts,
    function: FunctionNode,
    parameter: str,
    other: ModuleFacts,
    call: ast.Call,
    depth: int,
) -> bool:
    """Whether one call expects its argument for a parameter to be written."""
    argument = argument_for(module, function, other, call, parameter)
    if argument is None:
        return False
    statement = other.statement(call)
    if isinstance(statement, ast.Expr) and statement.value is call:
        return True
    if _is_read_elsewhere(other, call, argument) or _is_held(other, call, argument, depth):
        return True
    return _STATE.search(parameter) is not None and any(
        _ignores(other, statement, call, out) for out in _places(function, parameter)
    )


def _may_be_thrown_away(
    module: ModuleFacts, function: FunctionNode, known: Collection[ast.Call]
) -> bool:
    """Whether a file that names it calls what may be it for nothing.

    ``for norm in self.norms: norm(x, residual)``, of a module's class, or of a function that is
    kept in a list, a table or a lambda; ``known`` are the calls that surely are.
    """
    cls = module.method_class(function)
    names = positional(module, function)
    needed = len(names) - len(function.args.defaults)
    if cls is None:
        named = function.name
        if not any(_is_kept(other, named) for other in module.project.mentioning(module, named)):
            return False
        needed = 1  # a lambda, or partial, may bind the others
    elif function.name.startswith(("forward", "__call__")):
        named = cls.name
    else:
        return False
    return any(
        isinstance(statement, ast.Expr)
        and isinstance(call := statement.value, ast.Call)
        and call not in known
        and needed <= len(call.args) + len(call.keywords) <= len(names)
        and {k.arg for k in call.keywords} <= set(names)
        and _may_hold_a(named, other, call.func)
        for other in module.project.mentioning(module, named)
        for statement in other.statements
    )


def _is_kept(module: ModuleFacts, name: str) -> bool:
    """Whether a file reads the name of a function otherwise than to call it there."""
    for statement in module.mentioning(name):
        for node in walk(statement):
            if not isinstance(node, (ast.Name, ast.Attribute)) or last_name(node) != name:
                continue
            parent = module.parent(node)
            called = isinstance(parent, ast.Call) and parent.func is node
            if isinstance(node.ctx, ast.Load) and (
                not called or any(isinstance(a, ast.Lambda) for a in module.ancestors(node))
            ):
                return True
    return False


_NO_STEP = re.compile(r"load|weight|init|hook|callback|log|save|register|copy", re.IGNORECASE)
"""Names of functions that handle weights and settings, and of what these call for nothing."""


def _may_hold_a(made: str, module: ModuleFacts, callee: ast.expr) -> bool:
    """Whether a local name, an attribute of ``self``, or an element of one, may hold a module."""
    function = module.function(callee)
    if function is None or _NO_STEP.search(f"{function.name} {module.source(callee)}"):
        return False
    if isinstance(callee, ast.Call) and last_name(callee.func) in ("get", "getattr"):
        return True
    while isinstance(callee, ast.Subscript):
        callee = callee.value
    if isinstance(callee, ast.Name):
        return bool(module.names.visible(callee)) and not module.resolve(callee)
    if not isinstance(callee, ast.Attribute) or not isinstance(callee.value, ast.Name):
        return False
    cls = module.names.self_class(callee.value)
    if cls is None or module.resolve(callee):
        return False
    bound = module.names.inherited(cls, callee.attr)
    if any(b.qualified is not None for b in bound):  # a method
        return False
    if not bound:  # by a base in another file, or it is a method of one: ``self.assertTrue``
        return _COMPUTED.search(module.usual) is not None or _is_kept_as(callee.attr, made, module)
    values = [b.value for b in bound]
    classes = [module.resolve(v.func) if isinstance(v, ast.Call) else () for v in values]
    return any(
        not targets or any(t.name.rpartition(".")[2] in (made, *_HOLDERS) for t in targets)
        for targets in classes
    )


def _is_kept_as(attribute: str, made: str, module: ModuleFacts) -> bool:
    """Whether a file that names what is made keeps something under the name of an attribute."""
    name, keeps = made.encode(), re.compile(rb"\bself\.%s\s*[:=]" % attribute.encode())
    return module.project.some(module, lambda data: name in data and keeps.search(data))


_COMPUTED = re.compile(r"\bsetattr\(\s*self\b|\.(?:add|register)_module\(")
_HOLDERS = ("ModuleList", "ModuleDict", "partial", "compile", "script")
_STATE = re.compile(r"(?<!hidden_)(?<!query_)(?<!key_)(?<!value_)(state|cache|buffer|memory)s?$")


def _is_read_elsewhere(module: ModuleFacts, call: ast.Call, argument: ast.expr) -> bool:
    """Whether an argument is read after a call whose statement does not bind it anew."""
    root = _root(argument)
    if isinstance(root, ast.Name):
        return _is_read_after(module, call, root.id)
    if isinstance(root, ast.Attribute):
        stored = _stored(module.statement(call))
        return module.source(argument) not in map(module.source, stored)
    return False


def _is_held(module: ModuleFacts, call: ast.Call, argument: ast.expr, depth: int) -> bool:
    """Whether an argument was put elsewhere, or has another name that is read later.

    Or is what a caller gave, who has it.
    """
    root = _root(argument)
    if not isinstance(root, ast.Name):
        return False
    statement = module.statement(call)
    function = module.function(statement)
    flow = module.flow(function or module.tree)
    others = flow.observers(root.id, statement)
    if any(flow.stored_before(name, statement) is not None for name in (root.id, *others)):
        return True
    if any(_is_read_after(module, call, name) for name in others):
        return True
    given = {name for name in (root.id, *others) if _is_given(flow, name, statement)}
    return (
        bool(given)
        and depth < _MAX_DEPTH
        and isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        and not given.isdisjoint(relied_on(module, function, statement, depth + 1))
    )


def _is_given(flow: FunctionFlow, name: str, statement: ast.stmt) -> bool:
    return any(d.is_parameter for d in flow.reaching(name, statement))


def _is_read_after(module: ModuleFacts, call: ast.Call, name: str) -> bool:
    statement = module.statement(call)
    flow = module.flow(module.function(statement) or module.tree)
    if any(isinstance(node, ast.Name) and node.id == name for node in _stored(statement)):
        return False
    if flow.read_after(name, statement):
        return True
    inside = set(walk(call))
    return not isinstance(statement, COMPOUND) and any(  # self.block(h) * h
        isinstance(node, ast.Name)
        and node.id == name
        and node not in inside
        and not isinstance(module.parent(node), ast.Attribute)  # h.shape
        for node in walk(statement)
    )


def _root(argument: ast.expr) -> ast.expr:
    """What an argument is, or is a view of."""
    while True:
        if isinstance(argument, ast.Subscript) or (
            isinstance(argument, ast.Attribute) and argument.attr == "data"
        ):
            argument = argument.value
        elif isinstance(argument, ast.Call) and view_of(argument) is not None:
            assert isinstance(argument.func, ast.Attribute)
            argument = argument.func.value
        else:
            return argument


def _stored(statement: ast.stmt) -> Iterator[ast.expr]:
    for node in walk(statement):
        if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", None), ast.Store):
            yield node


def _places(function: FunctionNode, name: str) -> set[tuple[int, int]]:
    """Where a function's results hold one of its names: the index, and of how many."""
    found: set[tuple[int, int]] = set()
    for node in walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for index, part in enumerate(parts):
                if isinstance(part, ast.Name) and part.id == name:
                    found.add((index, len(parts)))
    return found


def _is_kept_at_times(function: FunctionNode, name: str) -> bool:
    """``return y, (cache if output_state else None)``: else it is there for who holds it."""
    given = [node.value for node in walk(function) if isinstance(node, ast.Return)]
    parts = [
        p for value in given for p in (value.elts if isinstance(value, ast.Tuple) else [value])
    ]
    return any(
        isinstance(part, ast.IfExp)
        and sum(isinstance(v, ast.Name) and v.id == name for v in (part.body, part.orelse)) == 1
        for part in parts
    )


def _ignores(
    module: ModuleFacts, statement: ast.stmt, call: ast.Call, place: tuple[int, int]
) -> bool:
    """Whether an assignment of a call's results ignores one of them."""
    index, count = place
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return False
    target = statement.targets[-1]
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    if len(statement.targets) > 1 or len(targets) != count:
        return False
    taken = targets[index]
    flow = module.flow(module.function(statement) or module.tree)
    return isinstance(taken, ast.Name) and not flow.read_after(taken.id, statement)
