"""Kernels that save nothing, and whose equivalents save what they are given."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..catalog import BindError, FusedOp, lookup
from ..catalog.own import registered
from ..facts import ModuleFacts
from ..facts.grad_mode import own_nodes
from ..facts.names import parameters, passed
from ..facts.reached import run_by
from ..facts.writes import root_of, roots

_ONLY_SUMS = re.compile(r"fused_add|rotary|rotate")
"""Reference functions whose gradient takes none of what is added or turned."""
_MAX_DEPTH = 3


def saved_before(
    module: ModuleFacts, function: ast.AST, name: str, statement: ast.stmt
) -> Iterator[ast.Call]:
    """The calls before a statement whose equivalents save a tensor that has a name there."""
    flow = module.flow(function)  # type: ignore[arg-type]
    now = {root.definition for root in roots(module, flow, name, statement)}
    now |= set(flow.reaching(name, statement))
    for call in own_nodes(function):
        if not isinstance(call, ast.Call):
            continue
        at = module.statement(call)
        if at is statement:
            continue
        again = any(
            isinstance(loop, (ast.For, ast.While)) and loop in module.ancestors(statement)
            for loop in module.ancestors(call)
        )
        if at.lineno > statement.lineno and not again:
            continue
        for argument in passed(call):
            root = root_of(argument)[0]
            if root is None:
                continue
            then = {each.definition for each in roots(module, flow, root.id, at)}
            then |= set(flow.reaching(root.id, at))
            if then & now and _saves(module, call, argument):
                yield call
                break


def _saves(module: ModuleFacts, call: ast.Call, argument: ast.expr, depth: int = 0) -> bool:
    """Whether the equivalent of what a call runs saves this argument of it."""
    for target in module.resolve(call.func):
        op = lookup(target.name, registered())
        if op is not None and op.cuts and op.equivalent is not None:
            try:
                bound = op.signature.bind(call.args, call.keywords)
            except BindError:
                return False
            return any(bound[name] is argument for name in _saved(op))
    if depth == _MAX_DEPTH:
        return False
    for home, function in run_by(module, call):
        for parameter in parameters(function.args):
            if module.project.argument(home, function, call, parameter.arg) is not argument:
                continue
            flow = home.flow(function)
            for inner in own_nodes(function):
                if not isinstance(inner, ast.Call):
                    continue
                for each in passed(inner):
                    root = root_of(each)[0]
                    if root is None:
                        continue
                    found = roots(home, flow, root.id, home.statement(inner))
                    names = {r.definition.name for r in found if r.definition.is_parameter}
                    if parameter.arg in names and _saves(home, inner, each, depth + 1):
                        return True
    return False


def _saved(op: FusedOp) -> frozenset[str]:
    """The arguments of an op that its equivalent saves."""
    assert op.equivalent is not None
    if _ONLY_SUMS.search(op.equivalent.partition(" = ")[2] or op.equivalent):
        return frozenset()
    return frozenset(a.name for a in op.signature.arguments if a.is_tensor and a.name in op.reads)
