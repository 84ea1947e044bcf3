"""Where a value becomes an array or is copied, which raises once the value has a graph.

Only by ways on which a value without a graph stays one: what is multiplied by a weight has a graph
whether or not the value had one, and what is detached never has.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .called import functions_of
from .layers import classes_named, is_module_class
from .metadata import TRAITS
from .names import is_none, last_name, parameters, self_name
from .views import is_view_method
from .walk import walk

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

End = Literal["array", "copy", "returned"]

_SAME_METHODS = frozenset(
    "clone cpu cuda to type half float double bfloat16 mean sum norm softmax sigmoid tanh relu "
    "abs exp clamp items values get copy result".split()
)
_SAME_FUNCTIONS = frozenset(
    "normalize softmax log_softmax sigmoid tanh relu silu gelu cat concat stack squeeze flatten "
    "reshape mean sum".split()
)
_COLLECTED = frozenset("append add".split())
_SENT = frozenset("put put_nowait set_result send".split())
_RECEIVED = ("get", "get_nowait", "result", "recv")
_ABOUT = TRAITS | frozenset("data grad grad_fn is_leaf requires_grad nbytes names".split())
"""What a tensor has beside its values; another attribute is a field of what holds one."""
_SEQUENCES = frozenset("list tuple reversed".split())
_OTHER = (ast.Lambda, ast.Compare, ast.BoolOp, ast.JoinedStr, ast.FormattedValue)
_MAX_NAMES = 6


def array_ways(module: ModuleFacts, node: ast.expr) -> Iterator[tuple[End, ast.expr]]:
    """The calls that make an array of a value, or copy it, and what a function returns of it."""
    return _ways(module, node, 0, _Followed({}, {}))


@dataclass(frozen=True)
class _Followed:
    """What one question has followed: many ways lead to one read of a name."""

    names: dict[ast.AST, int]
    """The reads, and behind how many names they came first."""
    inside: dict[tuple[ast.AST, str, int], list[tuple[End, ast.expr]]]
    """What functions make of their parameters."""


def _ways(
    module: ModuleFacts, node: ast.expr, names: int, followed: _Followed
) -> Iterator[tuple[End, ast.expr]]:
    if followed.names.get(node, names + 1) <= names:
        return
    followed.names[node] = names
    child, parent = node, module.parent(node)
    while isinstance(parent, (ast.expr, ast.keyword, ast.comprehension)):
        if isinstance(parent, ast.comprehension):
            if child is parent.iter and names < _MAX_NAMES:
                around = module.parent(parent)
                for load in _loads_in(around, _names(parent.target)) if around else ():
                    yield from _ways(module, load, names + 1, followed)
            return
        if isinstance(parent, ast.keyword):
            parent = module.parent(parent)
            continue
        if isinstance(parent, ast.Attribute):
            call = module.parent(parent)
            if parent.attr in ("T", "mT"):
                child = parent
            elif isinstance(call, ast.Call) and call.func is parent:
                if parent.attr == "numpy" and not call.keywords:
                    yield "array", call
                    return
                same = parent.attr in _SAME_METHODS or is_view_method(parent.attr)
                if not same or parent.attr == "detach":
                    return
                child = call
            elif parent.attr in _ABOUT:
                return
            else:
                child = parent
        elif isinstance(parent, (ast.Yield, ast.YieldFrom)):
            yield "returned", parent
            return
        elif isinstance(parent, ast.Call):
            end = _given_to(module, parent)
            if end is not None:
                yield end, parent
                return
            if _collects(parent) and names < _MAX_NAMES:
                assert isinstance(parent.func, ast.Attribute)
                for held in loads_of(module, parent.func.value, module.statement(parent)):
                    yield from _ways(module, held, names + 1, followed)
                return
            if _sends(parent) and names < _MAX_NAMES:
                for received in (c for name in _RECEIVED for c in module.calls_named(name)):
                    if not received.args and isinstance(received.func, ast.Attribute):
                        yield from _ways(module, received, names + 1, followed)
                return
            found = next(functions_of(module, parent.func), None) if names < _MAX_NAMES else None
            if found is not None:
                ends = list(_ways_inside(*found, parent, child, names, followed))
                yield from (each for each in ends if each[0] != "returned")
                if not any(end == "returned" for end, _ in ends):
                    return
            elif not _holds(module, parent) and not _keeps(module, parent, child):
                return
            child = parent
        elif isinstance(parent, ast.BinOp):
            if not _is_of(parent.right if child is parent.left else parent.left, child):
                return
            child = parent
        elif isinstance(parent, _OTHER) or child is getattr(parent, "slice", None):
            return
        else:
            child = parent
        parent = module.parent(child)
    if isinstance(parent, ast.Return):
        yield "returned", child
    elif isinstance(parent, (ast.Assign, ast.AnnAssign, ast.For)) and names < _MAX_NAMES:
        if child is (parent.iter if isinstance(parent, ast.For) else parent.value):
            if isinstance(parent, ast.Assign) and is_row(module, parent.targets[0]):
                yield "array", child
                return
            for target in parent.targets if isinstance(parent, ast.Assign) else [parent.target]:
                for read in loads_of(module, target, parent):
                    yield from _ways(module, read, names + 1, followed)


def _given_to(module: ModuleFacts, call: ast.Call) -> End | None:
    """What a call makes of a tensor that it is given, if that is an array or a copy."""
    names = [target.name for target in module.resolve(call.func)]
    if any(makes_arrays(name) for name in names):
        return "array"
    return "copy" if "copy.deepcopy" in names else None


def makes_arrays(name: str) -> bool:
    """Whether a function is of a library that makes arrays of what it is given."""
    return name.startswith(("numpy.", "matplotlib."))


def _collects(call: ast.Call) -> bool:
    """``outputs.append(y)``."""
    return isinstance(call.func, ast.Attribute) and call.func.attr in _COLLECTED


def _sends(call: ast.Call) -> bool:
    """``outbox.put(y)``: whoever reads from a queue of the file may get it."""
    return isinstance(call.func, ast.Attribute) and call.func.attr in _SENT


def _ways_inside(
    module: ModuleFacts,
    function: FunctionNode,
    call: ast.Call,
    value: ast.AST,
    names: int,
    followed: _Followed,
) -> Iterator[tuple[End, ast.expr]]:
    """The same of an argument, in the function that a call gives it to."""
    for parameter in parameters(function.args):
        if module.project.argument(module, function, call, parameter.arg) is value:
            if parameter.arg != self_name(function) or module.method_class(function) is None:
                key = function, parameter.arg, names
                if key not in followed.inside:
                    found = followed.inside[key] = []
                    for load in _loads_in(function, frozenset((parameter.arg,))):
                        found += _ways(module, load, names + 1, _Followed({}, followed.inside))
                yield from followed.inside[key]


def _holds(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call makes an object that has what it is given for fields: ``Output(y)``."""
    name = last_name(call.func)
    if not name[:1].isupper() or not isinstance(call.func, (ast.Name, ast.Attribute)):
        return False
    for found in classes_named(module, call.func):
        return not is_module_class(*found)
    return name.endswith(("Output", "Outputs"))


