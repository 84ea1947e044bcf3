"""Whether autograd can differentiate a function, and do so again and again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..catalog import lookup
from .flow import Definition
from .operators import has_formula, operator_of
from .saved import saved_result
from .views import view_of
from .walk import walk
from .writes import root_of, roots

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_BUILTINS = frozenset(
    "min max len range int float bool str tuple list dict zip enumerate sum abs round isinstance "
    "reversed sorted slice any all".split()
)
_MODULES = ("torch.", "math.", "functools.partial", "itertools.", "operator.", "einops.")
_NOT_TORCH = (
    "torch.ops.",
    "torch.cuda.",
    "torch.utils.",
    "torch._",
    "torch.empty",
    "torch.from_",
)
_RANDOM = re.compile(
    r"\b(rand\w*|dropout\w*|bernoulli\w*|multinomial|normal_?|uniform_|exponential_)$"
)
_SAVING_NOTHING = frozenset(
    "add_ sub_ mul_ div_ neg_ copy_ fill_ zero_ masked_fill_ index_add_ index_copy_ "
    "scatter_add_".split()
)
"""Writes that do not have autograd save what they wrote."""
_CUTS = frozenset("detach item tolist numpy data_ptr backward requires_grad_ new_empty".split())
_SWITCHES = ("no_grad", "inference_mode", "set_grad_enabled")
_MAX_DEPTH = 3


def why_not_differentiable(
    module: ModuleFacts, function: FunctionNode, *, registering: bool = False
) -> str:
    """What in a function autograd cannot follow, or would not do twice alike; empty for nothing.

    ``registering`` says that custom operators of the file which it calls get a formula as well.
    """
    return why_not_follow(module, [function], function, again=True, registering=registering)


def why_not_follow(
    module: ModuleFacts,
    nodes: Iterable[ast.AST],
    function: FunctionNode,
    depth: int = _MAX_DEPTH,
    again: bool = False,
    registering: bool = False,
) -> str:
    """What in some statements of a function autograd cannot follow, ``again`` and again.

    ``registering`` as above.
    """
    for node in (n for each in nodes for n in walk(each)):
        if isinstance(node, ast.Call) and not _in_head(module, node, function):
            reason = _call(module, node, function, depth, again, registering)
            if reason:
                return reason
        elif isinstance(node, ast.Attribute) and node.attr in ("data", "grad"):
            return f"`{module.source(node)}` is off the graph"
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            if not _is_own_result(module, node.target, node):
                return f"`{module.source(node)}` may write in place"
        elif isinstance(node, (ast.Assign, ast.Delete)):
            if any(_is_stored(module, t, node) for t in node.targets):
                return f"`{module.source(node)}` writes in place"
        elif isinstance(node, (ast.Global, ast.Nonlocal, ast.Yield, ast.Await)):
            return f"`{function.name}` is no plain function"
    return ""


def _is_stored(module: ModuleFacts, target: ast.expr, statement: ast.stmt) -> bool:
    """Whether a target is a piece of something that the function did not make itself."""
    if isinstance(target, ast.Subscript):
        return not _is_own_result(module, target, statement)
    return isinstance(target, ast.Attribute)


def _is_own_result(module: ModuleFacts, target: ast.expr, at: ast.AST) -> bool:
    """Whether a write goes into a result of the function's own, which nothing has read so far."""
    name, _ = root_of(target)
    statement = module.statement(at)
    function = module.function(statement)
    if name is None or function is None:
        return False
    flow = module.flow(function)
    found = roots(module, flow, name.id, statement)
    if not found or not all(_is_fresh(module, root.definition) for root in found):
        return False
    loops = [a for a in module.ancestors(statement) if isinstance(a, (ast.For, ast.While))]
    last = (loops[-1].end_lineno or 0) if loops else statement.lineno  # another turn follows
    made = min(root.definition.statement.lineno for root in found if root.definition.statement)
    return not any(
        isinstance(node, ast.Name)
        and node.id == name.id
        and isinstance(node.ctx, ast.Load)
        and made < node.lineno <= last
        and (node.lineno < statement.lineno or bool(loops))
        and not _is_written(module, node)
        for node in walk(function)
    )


