"""Values that surely have no gradient: made of numbers, factories, tables."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .memo import once
from .names import base_name, default_of, parameters, passed

if TYPE_CHECKING:
    from .flow import Definition
    from .module import FunctionNode, ModuleFacts

NO_GRADIENT = frozenset(
    "argmax argmin argsort nonzero sign round floor ceil long int bool detach item tolist numpy "
    "size numel dim stride element_size eq ne lt gt le ge isnan isinf isfinite zeros_like "
    "ones_like empty_like full_like rand_like randn_like randint_like new_zeros new_ones new_full "
    "new_empty arange linspace zeros ones empty full eye rand randn randint tensor as_tensor "
    "one_hot multinomial any all get_device is_floating_point searchsorted bucketize".split()
)
"""Functions and methods whose result has none, whatever they are given."""

_NOT_ACTIVATION = re.compile(
    r"mask|cos|sin|freq|pos|ids?$|idx|ind(ex|ices)|len|size|label|target|noise|time|sigma|step|"
    r"table|cache|scale|shape|num|bias|offset|image|pixel|audio|wav|signal|bbox|box|coord|grid|"
    r"weight|anchor|input_features|spec|mel|color|rgb|depth|camera|point|^device$|^dtype$"
)
_NUMBER_NAME = re.compile(r"(^|_)(dims?|features|channels|heads|hidden|layers?|width|n)$")
_NUMBER_TYPE = re.compile(r"(int|float|bool|str)\b(?!\s*\[)|torch\.(device|dtype)\b")
_MAX_DEPTH = 60


def is_constant(module: ModuleFacts, node: ast.expr, depth: int = 0) -> bool:
    """Whether a value surely has no gradient: made of numbers, factories, tables."""
    if depth > _MAX_DEPTH:
        return False

    def all_of(*nodes: ast.expr) -> bool:
        return all(is_constant(module, n, depth + 1) for n in nodes)

    if isinstance(node, (ast.Constant, ast.Compare)):
        return True
    if isinstance(node, ast.Name):
        function = module.function(node)
        if function is None:
            return False
        definitions = module.flow(function).reaching(node.id, module.statement(node))
        return bool(definitions) and all(
            _is_constant_definition(module, function, d, depth + 1) for d in definitions
        )
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.FloorDiv, ast.Mod)) or all_of(node.left, node.right)
    if isinstance(node, ast.UnaryOp):
        return all_of(node.operand)
    if isinstance(node, ast.Subscript):
        return all_of(node.value)
    if isinstance(node, (ast.Tuple, ast.List)):
        return all_of(*node.elts)
    if isinstance(node, ast.Attribute):
        return (
            node.attr in ("shape", "device", "dtype")
            or f'register_buffer("{node.attr}"' in module.usual
            or _is_number_of_self(module, node)
        )
    if isinstance(node, ast.Call):
        return _is_constant_call(module, node, depth)
    return False


def _is_constant_definition(
    module: ModuleFacts, function: FunctionNode, definition: Definition, depth: int
) -> bool:
    if definition.is_parameter:
        return bool(_NOT_ACTIVATION.search(definition.name)) or is_number(
            module, function, definition.name
        )
    if definition.value is None:
        return False
    key = is_constant, (definition.value,)
    if key not in module.memo:
        module.memo[key] = True  # x = x + 1 in a loop is what it was before
        module.memo[key] = is_constant(module, definition.value, depth) and all(
            is_constant(module, value, depth)
            for write in module.writes.values()
            if write.name is not None and write.name.id == definition.name
            if module.function(write.statement) is function
            for value in write.inputs
        )
        if module.memo[key]:
            filled = _filled(module).get((function, definition.name), ())
            module.memo[key] = all(is_constant(module, value, depth) for value in filled)
    return bool(module.memo[key])


@once
def _filled(module: ModuleFacts) -> dict[tuple[ast.AST | None, str], list[ast.expr]]:
    """What functions of torch compute and write into names: ``torch.mm(x, w, out=h[:, :8])``."""
    found: dict[tuple[ast.AST | None, str], list[ast.expr]] = {}
    for call in module.calls if "out=" in module.usual else ():
        for buffer in (k.value for k in call.keywords if k.arg == "out"):
            for each in buffer.elts if isinstance(buffer, (ast.Tuple, ast.List)) else [buffer]:
                name = base_name(each)
                if name is not None:
                    found.setdefault((module.function(call), name), []).extend(call.args)
    return found


def _is_constant_call(module: ModuleFacts, node: ast.Call, depth: int) -> bool:
    function = node.func
    if isinstance(function, ast.Name):
        return function.id in ("float", "int", "len")
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr in NO_GRADIENT:
        return True
    arguments = passed(node)
    names = [t.name for t in module.resolve(function)]
    if names and names[0].startswith("math."):
        return True
    if names:
        return names[0].startswith(("torch.", "numpy.")) and all(
            is_constant(module, a, depth + 1) for a in node.args
        )
    return module.names.self_class(function.value) is None and all(
        is_constant(module, a, depth + 1) for a in (function.value, *arguments)
    )


def is_number(module: ModuleFacts, function: FunctionNode, parameter: str) -> bool:
    """Whether a parameter is a number, or no tensor at all, by its type, default or name."""
    declared = next((a for a in parameters(function.args) if a.arg == parameter), None)
    if declared is None:
        return False
    if declared.annotation is not None:
        return _NUMBER_TYPE.match(module.source(declared.annotation)) is not None
    default = default_of(function.args, parameter)
    if isinstance(default, ast.UnaryOp):  # -1e5
        default = default.operand
    if isinstance(default, ast.Constant) and default.value is not None:
        return True
    return _NUMBER_NAME.search(parameter) is not None


@once
def _is_number_of_self(module: ModuleFacts, node: ast.Attribute) -> bool:
    """Whether ``self.dim`` only ever is a number: written out, or what a method was given."""
    cls = module.names.self_class(node.value)
    bindings = module.names.attributes(cls).get(node.attr, []) if cls is not None else []
    return bool(bindings) and all(_is_given_number(module, b.value) for b in bindings)


def _is_given_number(module: ModuleFacts, value: ast.expr | None) -> bool:
    if isinstance(value, ast.Constant):
        return value.value is not None
    if isinstance(value, (ast.UnaryOp, ast.BinOp)):
        operands = [value.operand] if isinstance(value, ast.UnaryOp) else [value.left, value.right]
        return all(_is_given_number(module, operand) for operand in operands)
    function = module.function(value) if isinstance(value, ast.Name) else None
    if function is None or not isinstance(value, ast.Name):
        return False
    return is_number(module, function, value.id)
