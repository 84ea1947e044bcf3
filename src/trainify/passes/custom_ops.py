"""TRN110: operators of one's own that are registered without an autograd formula."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.guards import gradient_unwanted, serves_backward
from ..facts.pure import why_not_differentiable
from ..findings import STRATEGIES, Finding, Fix
from . import Rule

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
            "autograd formula was registered."
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
        x = x.detach().requires_grad_(ctx.needs_input_grad[0])
        weight = weight.detach().requires_grad_(ctx.needs_input_grad[1])
        out = scaled_native(x, weight, ctx.factor)
    torch.autograd.backward(out, grad)
    return x.grad, weight.grad, None


scaled.register_autograd(scaled_backward, setup_context=scaled_setup_context)
""",
    ),
)

NEEDLES = (b"custom_op(",)

_CUSTOM_OP = ("torch.library.custom_op", "torch._library.custom_ops.custom_op")
# What these give has no gradient, or is one.
_NO_GRADIENT = re.compile(
    r"(^|_)(bwd|backward|grad|dgrad|wgrad|quant\w*|dequant\w*|index|indices|sample|topk|sort|"
    r"argmax|argmin|argsort|cache|all_reduce|allreduce|all_gather|reduce_scatter|pack|unpack|mask|"
    r"align|nms|bincount|histogram|print|assert|barrier|sync|randint|seed)(_|$)"
)
_TENSOR = re.compile(r"(torch\.)?Tensor( \| None)?|(typing\.)?Optional\[(torch\.)?Tensor\]")
_BACKWARD = re.compile(r"(^|_)(bwd|backward|grad|setup_context)(_|$)")


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for function in module.functions:
        name = _op_name(module, function)
        if name is None or not _may_be_trained(function) or _NO_GRADIENT.search(function.name):
            continue
        if _has_formula(module, function, name):
            continue
        wanted = _is_wanted(module, function)
        if wanted is False:
            continue
        message = f"`{name}` has no autograd formula: backward() raises where it meets the op."
        fixes: dict[str, Fix] = {}
        reason = why_not_differentiable(module, function)
        if not reason:
            from ..rewrite.custom_op import CannotRegister, fix

            try:
                fixes = dict.fromkeys(STRATEGIES, fix(module, function))
            except CannotRegister as error:
                reason = str(error)
        if reason:
            message += f" Not rewritten: {reason}."
        if fixes or wanted:
            yield module.finding("TRN110", message, _head(function), fixes)


def _op_name(module: ModuleFacts, function: FunctionNode) -> str | None:
    """``ns::name`` of an operator that mutates nothing, and that a decorator registers."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and module.is_name(decorator.func, *_CUSTOM_OP):
            mutated = next((k.value for k in decorator.keywords if k.arg == "mutates_args"), None)
            none = isinstance(mutated, (ast.Tuple, ast.List)) and not mutated.elts
            first = decorator.args[0] if decorator.args else None
            if none or (isinstance(mutated, ast.Call) and not mutated.args):  # set()
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    return first.value
    return None


def _may_be_trained(function: FunctionNode) -> bool:
    """Whether it takes tensors and gives some."""
    given = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    returned = ast.unparse(function.returns) if function.returns is not None else ""
    return "Tensor" in returned and any(_TENSOR.fullmatch(_annotation(a)) for a in given)


def _annotation(argument: ast.arg) -> str:
    return ast.unparse(argument.annotation).strip("'\"") if argument.annotation is not None else ""


def _has_formula(module: ModuleFacts, function: FunctionNode, name: str) -> bool:
    """Whether the project registers one, or something of which that cannot be told."""
    own = f"{function.name}.register_autograd"
    for other in module.project.mentioning(module, own, name, containing=b"utograd"):
        if own in other.text:
            return True
        for call in other.calls:
            called = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            called = called or getattr(call.func, "id", "")
            if called == "register_autograd" and call.args:
                first = call.args[0]
                if isinstance(first, ast.Constant):
                    if first.value == name:
                        return True
                elif isinstance(call.func, ast.Name) or other.is_name(
                    call.func, "torch.library.register_autograd"
                ):
                    return True
            elif called == "impl" and "Autograd" in other.source(call):
                if name.rpartition("::")[2] in other.source(call):
                    return True
    return False


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


def _head(function: FunctionNode) -> ast.expr:
    """A node that covers ``def name``, to point at."""
    name = ast.Name(id=function.name)
    name.lineno = name.end_lineno = function.lineno
    name.col_offset = function.col_offset
    name.end_col_offset = function.col_offset + len(f"def {function.name}".encode())
    return name
