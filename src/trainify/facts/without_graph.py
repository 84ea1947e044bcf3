"""What only runs on tensors without a graph, in code that is about to get one.

Under a scope without gradients a tensor becomes an array, is copied by ``deepcopy``, resized, and
weights are written; where gradients are recorded all of that raises, or is not seen by backward.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from .activations import carries, is_parameter, rows_of, submodule
from .array_ways import is_row, loads_of, makes_arrays
from .called import method_of, modules_of
from .discrete import is_discrete
from .grad_mode import Scope, decorator_scope, own_nodes, scope_inside
from .gradients import Gradients
from .memo import once
from .names import parameters, passed
from .reached import run_by
from .views import SPLITS
from .walk import walk
from .writes import Write, is_apart, root_of

if TYPE_CHECKING:
    from .carried import Carried
    from .module import FunctionNode, ModuleFacts

Kind = Literal["array", "copy", "raises", "weight", "hidden"]

_MAY = re.compile(
    r"numpy|matplotlib|\bnp\b|deepcopy|\w_\(|\.data\b|"
    r"\.detach\(|\.(?:weight|bias)\b|Parameter\("
)
_RESIZES = frozenset({"resize_", "resize_as_", "set_"})
_MOST = 60
"""Functions after which nobody looks any further."""


@dataclass(frozen=True, eq=False)
class Hindrance:
    """``node`` raises, or is wrong, once ``tensor`` has a graph.

    ``array``: it becomes one; ``copy``: by ``deepcopy``; ``raises``: it is resized, or is more than
    a tensor; ``weight``: one is written; ``hidden``: what is written into ``.data``, which backward
    does not see.
    ``matters``: what comes of it may be a part of the result, so that it cannot be detached without
    losing a gradient, or backward needs the weight.  ``sure``: the tensor has a graph then.
    """

    home: ModuleFacts
    node: ast.expr | ast.stmt
    tensor: ast.expr
    kind: Kind
    matters: bool
    sure: bool = True


@dataclass(frozen=True, eq=False)
class _Part:
    """A function that runs, and the call that runs it."""

    home: ModuleFacts
    function: FunctionNode | ast.Module
    scope: Scope | None = None
    caller: _Part | None = None
    call: ast.Call | None = None

    @cached_property
    def gradients(self) -> Gradients:
        """What its values carry, which few of its nodes are asked for."""
        return Gradients(self.home, self.function, self._arguments())

    def _arguments(self) -> dict[str, Carried]:
        """What the call hands to its parameters."""
        if self.caller is None or self.call is None or isinstance(self.function, ast.Module):
            return {}
        if not _may_hinder(self.home):
            return {}
        given: dict[str, Carried] = {}
        statement = self.caller.home.statement(self.call)
        for parameter in parameters(self.function.args):
            value = self.home.project.argument(self.home, self.function, self.call, parameter.arg)
            if value is not None:
                given[parameter.arg] = self.caller.gradients.value(value, statement)
        return given


def hindrances(
    module: ModuleFacts,
    functions: Iterable[FunctionNode | ast.Module],
    scope: Scope,
    elsewhere: bool = True,
) -> Iterator[Hindrance]:
    """What does not run without ``scope`` in some functions, or in what they call.

    ``elsewhere``: in other files as well, which have to be read for that.
    """
    for part in _parts(module, functions, scope, elsewhere):
        if _may_hinder(part.home):
            yield from _in_part(part)


def run_without(
    module: ModuleFacts, functions: Iterable[FunctionNode], scope: Scope
) -> Iterator[tuple[ModuleFacts, FunctionNode]]:
    """The functions that run without ``scope`` then: these, and those that they call."""
    for part in _parts(module, functions, scope, elsewhere=True):
        if not isinstance(part.function, ast.Module):
            yield part.home, part.function


@once
def _may_hinder(module: ModuleFacts) -> bool:
    return _MAY.search(module.usual) is not None


def _parts(
    module: ModuleFacts,
    functions: Iterable[FunctionNode | ast.Module],
    scope: Scope,
    elsewhere: bool,
) -> list[_Part]:
    runs = run_by if elsewhere else _run_here
    found = [_Part(module, function, scope) for function in functions]
    seen: set[ast.AST] = {part.function for part in found}
    for part in found:  # grows meanwhile
        if len(found) > _MOST:
            break
        for call in _own(part):
            if not isinstance(call, ast.Call):
                continue
            for home, function in runs(part.home, call):
                if function not in seen and decorator_scope(home, function) is None:
                    seen.add(function)
                    found.append(_Part(home, function, None, part, call))
    return found


def _run_here(module: ModuleFacts, call: ast.Call) -> Iterator[tuple[ModuleFacts, FunctionNode]]:
    """The functions of the same file that a call may run."""
    callee = call.func
    names: list[ast.expr] = [callee]
    if isinstance(callee, ast.Attribute):
        cls = module.names.self_class(callee.value)
        own = method_of(cls, callee.attr) if cls is not None else None
        if own is not None:
            yield module, own
            return
        names = [m.func for m in modules_of(module, callee) if isinstance(m, ast.Call)]
    for name in names:
        nodes = [b.node for b in module.names.visible(name)] if isinstance(name, ast.Name) else ()
        for node in nodes:
            found = method_of(node, "forward") if isinstance(node, ast.ClassDef) else node
            if isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield module, found


def _own(part: _Part) -> Iterator[ast.AST]:
    """The nodes of a function that run with gradients once the scope is gone."""
    nodes = list(own_nodes(part.function))
    nodes += [n for node in nodes if isinstance(node, ast.Lambda) for n in walk(node.body)]
    for node in nodes:
        if isinstance(node, (ast.Call, ast.stmt)):
            inner = scope_inside(part.home, node, part.function)
            if inner is None or inner == part.scope:
                yield node


def _in_part(part: _Part) -> Iterator[Hindrance]:
    for node in _own(part):
        if isinstance(node, ast.Call):
            yield from _of_call(part, node)
        elif isinstance(node, ast.Assign) and is_row(part.home, node.targets[0]):
            yield from _given_whole(part, node, node.value, "array")
        elif isinstance(node, ast.stmt):
            write = part.home.writes.get(node)
            if write is not None:
                yield from _of_write(part, write)


def _of_call(part: _Part, call: ast.Call) -> Iterator[Hindrance]:
    home, callee = part.home, call.func
    if isinstance(callee, ast.Attribute):
        tensor = callee.value
        if callee.attr in ("numpy", "__array__") and not call.args and not call.keywords:
            carried = _carries(part, tensor)
            if carried is not False:
                yield _taken(part, call, tensor, "array", carried is True)
            return
        if callee.attr in _RESIZES and _carries(part, tensor):
            yield Hindrance(home, call, tensor, "raises", True)
    if isinstance(callee, (ast.Name, ast.Attribute)) and call.args:
        names = [target.name for target in home.resolve(callee)]
        if "copy.deepcopy" in names:
            (tensor, *_) = call.args
            if not _is_weight(home, tensor):  # a leaf may be copied
                yield from _given_whole(part, call, tensor, "copy")
        elif any(makes_arrays(name) for name in names):
            for tensor in (each for given in call.args for each in _pieces(given)):
                yield from _given_whole(part, call, tensor, "array")


def _pieces(given: ast.expr) -> list[ast.expr]:
    """What is in a display: ``[a, b]``."""
    return given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given]


def _given_whole(
    part: _Part,
    node: ast.Call | ast.Assign,
    tensor: ast.expr,
    kind: Literal["array", "copy"],
) -> Iterator[Hindrance]:
    """What a function takes that knows nothing of graphs; it may be a list of tensors, too."""
    if not _carries(part, tensor):
        return
    if isinstance(node, ast.Call) and _is_tensor(part.home, tensor):
        yield Hindrance(part.home, node, tensor, kind, _matters(part, node))
    elif isinstance(node, ast.Assign) and _is_tensor(part.home, tensor):
        yield Hindrance(part.home, node, tensor, kind, _matters(part, tensor))
    else:
        yield Hindrance(part.home, node, tensor, "raises", True)


_LAYERS = re.compile(r"Linear|Conv|Norm|Embedding|Dropout|LU$|Sigmoid|Tanh|Softmax|Pool")
_PARTING = SPLITS | frozenset(
    "max min sort topk median kthvalue cummax cummin aminmax meshgrid tolist".split()
)
"""What gives several tensors, or none."""
_MAX_DEPTH = 6


def _is_tensor(module: ModuleFacts, node: ast.expr, depth: int = 0) -> bool:
    """Whether a value is one tensor, for all that the function shows."""
    if depth > _MAX_DEPTH:
        return False
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        return True
    if isinstance(node, ast.Subscript):
        return _is_tensor(module, node.value, depth + 1)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        if any(target.name.startswith("torch.") for target in module.resolve(node.func)):
            return name not in _PARTING
        if _LAYERS.search(submodule(module, node.func) or ""):
            return True
        return name not in _PARTING and _is_tensor(module, node.func.value, depth + 1)
    if not isinstance(node, ast.Name):
        return False
    flow = module.flow(module.function(node) or module.tree)
    reaching = flow.reaching(node.id, module.statement(node))
    values = [
        rows_of(d.statement, node.id)
        if d.value is None and isinstance(d.statement, (ast.For, ast.AsyncFor))
        else (d.value if d.index is None else None)
        for d in reaching
    ]
    return bool(values) and all(v is not None and _is_tensor(module, v, depth + 1) for v in values)


def _carries(part: _Part, node: ast.expr) -> bool | None:
    """Whether a tensor has a graph once it may; None where nobody knows."""
    module = part.home
    if isinstance(node, ast.Constant) or is_discrete(module, node):
        return False
    value = part.gradients.value(node, module.statement(node))
    if value.sure or carries(module, node):
        return not value.plain or None
    return False if value.nothing else None


def _is_weight(module: ModuleFacts, node: ast.expr) -> bool:
    """``self.w``, ``self.a.weight``: what is a leaf, or nearly always one."""
    if is_parameter(module, node):
        return True
    return isinstance(node, ast.Attribute) and node.attr in ("weight", "bias")


def _taken(
    part: _Part, call: ast.Call, tensor: ast.expr, kind: Literal["array", "copy"], sure: bool
) -> Hindrance:
    return Hindrance(part.home, call, tensor, kind, _matters(part, call), sure)


# -- writes ---------------------------------------------------------------------------------------


def _of_write(part: _Part, write: Write) -> Iterator[Hindrance]:
    home = part.home
    root, path = root_of(write.target)
    apart = next((node for node in path if is_apart(node)), None)
    if apart is not None:
        tensor = apart.func if isinstance(apart, ast.Call) else apart
        assert isinstance(tensor, ast.Attribute)
        if not _is_weight(home, tensor.value) and _carries(part, tensor.value):
            yield Hindrance(home, write.statement, tensor.value, "hidden", True)
        return
    weight = path[-1] if path and write.name is None else None
    own = [write.statement]
    if weight is None and root is not None:
        made = home.flow(part.function).only_definition(root.id, write.statement)
        if made is not None and made.statement is not None and made.index is None:
            weight = made.value if isinstance(made.value, ast.Attribute) else None
            own.append(made.statement)
    if weight is not None and _is_weight(home, weight):
        yield Hindrance(home, write.statement, weight, "weight", _runs_before(part, weight, own))


def _runs_before(part: _Part, weight: ast.expr, own: Sequence[ast.stmt]) -> bool:
    """Whether what has a weight runs before it is written, and saved it for backward."""
    layer = isinstance(weight, ast.Attribute) and isinstance(weight.value, ast.Attribute)
    text = part.home.source(weight.value if layer else weight)  # type: ignore[attr-defined]
    at = own[0]
    loops = [a for a in part.home.ancestors(at) if isinstance(a, (ast.For, ast.While))]
    last = max((loop.end_lineno or 0 for loop in loops), default=at.lineno - 1)
    writing = {node for statement in own for node in walk(statement)}
    return any(
        isinstance(node, ast.Attribute)
        and node not in writing
        and isinstance(node.ctx, ast.Load)
        and node.lineno <= last
        and part.home.source(node) == text
        for node in own_nodes(part.function)
    )


# -- what comes of a value ------------------------------------------------------------------------


def _matters(part: _Part, node: ast.expr) -> bool:
    """Whether something of a value may be in what the function returns, or what its callers do."""
    module, seen = part.home, set[ast.AST]()
    pending: list[ast.expr] = [node]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        statement = module.statement(current)
        if _only_decides(module, current, statement):
            continue
        if isinstance(statement, ast.Return):
            if part.caller is None or part.call is None or _matters(part.caller, part.call):
                return True
            continue
        if any(isinstance(n, (ast.Yield, ast.YieldFrom, ast.Await)) for n in walk(statement)):
            return True
        for target in _targets(statement):
            if not isinstance(target, ast.Attribute):
                pending += loads_of(module, target, statement)
                continue
            text = module.source(target)
            pending += (
                n
                for n in own_nodes(part.function)
                if isinstance(n, ast.Attribute)
                and isinstance(n.ctx, ast.Load)
                and module.source(n) == text
            )
    return False


def _only_decides(module: ModuleFacts, node: ast.expr, statement: ast.stmt) -> bool:
    """Whether a value is only compared, printed, or asked for its shape."""
    current: ast.AST = node
    for parent in module.ancestors(node):
        if isinstance(parent, (ast.JoinedStr, ast.Compare, ast.Assert)):
            return True
        if isinstance(parent, ast.Attribute) and parent.attr in ("shape", "dtype", "ndim", "size"):
            return True
        if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name):
            if parent.func.id in ("print", "len") and current is not parent.func:
                return True
        if isinstance(parent, (ast.If, ast.While)):
            return current is parent.test
        if parent is statement:
            return False
        current = parent
    return False


def _targets(statement: ast.stmt) -> list[ast.expr]:
    """What gets a value of a statement: what it assigns to, and what a method is called of."""
    if isinstance(statement, ast.Assign):
        return statement.targets
    if isinstance(statement, (ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor)):
        return [statement.target]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return [i.optional_vars for i in statement.items if i.optional_vars is not None]
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call):
        owners = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        held = [*owners, *passed(call)]
        return [each for each in held if isinstance(each, (ast.Name, ast.Attribute))]
    return []
