"""Dtypes: whether a value surely has that of another tensor, so that nothing is promoted."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .flow import Definition
from .names import default_of, last_name

if TYPE_CHECKING:
    from .module import FunctionNode, ModuleFacts

_MAX_DEPTH = 8
_SAME = frozenset(
    "view reshape flatten unflatten squeeze unsqueeze transpose permute t swapaxes movedim narrow "
    "select expand expand_as repeat contiguous clone detach flip roll gather index_select "
    "mean amax amin add sub mul div neg abs sqrt square tanh sigmoid relu silu sin cos clamp "
    "zeros_like ones_like empty_like full_like rand_like randn_like".split()
)
"""Functions whose result has the dtype of their first tensor, as far as the others have it."""
AUTOCAST = frozenset(
    "pow exp expm1 log log2 log10 log1p rsqrt reciprocal norm softmax log_softmax softplus sum "
    "prod cumsum cumprod tan erfinv sinh cosh asin acos".split()
)
"""Functions that give float32 for any floating dtype where autocast is on."""
_NUMBERS = frozenset({"float", "int", "len", "round"})


def is_number(module: ModuleFacts, node: ast.expr, depth: int = 0) -> bool:
    """Whether a value surely is a Python number, which promotes nothing."""
    if depth > _MAX_DEPTH:
        return False
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (bool, int, float))
    if isinstance(node, ast.UnaryOp):
        return is_number(module, node.operand, depth + 1)
    if isinstance(node, ast.BinOp):
        return all(is_number(module, n, depth + 1) for n in (node.left, node.right))
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            return node.func.id in _NUMBERS
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        names = [target.name for target in module.resolve(node.func)]
        return method in ("size", "item", "numel") or any(n.startswith("math.") for n in names)
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    if isinstance(node, ast.Attribute):
        return _is_number_of(module, node, depth)
    if isinstance(node, ast.Name):
        function = module.function(node)
        if function is None:
            return False
        found = module.flow(function).reaching(node.id, module.statement(node))
        return bool(found) and all(_is_defined_number(module, function, d, depth) for d in found)
    return False


def _is_number_of(module: ModuleFacts, node: ast.Attribute, depth: int) -> bool:
    """``self.eps`` of ``self.eps = eps``, ``config.cap``."""
    owner = node.value
    if last_name(owner) == "config":
        return True
    cls = module.names.self_class(owner)
    bindings = module.names.attributes(cls).get(node.attr, []) if cls is not None else []
    return bool(bindings) and all(
        b.value is not None and is_number(module, b.value, depth + 1) for b in bindings
    )


def _is_defined_number(
    module: ModuleFacts, function: FunctionNode, definition: Definition, depth: int
) -> bool:
    if not definition.is_parameter:
        value = definition.value
        return (
            value is not None and definition.index is None and is_number(module, value, depth + 1)
        )
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.arg == definition.name:
            annotation = argument.annotation
            if isinstance(annotation, ast.Name):
                return annotation.id in ("float", "int", "bool")
            default = default_of(arguments, argument.arg)
            return isinstance(default, ast.Constant) and is_number(module, default)
    return False


def has_dtype_of(
    module: ModuleFacts, node: ast.expr, name: ast.Name, *, float32: bool, depth: int = 0
) -> bool:
    """Whether a value surely has the dtype that ``name`` has, because it was made from it.

    ``float32`` says that this is float32, which autocast leaves as it is.
    """
    if depth > _MAX_DEPTH:
        return False

    def same(node: ast.expr) -> bool:
        return has_dtype_of(module, node, name, float32=float32, depth=depth + 1)

    def fits(node: ast.expr) -> bool:
        return same(node) or is_number(module, node)

    if isinstance(node, ast.Name):
        return _has_name_s_dtype(module, node, name, float32, depth)
    if isinstance(node, (ast.Subscript, ast.Starred)):
        return same(node.value)
    if isinstance(node, ast.UnaryOp):
        return same(node.operand)
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Pow) or (isinstance(node.op, ast.Div) and not same(node.left)):
            if not float32:
                return False
        return fits(node.left) and fits(node.right) and (same(node.left) or same(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        names = [target.name for target in module.resolve(node.func)]
        tensors = [*node.args] if names else [node.func.value, *node.args]
        method = node.func.attr
        if names and not all(n.startswith("torch.") for n in names):
            return False
        if any(k.arg in ("dtype", None) for k in node.keywords):
            return False
        if method not in _SAME and not (float32 and method in AUTOCAST):
            return False
        others = tensors[1:] if method in ("add", "sub", "mul", "div") else []
        return bool(tensors) and same(tensors[0]) and all(fits(n) for n in others)
    return False


def _has_name_s_dtype(
    module: ModuleFacts, node: ast.Name, name: ast.Name, float32: bool, depth: int
) -> bool:
    function = module.function(node)
    if function is None:
        return False
    flow = module.flow(function)
    found = flow.reaching(node.id, module.statement(node))
    if node.id == name.id and found == flow.reaching(name.id, module.statement(name)):
        return True
    return bool(found) and all(
        d.value is not None
        and d.index is None
        and d.statement is not module.statement(node)
        and has_dtype_of(module, d.value, name, float32=float32, depth=depth + 1)
        for d in found
    )


def is_float32(module: ModuleFacts, node: ast.expr, depth: int = 0) -> bool:
    """Whether a value surely is float32: ``x.float()``, ``x.to(torch.float32)``."""
    if depth > _MAX_DEPTH:
        return False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "float":
            return not node.args and not node.keywords
        values = [*node.args, *(k.value for k in node.keywords if k.arg == "dtype")]
        if node.func.attr == "to" and values:
            return any(module.is_name(v, "torch.float32", "torch.float") for v in values)
        return node.func.attr in ("view", "reshape", "contiguous", "clone") and is_float32(
            module, node.func.value, depth + 1
        )
    function = module.function(node) if isinstance(node, ast.Name) else None
    if isinstance(node, ast.Name) and function is not None:
        found = module.flow(function).reaching(node.id, module.statement(node))
        return bool(found) and all(
            d.value is not None
            and d.index is None
            and d.statement is not module.statement(node)
            and is_float32(module, d.value, depth + 1)
            for d in found
        )
    return False


_CODES = re.compile(r"torch\.(u?int\d+|bool|byte|short|int|long|float[48]_\w+)")


def holds_codes(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether an allocation is of integers, or of fp8 or fp4 codes: no gradient passes those."""
    return isinstance(node, ast.Call) and any(
        keyword.arg == "dtype"
        and any(_CODES.fullmatch(target.name) for target in module.resolve(keyword.value))
        for keyword in node.keywords
    )
