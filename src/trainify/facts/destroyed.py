"""What a write destroys: a tensor that an operation has saved for backward."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeGuard

from .flow import Definition, FunctionFlow
from .guards import gradient_unwanted
from .memo import once
from .saved import Saver, savers
from .walk import walk
from .writes import (
    Root,
    Write,
    are_views,
    callers,
    is_element,
    root_of,
    roots,
    roots_of,
    with_gradient,
)

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts


def destroyed(module: ModuleFacts, write: Write) -> Saver | None:
    """An operation that saved the storage which a write overwrites, and ran before it."""
    function = module.function(write.statement)
    if function is None or write.name is None:
        return None
    flow = module.flow(function)
    for saver in savers(module, function, _shares_with(module, function, write.name.id)):
        if _hits(module, flow, write, saver):
            return saver
    return None


def _shares_with(
    module: ModuleFacts, function: FunctionNode, name: str
) -> Callable[[ast.expr], bool]:
    """Tells whether an operand may have the storage that a name has anywhere in a function."""
    names = sharing(module, function).get(name, frozenset({name}))

    def shares(operand: ast.expr) -> bool:
        root = root_of(operand)[0]
        return root is not None and root.id in names

    return shares


@once
def sharing(module: ModuleFacts, function: FunctionNode) -> Mapping[str, frozenset[str]]:
    """The names of a function that any assignment gives what another one has, or a view of it."""
    groups: dict[str, set[str]] = {}
    for node in walk(function):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            targets = [node.target]
        else:
            continue  # what a loop gives is no view that a definition knows of
        values = (root_of(each)[0] for each in _parts(node.value))
        roots = [root for root in values if root is not None]
        if roots:
            names = {n.id for each in (*targets, *roots) for n in walk(each) if _is_name(n)}
            group = set().union(*(groups.get(name, {name}) for name in names))
            groups.update(dict.fromkeys(group, group))
    return {name: frozenset(group) for name, group in groups.items()}


def _parts(value: ast.expr | None) -> list[ast.expr]:
    """What a value gives several targets, else the value itself."""
    if isinstance(value, (ast.Tuple, ast.List)):
        return [part for each in value.elts for part in _parts(each)]
    return [value] if value is not None else []


def destroyed_by_next_call(module: ModuleFacts, write: Write) -> Saver | None:
    """An operation after the write that saves a parameter which the next call writes again."""
    function = module.function(write.statement)
    if function is None or write.name is None:
        return None
    flow = module.flow(function)
    overwritten = _parameters(roots(module, flow, write.name.id, write.statement))
    if not overwritten:
        return None
    for saver in savers(module, function, _shares_with(module, function, write.name.id)):
        name, path = root_of(saver.operand)
        if name is None or not are_views(module, path):
            continue
        saved = _parameters(roots(module, flow, name.id, module.statement(saver.node)))
        for parameter in saved & overwritten:
            if any(
                _called_again(module, function, call, parameter)
                for call in callers(module, function)
            ):
                return saver
    return None


def _parameters(found: frozenset[Root]) -> set[str]:
    return {
        root.definition.name for root in found if root.definition.is_parameter and not root.element
    }


def _called_again(
    module: ModuleFacts, function: FunctionNode, call: ast.Call, parameter: str
) -> bool:
    """Whether a loop calls a function with the same tensor in each turn."""
    argument = module.project.argument(module, function, call, parameter)
    caller = module.function(call)
    if not isinstance(argument, ast.Name) or caller is None or gradient_unwanted(module, call):
        return False
    flow = module.flow(caller)
    for scope in module.ancestors(call):
        if isinstance(scope, (ast.ListComp, ast.GeneratorExp)):
            bound = {n.id for g in scope.generators for n in walk(g.target) if _is_name(n)}
            if argument.id not in bound:
                return True
        elif isinstance(scope, (ast.For, ast.While)):
            sure, maybe = flow.definitions_in(scope)
            if all(d.name != argument.id for d in (*sure, *maybe)):
                return True
        elif scope is caller:
            break
    return False


def _is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def _hits(module: ModuleFacts, flow: FunctionFlow, write: Write, saver: Saver) -> bool:
    name, path = root_of(saver.operand)
    assert write.name is not None
    if name is None or not are_views(module, path):
        return False
    statement = module.statement(saver.node)
    pieces = any(isinstance(n, ast.Subscript) and is_element(n) for n in (*path, write.target))
    saved = roots(module, flow, name.id, statement)
    before = runs_before(module, saver.node, write)
    overwritten = (
        _roots_after(module, flow, write, statement)
        if before
        else roots(module, flow, write.name.id, write.statement)
    )
    for a in saved:
        for b in overwritten:
            if a.definition != b.definition:
                continue
            if (pieces or a.element or b.element) and not is_tensor(module, a.definition):
                continue
            if before and _is_made_earlier(a.definition, statement):
                return True
            if _next_turn(module, flow, a.definition, statement, write):
                return True
    return False


def runs_before(module: ModuleFacts, node: ast.expr, write: Write) -> bool:
    """Whether an operation runs before a write in one pass through the function."""
    statement = module.statement(node)
    if statement is write.statement:
        return any(node in walk(value) for value in write.inputs)
    return _order(module, statement, write.statement) == "before"


def _is_made_earlier(definition: Definition, statement: ast.stmt) -> bool:
    """Whether a value was there before ``statement``, not made by it or after it."""
    made = definition.statement
    return made is None or (made.lineno, made.col_offset) < (statement.lineno, statement.col_offset)


def _roots_after(
    module: ModuleFacts, flow: FunctionFlow, write: Write, statement: ast.stmt
) -> frozenset[Root]:
    """The storage that a write overwrites on the way that leads through ``statement``."""
    assert write.name is not None
    around = [write.statement, *module.ancestors(write.statement)]
    current = statement
    last = None
    while statement is not write.statement:
        block = module.block(current)
        for later in block[
            block.index(current) if current is statement else block.index(current) + 1 :
        ]:
            if later in around:
                break
            sure, _ = flow.definitions_in(later)
            last = next((d for d in reversed(sure) if d.name == write.name.id), last)
        if any(s in block for s in around):
            break
        parent = module.parent(current)
        if not isinstance(parent, ast.stmt):
            break
        current = parent
    reaching = flow.reaching(write.name.id, write.statement)
    if last is None or last not in with_gradient(module, reaching, write.statement):
        return roots(module, flow, write.name.id, write.statement)
    return roots_of(module, flow, last)


def is_tensor(module: ModuleFacts, definition: Definition) -> bool:
    """Whether ``x[i]`` is a piece of a tensor: ``x`` was computed, and is no list."""
    value = definition.value
    if isinstance(value, ast.BinOp):
        return not _is_list(value)
    if not isinstance(value, ast.Call) or definition.index is not None:
        return False
    if not isinstance(value.func, ast.Attribute):
        return False
    return any(t.name.startswith("torch") for t in module.resolve(value.func)) or (
        not module.resolve(value.func)
        and value.func.attr not in ("split", "chunk", "unbind")
        and root_of(value)[0] is None
        and value.func.attr in ("clone", "new_zeros", "new_empty", "new_full", "float", "sum")
    )


def _is_list(node: ast.expr) -> bool:
    """Whether an expression makes a list or a tuple by operators: ``[None] * n``."""
    if isinstance(node, ast.BinOp):
        return _is_list(node.left) or _is_list(node.right)
    return isinstance(node, (ast.List, ast.Tuple, ast.ListComp))


def _order(module: ModuleFacts, first: ast.stmt, last: ast.stmt) -> str:
    """``before`` where ``first`` runs before ``last`` in one pass through the function."""
    if (first.lineno, first.col_offset) > (last.lineno, last.col_offset):
        return "after"
    around = [last, *module.ancestors(last)]
    current: ast.stmt = first
    while True:
        block = module.block(current)
        if isinstance(block[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break)):
            if not any(s in block for s in around):
                return "apart"
        if any(s in block for s in around):
            return "before"
        parent = module.parent(current)
        if isinstance(parent, (ast.ExceptHandler, ast.match_case)):
            parent = module.parent(parent)
        if not isinstance(parent, ast.stmt):
            return "apart"
        if parent in around:  # another arm of the same statement
            return "apart"
        current = parent


def _next_turn(
    module: ModuleFacts,
    flow: FunctionFlow,
    definition: Definition,
    statement: ast.stmt,
    write: Write,
) -> bool:
    """Whether the next turn of a loop writes what an operation of this one saved."""
    for loop in module.ancestors(write.statement):
        if isinstance(loop, (ast.For, ast.AsyncFor, ast.While)):
            made = definition.statement
            if loop not in module.ancestors(statement):
                continue
            if made is not None and (made is loop or loop in module.ancestors(made)):
                continue
            sure, maybe = flow.definitions_in(loop)
            if not any(d.name == definition.name for d in (*sure, *maybe)):
                return True
    return False
