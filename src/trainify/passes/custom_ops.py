"""TRN110: operators of one's own that are registered without an autograd formula."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..catalog import Schema, SchemaError, parse_schema
from ..facts import ModuleFacts
from ..facts.guards import gradient_unwanted, serves_backward
from ..facts.module import head
from ..facts.operators import CUSTOM_OP, has_formula, operator_of
from ..facts.pure import why_not_differentiable
from ..findings import STRATEGIES, Finding, Fix
from . import Rule, not_rewritten
from .autograd_functions import kernel_over

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN110",
        name="custom-op-without-autograd",
        summary="A custom operator is registered without an autograd formula.",
        why=(
            "Autograd cannot look into a custom operator, even where its body is PyTorch. Its "
            "result requires grad, so everything looks right until backward(), which raises: no "
            "autograd formula was registered. An operator that writes into its arguments does not "
            "raise: what it wrote has no gradient, or that of the value before, and none can be "
            "registered for it."
        ),
        before="""\
import torch


@torch.library.custom_op("mine::scaled", mutates_args=())
def scaled(x: torch.Tensor, weight: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.tanh(x * factor) * weight
""",
        after="""\
import torch


def scaled_native(x: torch.Tensor, weight: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.tanh(x * factor) * weight


@torch.library.custom_op("mine::scaled", mutates_args=())
def scaled(x: torch.Tensor, weight: torch.Tensor, factor: float) -> torch.Tensor:
    return scaled_native(x, weight, factor)


def scaled_setup_context(ctx, inputs, output):
    x, weight, ctx.factor = inputs
    ctx.save_for_backward(x, weight)


def scaled_backward(ctx, grad):
    x, weight = ctx.saved_tensors
    with torch.enable_grad():
        x = x.view_as(x)
        weight = weight.view_as(weight)
        out = scaled_native(x, weight, ctx.factor)
    wanted = [t for t in (x, weight) if t.requires_grad]
    found = torch.autograd.grad(
        out, wanted, grad, allow_unused=True, create_graph=torch.is_grad_enabled()
    )
    gradient = dict(zip(wanted, found))
    return gradient.get(x), gradient.get(weight), None


scaled.register_autograd(scaled_backward, setup_context=scaled_setup_context)
""",
    ),
)

NEEDLES = (b"custom_op(", b".impl(", b"@impl(")

# What these give has no gradient, or is one.
_NO_GRADIENT = re.compile(
    r"(^|_)(bwd|backward|grad|dgrad|wgrad|quant\w*|dequant\w*|index|indices|sample|topk|sort|"
    r"argmax|argmin|argsort|cache|all_reduce|allreduce|all_gather|reduce_scatter|pack|unpack|mask|"
    r"align|nms|bincount|histogram|print|assert|barrier|sync|randint|seed)(_|$)"
)
_TENSOR = re.compile(
    r"(torch\.)?Tensor( \| None)?|(\w+\.)*(Optional|[lL]ist|Sequence)\[(torch\.)?Tensor\]"
)
_KEPT = re.compile(
    r"cache|buf|workspace|state|counter|count|stat|kv|lock|flag|signal|semaphore|storage|scratch|"
    r"mutable|hash|ids?$|idx|ind(ex|ices)|table|len|offset|token|mask"
)
"""Arguments that nobody computes a loss from: kept, or whole numbers."""
_BACKWARD = re.compile(r"(^|_)(bwd|backward|grad|setup_context)(_|$)")


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    yield from _decorated(module, options)
    if ".define(" in module.usual:
        yield from _of_libraries(module, options)


def _decorated(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    """Functions that ``torch.library.custom_op`` makes operators."""
    for function in module.functions:
        found = without_formula(module, function, options)
        if found is not None:
            yield found


def without_formula(
    module: ModuleFacts, function: FunctionNode, options: Options
) -> Finding | None:
    """What is said of a function that becomes an operator, and needs a formula; None for nothing.

    Its fixes give it one.
    """
    name, written = operator_of(module, function)
    if name is None or _NO_GRADIENT.search(function.name):
        return None
    if not _may_be_trained(function, written) or has_formula(module, function, name):
        return None
    wanted = _is_wanted(module, function)
    if wanted is False:
        return None
    if written:
        if not wanted or _has_functional_twin(module, name):
            return None
        return module.finding("TRN110", _writes(name, written), head(function))
    message = f"`{name}` has no autograd formula: backward() raises where it meets the op."
    fixes: dict[str, Fix] = {}
    reason = why_not_differentiable(module, function, registering=True)
    if not reason:
        from ..rewrite.custom_op import CannotRegister, fix, with_inner

        try:
            made = with_inner(module, function, fix(module, function))
            fixes = dict.fromkeys(STRATEGIES, made)
        except CannotRegister as error:
            reason = str(error)
    else:
        fixes = _of_kernel(module, function, name, function, options)
    if reason and not fixes:
        message += not_rewritten(reason)
    if not fixes and not wanted:
        return None
    return module.finding("TRN110", message, head(function), fixes)


def _of_kernel(
    module: ModuleFacts,
    function: FunctionNode,
    name: str,
    registered: ast.stmt,
    options: Options,
) -> dict[str, Fix]:
    """The fix for an operator that runs one kernel of which it is known what it computes."""
    forward = kernel_over(module, function, function, 0, options)
    if forward is None:
        return {}
    from ..rewrite.custom_op import CannotRegister, kernel_fix

    own = any(
        isinstance(d, ast.Call) and module.is_name(d.func, *CUSTOM_OP)
        for d in function.decorator_list
    )
    try:
        fix = kernel_fix(module, forward, name, registered, options.releases, own=own)
        return dict.fromkeys(STRATEGIES, fix)
    except CannotRegister:
        return {}


def _has_functional_twin(module: ModuleFacts, name: str) -> bool:
    """Whether the same without ``_out`` is an operator, too: whoever wants gradients calls that."""
    functional = _WRITING_NAME.sub("", name)
    return functional != name and f'"{functional}"' in module.usual


_WRITING_NAME = re.compile(r"(_out|_inplace|_)$")


def _writes(name: str, written: Sequence[str]) -> str:
    listed = " and ".join(f"`{each}`" for each in written)
    return (
        f"`{name}` writes into {listed}, and autograd does not see it: what is written has no "
        "gradient, or that of the value before. An operator that writes cannot have a formula; one "
        "that returns its result can."
    )


def _may_be_trained(function: FunctionNode, written: Sequence[str]) -> bool:
    """Whether it takes tensors, and gives some or writes into some that are not kept."""
    given = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    if not any(_TENSOR.fullmatch(_annotation(a)) for a in given):
        return False
    if written:
        return not any(_KEPT.search(name) for name in written)
    return function.returns is not None and "Tensor" in ast.unparse(function.returns)


def _annotation(argument: ast.arg) -> str:
    return ast.unparse(argument.annotation).strip("'\"") if argument.annotation is not None else ""


def _is_wanted(module: ModuleFacts, function: FunctionNode) -> bool | None:
    """Whether a call may want the gradient; None where nothing of the project calls it.

    Backwards want none, nor do autograd functions.
    """
    callers = 0
    for other, call in module.project.calls_of(module, function):
        caller = other.function(call)
        if caller is function:
            continue
        callers += 1
        if gradient_unwanted(other, call):
            continue
        if caller is None:
            return True
        if not _BACKWARD.search(caller.name) and not serves_backward(other, caller):
            return True
    return False if callers else None


# -- libraries ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Implementation:
    """An operator of a ``torch.library.Library``, and a function that implements it."""

    name: str
    schema: Schema
    function: FunctionNode
    registered: ast.stmt


def _of_libraries(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    """Operators that the file defines and implements, one finding each."""
    found: dict[str, list[_Implementation]] = {}
    for each in _implementations(module):
        found.setdefault(each.name, []).append(each)
    for name, implementations in found.items():
        schema = implementations[0].schema
        trained = any(a.is_tensor for a in schema.arguments) and "Tensor" in schema.returns
        if not trained or schema.written or _NO_GRADIENT.search(name.rpartition("::")[2]):
            continue
        if any(has_formula(module, each.function, name) for each in implementations):
            continue
        wanted = _runs(module, name)
        if wanted is False:
            continue
        reasons = [
            why_not_differentiable(module, each.function, registering=True)
            for each in implementations
        ]
        best = reasons.index("") if "" in reasons else 0
        chosen, reason = implementations[best], reasons[best]
        fixes: dict[str, Fix] = {}
        if not reason:
            from ..rewrite.custom_op import CannotRegister, library_fix, with_inner

            try:
                fix = library_fix(module, chosen.function, name, schema, chosen.registered)
                made = with_inner(module, chosen.function, fix)
                fixes = dict.fromkeys(STRATEGIES, made)
            except CannotRegister as error:
                reason = str(error)
        else:
            fixes = _of_kernel(module, chosen.function, name, chosen.registered, options)
        message = f"`{name}` has no autograd formula: no gradient passes the op."
        if reason and not fixes:
            message += not_rewritten(reason)
        if fixes or wanted:
            yield module.finding("TRN110", message, head(chosen.function), fixes)


def _implementations(module: ModuleFacts) -> Iterator[_Implementation]:
    schemas = _schemas(module)
    functions = {f.name: f for f in module.functions}
    for call in module.calls:
        called = call.func
        arguments = list(call.args)
        if isinstance(called, ast.Attribute) and called.attr == "impl":
            library = _namespace(module, called.value)
            if library is None and module.is_name(called, "torch.library.impl"):
                library = _namespace(module, arguments.pop(0)) if arguments else None
        elif module.is_name(called, "torch.library.impl") and arguments:
            library = _namespace(module, arguments.pop(0))
        else:
            continue
        first = arguments[0] if arguments else None
        if library is None or not isinstance(first, ast.Constant):
            continue
        if not isinstance(first.value, str):
            continue
        name = f"{library}::{first.value}"
        parent = module.parent(call)
        function = None
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = parent
        elif len(arguments) > 1 and isinstance(arguments[1], ast.Name):
            function = functions.get(arguments[1].id)
        if function is not None and name in schemas:
            registered = function if parent is function else module.statement(call)
            yield _Implementation(name, schemas[name], function, registered)


def _schemas(module: ModuleFacts) -> dict[str, Schema]:
    """The operators that the file defines in a library of its own."""
    found: dict[str, Schema] = {}
    for call in module.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "define" or not call.args:
            continue
        library, text = _namespace(module, call.func.value), call.args[0]
        if library is not None and isinstance(text, ast.Constant) and isinstance(text.value, str):
            try:
                schema = parse_schema(text.value)
            except SchemaError:
                continue
            found[f"{library}::{schema.name}"] = schema
    return found


def _namespace(module: ModuleFacts, node: ast.expr) -> str | None:
    """The namespace of the ``torch.library.Library`` that a name stands for."""
    for binding in module.names.visible(node) if isinstance(node, ast.Name) else ():
        value = binding.value
        if isinstance(value, ast.Call) and module.is_name(value.func, "torch.library.Library"):
            first = value.args[0] if value.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                return first.value
    return None


def _runs(module: ModuleFacts, name: str) -> bool | None:
    """Whether ``torch.ops.ns.name`` is called where a gradient may be wanted; None: nowhere."""
    spelled = f"ops.{name.replace('::', '.')}"
    callers = 0
    for other in module.project.mentioning(module, spelled):
        for call in other.calls:
            text = ast.unparse(call.func)
            if not text.removesuffix(".default").endswith(spelled):
                continue
            callers += 1
            caller = other.function(call)
            if gradient_unwanted(other, call):
                continue
            if caller is None or not (
                _BACKWARD.search(caller.name) or serves_backward(other, caller)
            ):
                return True
    return False if callers else None