def _is_written(module: ModuleFacts, node: ast.Name) -> bool:
    write = module.writes.get(module.statement(node))
    return write is not None and write.name is node


def _is_fresh(module: ModuleFacts, definition: Definition) -> bool:
    """Whether a value is a new tensor, or a number, that no operation has saved."""
    value = definition.value
    if isinstance(value, (ast.BinOp, ast.Constant)):
        return True
    if not isinstance(value, ast.Call) or view_of(value) is not None:
        return False
    if isinstance(value.func, ast.Name) and not module.resolve(value.func):
        return False
    return saved_result(module, definition) is None


def _in_head(module: ModuleFacts, call: ast.Call, function: FunctionNode) -> bool:
    """Whether a call is a decorator, a default or an annotation, evaluated once."""
    child: ast.AST = call
    for parent in module.ancestors(call):
        if parent is function:
            return child not in function.body
        child = parent
    return False


def _call(
    module: ModuleFacts,
    call: ast.Call,
    function: FunctionNode,
    depth: int,
    again: bool,
    registering: bool,
) -> str:
    callee = call.func
    if isinstance(callee, ast.Subscript):
        return f"`{module.source(callee.value)}` is launched, which autograd does not see"
    targets = {target.name for target in module.resolve(callee)}
    if any(t.startswith("torch.") and t.rpartition(".")[2] in _SWITCHES for t in targets):
        return f"`{module.source(callee)}` switches gradients off"
    text = module.source(callee)
    random = _RANDOM.search(text) is not None or any(
        k.arg in ("dropout_p", "p") and not _is_zero(k.value) for k in call.keywords
    )
    if random and again:
        return f"`{text}` is random, and backward computes it anew"
    for name in targets:
        if name.startswith(_NOT_TORCH) or lookup(name) is not None:
            return f"nothing is known of a backward of `{text}`"
        if name.startswith(_MODULES):
            return "" if not name.endswith("_") else f"`{text}` writes in place"
        for owner, other in _defined(module, name):
            if depth == 0 or other is function:
                return f"`{text}` calls too deep"
            operator, written = operator_of(owner, other)
            if written:
                return f"`{text}` writes in place"
            if operator is not None:
                if has_formula(owner, other, operator):
                    return ""
                if not registering or owner is not module:
                    return f"`{text}` has no autograd formula"
            return why_not_follow(owner, [other], other, depth - 1, again, registering)
    if targets:
        return f"nothing is known of a backward of `{text}`"
    if isinstance(callee, ast.Attribute):
        if callee.attr in _CUTS:
            return f"`{text}` is off the graph"
        if callee.attr.endswith("_"):
            if callee.attr in _SAVING_NOTHING and _is_own_result(module, callee.value, call):
                return ""
            return f"`{text}` writes in place"
        if _is_own(callee, function):
            return ""
    if isinstance(callee, ast.Name) and callee.id in _BUILTINS:
        return ""
    return f"nothing is known of a backward of `{text}`"


def _defined(module: ModuleFacts, name: str) -> Iterator[tuple[ModuleFacts, FunctionNode]]:
    """The function or method of this qualified name, in this file or another of the project."""
    path = name.split(".")
    for length in (1, 2):
        owner = _owner(module, ".".join(path[:-length]))
        for function in owner.functions_named(path[-1]) if owner is not None else ():
            assert owner is not None
            cls = owner.method_class(function)
            if path[-length:] == [*([cls.name] if cls else []), function.name]:
                yield owner, function


def _owner(module: ModuleFacts, name: str) -> ModuleFacts | None:
    """The module of this name, if it is of the project."""
    if name == module.module_name:
        return module
    path = module.project.find_module(module, name) if name else None
    return module.project.load(path) if path is not None else None


def _is_own(node: ast.expr, function: FunctionNode) -> bool:
    """Whether an expression is made of what the function is given or makes: a tensor's method."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if not isinstance(node, ast.Name):
        return True  # a product, a literal, the result of a call that is looked at itself
    return any(
        (isinstance(n, ast.Name) and n.id == node.id and isinstance(n.ctx, ast.Store))
        or (isinstance(n, ast.arg) and n.arg == node.id)
        for n in walk(function)
    )


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0
