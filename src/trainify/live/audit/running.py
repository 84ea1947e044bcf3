"""Running statistics: what a step detaches to keep it for the next one.

A centre that outputs are held against, a running mean or variance: each step moves it by a share of
the mean over what it has just computed, and the output reads it.  It is a constant to the step,
like the statistics of a batch norm in eval mode; its history would be that of all steps before.
The source shows it: the stop stands in an update of an attribute by a mean, and so does all that
is made of it.  So does what is computed, where it is written into a buffer: by what leaves a share
of that.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence, Set

from ...facts.walk import walk
from .cuts import Suspect
from .places import Place
from .targets import with_parents
from .trace import Call, Trace, made_by, own_name, result, tensor_of

_MEANS = frozenset(
    "mean var std var_mean std_mean norm nanmean max min amax amin aminmax quantile nanquantile "
    "median".split()
)
"""And what else is made of many numbers, for a later step to go by."""
_MOVES = frozenset({"mul_", "div_", "add_", "sub_", "lerp_"})
"""Methods that leave a share of what was there."""
_SETS = frozenset({"copy_", "__setitem__"})
"""Those that leave nothing, unless what is written was made of it."""


def is_statistic(place: Place, buffers: Collection[str]) -> bool:
    """Whether all that a line computes is a mean, or what one is taken of, that moves a buffer.

    The line is that of a ``detach()``, or of a call where gradients are off.
    """
    tree, parents = with_parents(place.path)
    statements = [
        node
        for node in (walk(tree) if tree else ())
        if isinstance(node, ast.stmt)
        and not hasattr(node, "body")
        and node.lineno <= place.line <= (node.end_lineno or 0)
    ]
    stops = [each for each in statements if _stops(each)] or statements
    return len(stops) == 1 and (
        _has_mean(stops[0])
        if _moves(stops[0], buffers)
        else _feeds_moves(stops[0], parents, buffers)
    )


def moves_buffers(trace: Trace, group: Sequence[Suspect], buffers: Set[int]) -> bool:
    """Whether all that comes of what suspects at one site stop are means that move buffers.

    ``buffers`` are the numbers of these, as :func:`~.trace.tensor_of` gives them.
    """
    made: dict[int, bool] = {}
    """What comes of it, and whether that is a mean."""
    for call in dict.fromkeys(each.call for each in group):
        made.update(dict.fromkeys(map(tensor_of, made_by(call)), _is_mean(call)))
    written = {tensor_of(sight) for call in trace.calls for sight, _ in call.written.values()}
    of_buffer: dict[int, set[int]] = {buffer: set() for buffer in written & buffers}
    """What was made of each that is written."""
    if not of_buffer:
        return False
    moved = False
    for call in trace.calls:
        taken = [tensor_of(sight) for sight in call.ins]
        own = [tensor_of(sight) for sight in made_by(call)]
        for buffer, derived in of_buffer.items():
            if buffer in taken or not derived.isdisjoint(taken):
                derived.update(n for n in own if n not in of_buffer)
        comes = [made[number] for number in taken if number in made]
        if not comes:
            continue
        if call.function is result:
            return False
        into = [number for number in own if number in of_buffer]
        if into:
            shares = own_name(call) in _MOVES or (
                own_name(call) in _SETS and not of_buffer[into[0]].isdisjoint(taken)
            )
            if len(into) > 1 or not shares or not all(comes):
                return False
            moved = True
        else:
            mean = all(comes) or _is_mean(call)
            made.update(dict.fromkeys(own, mean))
    return moved


def _is_mean(call: Call) -> bool:
    return own_name(call) in _MEANS


def _stops(statement: ast.stmt) -> bool:
    """Whether there is a ``detach()`` or ``data`` in it."""
    return any(
        isinstance(node, ast.Attribute) and node.attr in ("detach", "data")
        for node in walk(statement)
    )


def _feeds_moves(
    statement: ast.stmt, parents: dict[ast.AST, ast.AST], buffers: Collection[str]
) -> bool:
    """``mean = h.detach().mean(0)``, of which only updates are made."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    made = target.elts if isinstance(target, ast.Tuple) else [target]
    names = {each.id for each in made if isinstance(each, ast.Name)}
    if not isinstance(statement, ast.Assign) or len(names) < len(made):
        return False
    function: ast.AST = statement
    while not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
        function = parents[function]
    loads = [
        node
        for node in walk(function)
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
    ]
    around = [_statement(node, parents) for node in loads]
    return (
        len(statement.targets) == 1
        and bool(loads)
        and all(
            _moves(each, buffers) and (_has_mean(statement) or _has_mean(each)) for each in around
        )
    )


def _statement(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.stmt:
    while not isinstance(node, ast.stmt):
        node = parents[node]
    return node


def _has_mean(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _MEANS
        for node in walk(statement)
    )


def _moves(statement: ast.stmt, buffers: Collection[str]) -> bool:
    """``self.m.mul_(0.9).add_(x)``, ``self.m.lerp_(x, 0.1)``, ``self.m = 0.9 * self.m + x``."""
    if isinstance(statement, ast.AugAssign):
        return _is_buffer(statement.target, buffers)
    if isinstance(statement, ast.Assign):
        target, value = statement.targets[0], statement.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=False))
        return len(statement.targets) == 1 and all(
            _is_buffer(one, buffers) and _reads(new, one) for one, new in pairs
        )
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    methods: list[str] = []
    node: ast.expr = call
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        methods.append(node.func.attr)
        node = node.func.value
    if not _is_buffer(node, buffers):
        return False
    if methods == ["copy_"]:
        return any(_reads(argument, node) for argument in call.args)
    return bool(methods) and all(method in _MOVES for method in methods)


def _is_buffer(node: ast.expr, buffers: Collection[str]) -> bool:
    """``self.mean``, as a whole."""
    if isinstance(node, ast.Attribute) and node.attr == "data":
        node = node.value
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.attr in buffers
        and "loss" not in node.attr
    )


def _reads(value: ast.expr, target: ast.expr) -> bool:
    text = ast.unparse(target)
    return any(
        isinstance(node, ast.Attribute) and ast.unparse(node) == text for node in walk(value)
    )
