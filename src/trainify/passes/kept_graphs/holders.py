"""What is put into a list or a dict of the object, and read again by the next step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeGuard

from ...facts import ModuleFacts
from ...facts.graph import Graph
from ...facts.guards import gradient_unwanted
from ...facts.kept import is_made_anew, is_same
from ...facts.trainable import trained_submodules
from ...facts.walk import walk
from ...findings import STRATEGIES, Finding, Fix
from .only_kept import kept_detached
from .reads import read_elsewhere
from .steps import is_left_alone, is_step, is_switched
from .values import has_graph

if TYPE_CHECKING:
    from ...facts.module import FunctionNode


def in_holders(module: ModuleFacts) -> Iterator[Finding]:
    """``self.keys[layer] = k`` and ``self.keys.append(k)``, of what the next step reads again."""
    for statement in module.statements:
        owner, value, index = _put(statement)
        function = module.function(statement)
        if owner is None or value is None or function is None:
            continue
        if not _is_holder(module, owner) or not is_step(module, function, statement):
            continue
        if is_left_alone(module, owner, function) or _is_emptied(module, owner):
            continue
        if is_switched(module, statement, owner) or not (
            has_graph(module, function, value) or _is_of_layers(module, function, value)
        ):
            continue
        before, after = _reads_of(module, function, owner, statement, index)
        if not before and (not after or _is_put_anew(module, function, owner, statement, index)):
            continue
        if is_made_anew(module, function, owner, statement):
            continue
        text = module.source(owner)
        message = (
            f"`{text}` outlives the step, and keeps the graph of `{module.source(value)}`: the "
            "next step reads it, and its backward walks into the graph of this one and fails."
        )
        fixes: dict[str, Fix] = {}
        after = after or read_elsewhere(module, function, owner, statement)
        if not after and (index is None or _is_of_turn(module, function, statement, index)):
            fix = kept_detached(module, function, statement, owner, [value])
            fixes = dict.fromkeys(STRATEGIES, fix)
        yield module.finding("TRN408", message, statement, fixes)


def _is_of_layers(module: ModuleFacts, function: FunctionNode, value: ast.expr) -> bool:
    """Whether a value comes from layers of the object, in a loop over them too."""
    cls = module.method_class(function)
    trained = trained_submodules(module, cls) if cls is not None else frozenset[str]()
    graph = Graph(module, function)
    return bool(trained) and any(
        step.cut is None and graph.attribute(step.node, step.at) in trained
        for step in graph.back_from([(value, module.statement(value))])
    )


def _put(
    statement: ast.stmt,
) -> tuple[ast.Attribute | None, ast.expr | None, ast.expr | None]:
    """The list or dict that a statement puts a value into, the value, and the index."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Subscript) and _is_attribute_of_name(target.value):
            if not isinstance(target.slice, ast.Slice):
                return target.value, statement.value, target.slice
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append" and call.args:
            if _is_attribute_of_name(call.func.value):
                return call.func.value, call.args[0], None
    return None, None, None


def _is_attribute_of_name(node: ast.expr) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)


def _is_holder(module: ModuleFacts, owner: ast.Attribute) -> bool:
    """Whether an attribute is a list or a dict from the start, and nothing else later."""
    assert isinstance(owner.value, ast.Name)
    cls = module.names.self_class(owner.value)
    made = module.names.attributes(cls).get(owner.attr, []) if cls is not None else []
    return bool(made) and all(_makes_holder(binding.value) for binding in made)