def is_row(module: ModuleFacts, target: ast.expr) -> bool:
    """``vectors[i]`` of an array that NumPy made."""
    if not isinstance(target, ast.Subscript):
        return False
    while isinstance(target, ast.Subscript):
        target = target.value
    values: list[ast.expr | None] = []
    if isinstance(target, ast.Name):
        flow = module.flow(module.function(target) or module.tree)
        values = [d.value for d in flow.reaching(target.id, module.statement(target))]
    elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        cls = module.names.self_class(target.value)
        if cls is not None:
            values = [b.value for b in module.names.attributes(cls).get(target.attr, ())]
    return any(
        isinstance(value, ast.Call)
        and any(made.name.startswith("numpy.") for made in module.resolve(value.func))
        for value in values
    )


def _keeps(module: ModuleFacts, call: ast.Call, value: ast.expr) -> bool:
    """Whether a function of a value, and of nothing else that could have a graph."""
    if value not in call.args[:1]:
        return False
    if isinstance(call.func, ast.Name) and call.func.id in _SEQUENCES:
        return True
    names = [target.name for target in module.resolve(call.func)]
    if not any(n.startswith("torch.") and n.rpartition(".")[2] in _SAME_FUNCTIONS for n in names):
        return False
    return not isinstance(value, (ast.List, ast.Tuple)) or len(value.elts) == 1


def _is_of(other: ast.expr, value: ast.expr) -> bool:
    """Whether an operand is a number, or made of the names of a value alone: ``y / y.norm()``."""
    known = {n.id for n in walk(value) if isinstance(n, ast.Name)}
    return all(
        isinstance(n, (ast.Constant, ast.UnaryOp))
        or (isinstance(n, ast.Name) and n.id in known)
        or isinstance(n, (ast.Call, ast.Attribute, ast.keyword))
        for n in walk(other)
    ) and not is_none(other)


def _names(target: ast.expr) -> frozenset[str]:
    return frozenset(n.id for n in walk(target) if isinstance(n, ast.Name))


def _loads_in(root: ast.AST, names: frozenset[str]) -> Iterator[ast.Name]:
    for node in walk(root):
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
            yield node


def loads_of(module: ModuleFacts, target: ast.expr, at: ast.stmt) -> Iterator[ast.expr]:
    """Where what a statement binds is read, or what it puts into a container or an attribute."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from loads_of(module, element, at)
        return
    held = isinstance(target, ast.Subscript) or isinstance(getattr(target, "ctx", None), ast.Load)
    while isinstance(target, (ast.Subscript, ast.Starred)):
        target = target.value
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        owner = module.names.self_class(target.value)
        for node in walk(owner) if owner is not None else ():
            if isinstance(node, ast.Attribute) and node.attr == target.attr and node is not target:
                if isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name):
                    if module.names.self_class(node.value) is owner:
                        yield node
    elif isinstance(target, ast.Name):
        function = module.function(at)
        flow = module.flow(function or module.tree)
        before = flow.reaching(target.id, at) if held else frozenset()
        for load in _loads_in(function or module.tree, frozenset((target.id,))):
            if load is target or module.function(load) is not function:
                continue
            for definition in flow.reaching(load.id, module.statement(load)):
                if definition.statement is at or definition in before:
                    yield load
                    break


def buffer_loads(module: ModuleFacts, call: ast.Call, buffer: ast.expr) -> Iterator[ast.expr]:
    """Where a tensor is read behind the call that fills it."""
    at = module.statement(call)
    last = at.end_lineno or at.lineno
    if isinstance(buffer, ast.Name):
        yield from (load for load in loads_of(module, buffer, at) if load.lineno > last)
