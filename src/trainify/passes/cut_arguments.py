"""TRN113: weights that are cut off before a function around a kernel gets them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..catalog import CONSTANTS
from ..facts import ModuleFacts
from ..facts.guards import gradient_unwanted, implies_unwanted, is_operator
from ..facts.layers import imported_function
from ..facts.memo import once
from ..facts.module import head
from ..facts.names import parameters, passed, placed
from ..facts.operators import gives_gradient
from ..facts.trainable import is_buffer
from ..facts.triton import loaded, stored
from ..facts.views import view_of
from ..facts.walk import walk
from ..facts.words import declare, places
from ..findings import STRATEGIES, Edit, Finding, Fix, Safety
from . import Look, Needle, Rule
from .custom_ops import without_formula
from .fused_calls.calls import site_of
from .raw_launches import kernel_of

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode
    from ..findings import Related

RULES = (
    Rule(
        code="TRN113",
        name="weight-cut-before-kernel",
        summary="A function around a kernel is handed the `.data` of a weight.",
        why=(
            "A kernel has no use for autograd, so its callers got used to `.data`. Whatever "
            "backward the function around the kernel gets, in this file or in another, this weight "
            "is cut off before it and never learns."
        ),
        before="""\
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return rms_norm(x, self.weight.data)


def rms_norm(x: torch.Tensor, weight: torch.Tensor):
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight, 1e-6)
    return out
""",
        after="""\
import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return rms_norm(x, self.weight)


def rms_norm(x: torch.Tensor, weight: torch.Tensor):
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        out = F.rms_norm(x, x.shape[-1:], weight, 1e-6)
    else:
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, weight, 1e-6)
    return out
