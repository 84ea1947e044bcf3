"""Whether autograd can differentiate a function, and do so again and again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..catalog import lookup

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
_CUTS = frozenset("detach item tolist numpy data_ptr backward requires_grad_ new_empty".split())
_SWITCHES = ("no_grad", "inference_mode", "set_grad_enabled")
_MAX_DEPTH = 3


def why_not_differentiable(
    module: ModuleFacts, function: FunctionNode, depth: int = _MAX_DEPTH
) -> str:
    """What in a function autograd cannot follow, or would not do twice alike; empty for nothing."""
    return why_not_follow(module, [function], function, depth, again=True)


def why_not_follow(
    module: ModuleFacts,
    nodes: Iterable[ast.AST],
    function: FunctionNode,
    depth: int = _MAX_DEPTH,
    again: bool = False,
) -> str:
    """What in some statements of a function autograd cannot follow; ``again`` as above."""
    for node in (n for each in nodes for n in ast.walk(each)):
        if isinstance(node, ast.Call) and not _in_head(module, node, function):
            reason = _call(module, node, function, depth, again)
            if reason:
                return reason
        elif isinstance(node, ast.Attribute) and node.attr in ("data", "grad"):
            return f"`{module.source(node)}` is off the graph"
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            return f"`{module.source(node)}` may write in place"
        elif isinstance(node, (ast.Assign, ast.Delete)):
            if any(isinstance(t, (ast.Subscript, ast.Attribute)) for t in node.targets):
                return f"`{module.source(node)}` writes in place"
        elif isinstance(node, (ast.Global, ast.Nonlocal, ast.Yield, ast.Await)):
            return f"`{function.name}` is no plain function"
    return ""


def _in_head(module: ModuleFacts, call: ast.Call, function: FunctionNode) -> bool:
    """Whether a call is a decorator, a default or an annotation, evaluated once."""
    child: ast.AST = call
    for parent in module.ancestors(call):
        if parent is function:
            return child not in function.body
        child = parent
    return False


def _call(
    module: ModuleFacts, call: ast.Call, function: FunctionNode, depth: int, again: bool
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
        for other in module.functions:
            if name == f"{module.module_name}.{other.name}".lstrip("."):
                if depth == 0 or other is function:
                    return f"`{text}` calls too deep"
                return why_not_follow(module, [other], other, depth - 1, again)
    if targets:
        return f"nothing is known of a backward of `{text}`"
    if isinstance(callee, ast.Attribute):
        if callee.attr in _CUTS:
            return f"`{text}` is off the graph"
        if callee.attr.endswith("_"):
            return f"`{text}` writes in place"
        if _is_own(callee, function):
            return ""
    if isinstance(callee, ast.Name) and callee.id in _BUILTINS:
        return ""
    return f"nothing is known of a backward of `{text}`"


def _is_own(node: ast.expr, function: FunctionNode) -> bool:
    """Whether an expression is made of what the function is given or makes: a tensor's method."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if not isinstance(node, ast.Name):
        return True  # a product, a literal, the result of a call that is looked at itself
    return any(
        (isinstance(n, ast.Name) and n.id == node.id and isinstance(n.ctx, ast.Store))
        or (isinstance(n, ast.arg) and n.arg == node.id)
        for n in ast.walk(function)
    )


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0