def _makes_holder(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id in ("dict", "list")
    if isinstance(value, ast.BinOp):  # [None] * layers
        return isinstance(value.left, ast.List)
    return (isinstance(value, ast.List) and not value.elts) or (
        isinstance(value, ast.Dict) and not value.keys
    )


def _is_emptied(module: ModuleFacts, owner: ast.Attribute) -> bool:
    """Whether somebody empties a list or a dict, or takes out what was put in."""
    assert isinstance(owner.value, ast.Name)
    name, own = re.escape(owner.attr), re.escape(owner.value.id)
    taken = (
        rf"\.{name}(?:\.(?:clear|pop|popitem|popleft)\b|\[:\])"
        rf"|\bdel [^\n]*\.{name}\b|\b(?!(?:self|{own})\.)\w+\.{name} = "
    )
    return re.search(taken, module.usual) is not None or module.project.says(module, taken.encode())


def _reads_of(
    module: ModuleFacts,
    function: FunctionNode,
    owner: ast.Attribute,
    statement: ast.stmt,
    index: ast.expr | None,
) -> tuple[bool, bool]:
    """Whether a step reads values of a list or a dict before it puts one in, and afterwards.

    What it reads by another key is not that value.
    """
    before = after = False
    for node in walk(function):
        if not is_same(node, owner) or not isinstance(node.ctx, ast.Load):
            continue
        at, parent = module.statement(node), module.parent(node)
        if at is statement or isinstance(parent, ast.Compare) or gradient_unwanted(module, node):
            continue  # i in self.keys
        if isinstance(at, (ast.If, ast.While)) or _put(at)[0] is node:
            continue
        if isinstance(parent, ast.Call) and getattr(parent.func, "id", "") == "len":
            continue
        if isinstance(parent, ast.Subscript) and _are_apart(parent.slice, index):
            continue
        before, after = (
            before or node.lineno < statement.lineno,
            after or (node.lineno > statement.lineno),
        )
    return before, after


def _are_apart(one: ast.expr, other: ast.expr | None) -> bool:
    """Whether two keys are constants, and not the same."""
    if not isinstance(one, ast.Constant) or not isinstance(other, ast.Constant):
        return False
    return one.value != other.value


def _is_put_anew(
    module: ModuleFacts,
    function: FunctionNode,
    owner: ast.Attribute,
    statement: ast.stmt,
    index: ast.expr | None,
) -> bool:
    """Whether each call puts a value in by the same keys, before it reads there: ``self.seen[i]``.

    The keys are constants, or those of a loop over what the object has: ``enumerate(self.layers)``.
    """
    around = [a for a in module.ancestors(statement) if isinstance(a, ast.stmt)]
    around = around[: around.index(function)]
    if index is None or not all(isinstance(each, ast.For) for each in around):
        return False
    loops = [each for each in around if isinstance(each, ast.For)]
    bound = {n.id for loop in loops for n in walk(loop.target) if isinstance(n, ast.Name)}
    used = {n.id for n in walk(index) if isinstance(n, ast.Name)}
    own = set(module.flow(function).parameters[:1]) | {"enumerate", "range", "len", "zip"}
    turns = {n.id for loop in loops for n in walk(loop.iter) if isinstance(n, ast.Name)}
    if not used <= bound or not turns <= own:
        return False
    if any(isinstance(n, (ast.Break, ast.Continue)) for loop in loops for n in walk(loop)):
        return False
    last = max((loop.end_lineno or 0 for loop in loops), default=0)
    for node in walk(function):
        if is_same(node, owner) and isinstance(node.ctx, ast.Load) and node.lineno <= last:
            held = module.parent(node)
            if not isinstance(held, ast.Subscript) or ast.dump(held.slice) != ast.dump(index):
                return False
    return True


def _is_of_turn(
    module: ModuleFacts, function: FunctionNode, statement: ast.stmt, index: ast.expr
) -> bool:
    """Whether each turn of the loops around a statement has an index of its own."""
    used = {n.id for n in walk(index) if isinstance(n, ast.Name)}
    for around in module.ancestors(statement):
        if around is function:
            return True
        if isinstance(around, (ast.For, ast.AsyncFor)):
            names = {n.id for n in walk(around.target) if isinstance(n, ast.Name)}
            if not names & used:
                return False
        elif isinstance(around, ast.While):
            return False
    return True