""",
    ),
)

_DATA = declare(b".data,", b".data)")
_GIVEN = re.compile(rb"(?<![\w.])\w+(?:\.\w+)+$")


def _hands_data(data: bytes) -> bool:
    """Whether ``.data`` of an attribute is an argument."""
    return any(
        _GIVEN.search(data, max(0, at - 200), at) is not None
        for word in _DATA
        for at in places(data, word)
    )


NEEDLES: tuple[Needle, ...] = (Look(_DATA, _hands_data),)

_MAX_WRAPPERS = 3
"""So many functions may hand a weight on before a kernel gets it."""

_PREPARES = re.compile(
    r"(^|_)(load\w*|process|(de|re)?quant\w*|pack|repack|init\w*|convert|merge|reset|create|build|"
    r"fuse|prepare|update|save|export|shuffle|permute|__init__)(_|$)"
)
"""Functions that make weights, and train none."""

_QUANTIZED = re.compile(
    r"scale|zeros?|quant|qweight|packed|codes|int[48]|fp[48]|w[48]a|marlin|gptq|awq"
)
"""What is no weight to train, and the functions that are handed such."""


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for call in module.calls:
        given = list(_data_of_weights(module, call))
        functions = list(_functions(module, call)) if given else []
        table = bool(given) and not functions
        if table:
            functions = list(_in_tables(module, call))
        if not functions:
            continue
        caller = module.function(call)
        if caller is None or _PREPARES.search(caller.name) or gradient_unwanted(module, call):
            continue
        for node in given:
            for other, function in functions:
                reader = _reader_of_argument(other, function, call, node, options)
                if reader is not None:
                    doubt = module.source(call.func) if table else ""
                    yield _finding(module, node, function, reader, doubt)
                    break


def _finding(
    module: ModuleFacts,
    given: ast.Attribute,
    function: FunctionNode,
    reader: Related,
    callee: str,
) -> Finding:
    """What is said of one argument; ``callee`` is what may be the function, if that is unsure."""
    weight = module.source(given.value)
    message = (
        f"`{module.source(given)}` is cut off before `{function.name}` gets it: no gradient "
        f"reaches `{weight}`."
    )
    fix = Fix(
        f"Hand {weight} to {function.name}",
        (Edit(module.end(given.value), module.end(given), ""),),
        Safety.UNSAFE if callee else Safety.SAFE,
        f"whether {callee} is {function.name}, which a table has by that name" if callee else "",
    )
    return module.finding("TRN113", message, given, dict.fromkeys(STRATEGIES, fix), (reader,))


def _data_of_weights(module: ModuleFacts, call: ast.Call) -> Iterator[ast.Attribute]:
    """``self.weight.data``, of what may learn, in the arguments of a call."""
    for node in passed(call):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Attribute):
            continue
        name = node.value.attr
        if node.attr == "data" and name not in CONSTANTS and not _QUANTIZED.search(name):
            if not is_buffer(module, node.value):
                yield node


# -- functions around kernels ---------------------------------------------------------------------


def _functions(module: ModuleFacts, call: ast.Call) -> Iterator[tuple[ModuleFacts, FunctionNode]]:
    """The functions that a call may run, of the file or of another of the project.

    ``norm = pick(x); norm(y)`` runs those that ``pick`` returns.
    """
    imported = imported_function(module, call.func)
    if imported is not None:
        yield imported
        return
    names = {target.name for target in module.resolve(call.func)}
    for statement in module.tree.body:
        if isinstance(statement, ast.FunctionDef):
            name = f"{module.module_name}.{statement.name}".lstrip(".")
            if name in names or statement.name in _picked(module, call):
                yield module, statement


def _in_tables(module: ModuleFacts, call: ast.Call) -> Iterator[tuple[ModuleFacts, FunctionNode]]:
    """The functions that tables of the project have under the name of an attribute.

    ``self.kernels.rms(x)`` and ``{"rms": vllm_rms}``, where an object looks its methods up.
    """
    if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Attribute):
        return
    name = call.func.attr
    if any(module.method_class(f) is not None for f in module.functions_named(name)):
        return
    for home in module.project.mentioning(module, f'"{name}":', f"'{name}':"):
        yield from ((home, function) for function in _tabled(home).get(name, ()))


@once
def _tabled(module: ModuleFacts) -> dict[str, list[FunctionNode]]:
    """The functions of a file in its tables, by their keys."""
    own = {s.name: s for s in module.tree.body if isinstance(s, ast.FunctionDef)}
    found: dict[str, list[FunctionNode]] = {}
    for table in walk(module.tree) if own else ():
        if isinstance(table, ast.Dict):
            for key, value in zip(table.keys, table.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Name):
                    if value.id in own:
                        found.setdefault(str(key.value), []).append(own[value.id])
    return found


def _picked(module: ModuleFacts, call: ast.Call) -> set[str]:
    """What a function of the file returns that picked the callee of a call."""
    statement = module.statement(call)
    caller = module.function(statement)
    if not isinstance(call.func, ast.Name) or caller is None:
        return set()
    made = module.flow(caller).only_definition(call.func.id, statement)
    if made is None or not isinstance(made.value, ast.Call) or made.index is not None:
        return set()
    picks = made.value.func
    return {
        each.value.id
        for other in module.functions
        if isinstance(picks, ast.Name) and other.name == picks.id
        if module.parent(other) is module.tree
        for each in walk(other)
        if isinstance(each, ast.Return) and isinstance(each.value, ast.Name)
    }


def _reader_of_argument(
    module: ModuleFacts,
    function: FunctionNode,
    call: ast.Call,
    given: ast.expr,
    options: Options,
    depth: int = _MAX_WRAPPERS,
) -> Related | None:
    """Where what ``call`` hands to ``function`` is read: by a kernel, or an operator to learn."""
    project = module.project
    names = [a.arg for a in parameters(function.args)]
    given_for = [n for n in names if project.argument(module, function, call, n) is given]
    if not depth or not given_for:
        return None
    if CONSTANTS.intersection(given_for) or _QUANTIZED.search(function.name):
        return None
    (name,) = given_for
    if is_operator(module, function):
        if not _learns(module, function, name, options):
            return None
        return module.related(f"`{function.name}` is an operator that reads it.", head(function))
    for inner in module.calls:
        if module.function(inner) is not function or not _wants_gradient(module, inner, name):
            continue
        handed = [node for node in passed(inner) if _is_given(module, function, node, name)]
        if not handed:
            continue
        if _reads(module, inner, handed, options):
            return module.related(f"`{module.source(inner.func)}` reads it.", inner)
        for other, deeper in _functions(module, inner):
            for node in handed:
                found = _reader_of_argument(other, deeper, inner, node, options, depth - 1)
                if found is not None:
                    return found
    return None


def _learns(module: ModuleFacts, function: FunctionNode, name: str, options: Options) -> bool:
    """Whether an operator gives an argument its gradient, or will once it has a formula."""
    if gives_gradient(module, function, name):
        return True
    found = without_formula(module, function, options)
    return found is not None and bool(found.fixes)


def _is_given(module: ModuleFacts, function: FunctionNode, node: ast.expr, name: str) -> bool:
    """Whether an expression is what a function got for a parameter, or a view of it."""
    statement = module.statement(node)
    flow = module.flow(function)
    for _ in range(4):
        view = view_of(node)
        definition = flow.only_definition(view.base, statement) if view is not None else None
        if definition is None:
            return False
        if definition.is_parameter:
            return definition.name == name
        if definition.value is None or definition.statement is None:
            return False
        node, statement = definition.value, definition.statement
    return False


def _reads(module: ModuleFacts, call: ast.Call, handed: list[ast.expr], options: Options) -> bool:
    """Whether a call runs a kernel that reads one of its arguments and gives it no gradient."""
    if isinstance(call.func, ast.Subscript):
        kernel = kernel_of(module, call.func.value)
        if kernel is None or isinstance(kernel, str):
            return kernel is not None
        own = placed(kernel)
        bound = [*zip(own, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
        names = {name for name, node in bound if any(node is each for each in handed)}
        return bool(names & loaded(kernel)) and not names & stored(kernel)
    site = site_of(module, call, options)
    return site is not None and any(
        site.bound[name] is each
        for name in site.lost
        if name not in site.in_place
        for each in handed
    )


def _wants_gradient(module: ModuleFacts, call: ast.Call, name: str) -> bool:
    """Whether a gradient may be wanted at a call, or the other way round it can learn a name.

    The second is what a function around a kernel looks like once it has a backward.
    """
    if not gradient_unwanted(module, call):
        return True
    child: ast.AST = call
    for parent in module.ancestors(call):
        if isinstance(parent, ast.If) and child is not parent.test:
            in_body = child in parent.body
            if implies_unwanted(module, parent.test, in_body):
                way = parent.orelse if in_body else parent.body
                return not gradient_unwanted(module, parent) and any(
                    isinstance(node, ast.Name) and node.id == name
                    for statement in way
                    for node in walk(statement)
                )
        child = parent
    return False
