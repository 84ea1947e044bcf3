"""TRN104: Triton kernels launched by hand, outside anything that has a backward."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.flow import is_allocation
from ..facts.guards import gradient_unwanted, serves_backward
from ..findings import Finding
from . import Rule

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN104",
        name="raw-kernel-launch",
        summary="A Triton kernel is launched where autograd cannot see it.",
        why=(
            "A launch writes through pointers: no grad_fn, no version counter. What it fills has "
            "no gradient; what it overwrites keeps its old grad_fn, and backward() lies. Launches "
            "inside an autograd.Function or a registered op are fine."
        ),
        before="""\
import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, w_ptr, y_ptr, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y_ptr + i, tl.load(x_ptr + i) * tl.load(w_ptr + i))


def scale(x, w):
    y = torch.empty_like(x)
    scale_kernel[(1,)](x, w, y, x.numel())
    return y
""",
        after="",
    ),
)

NEEDLES = (b"triton.jit", b"kernel[", b"kernel_[")

_JIT = ("triton.jit", "triton.autotune", "triton.heuristics", "triton.runtime.jit.jit")
_BACKWARD = re.compile(r"(^|_)(bwd|backward|grad|dgrad|wgrad)(_|$)")
# Losses compute their gradient in forward; indices, quantized codes and samples have none.
_OWN_GRADIENT = re.compile(
    r"(^|_)(bwd|backward|grad|loss|entropy|jsd|kl|kldiv|index|indices|sample|topk|quant\w*|copy)(_|$|\b)"
)
_WRITES = ("store", "atomic_add", "atomic_max", "atomic_cas", "atomic_xchg")


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for call in module.calls:
        if not isinstance(call.func, ast.Subscript):
            continue
        kernel = _kernel(module, call.func.value)
        if kernel is None or gradient_unwanted(module, call):
            continue
        function = module.function(call)
        name = module.source(call.func.value)
        if _OWN_GRADIENT.search(f"{function.name if function is not None else ''} {name}"):
            continue
        if any(_BACKWARD.search(f.name) for f in module.functions):
            continue  # the author of this file writes backwards
        if function is not None and serves_backward(module, function):
            continue
        yield module.finding("TRN104", _message(module, call, kernel), call)


def _kernel(module: ModuleFacts, node: ast.expr) -> FunctionNode | str | None:
    """The ``@triton.jit`` function that an expression stands for; its name where it is not here."""
    for target in module.resolve(node):
        for function in module.functions:
            if target.name == f"{module.module_name}.{function.name}" and _is_jit(module, function):
                return function
        owner, _, name = target.name.rpartition(".")
        path = module.project.find_module(module, owner) if owner else None
        other = module.project.load(path) if path is not None else None
        for function in other.functions if other is not None else ():
            if function.name == name and other is not None and _is_jit(other, function):
                return function
        if name.endswith("_kernel") and other is None:
            return name  # from an installed package, called like a kernel
    return None


def _is_jit(module: ModuleFacts, function: FunctionNode) -> bool:
    for decorator in function.decorator_list:
        node = decorator.func if isinstance(decorator, ast.Call) else decorator
        if any(target.name in _JIT for target in module.resolve(node, function)):
            return True
    return False


def _message(module: ModuleFacts, call: ast.Call, kernel: FunctionNode | str) -> str:
    assert isinstance(call.func, ast.Subscript)
    name = module.source(call.func.value)
    written = (
        _stored(module, call, kernel) if not isinstance(kernel, str) else _allocated(module, call)
    )
    if not written:
        return f"`{name}` is launched without a backward: no gradient passes it."
    fresh = set(_allocated(module, call))
    overwritten = [w for w in written if w not in fresh]
    listed = ", ".join(f"`{w}`" for w in written)
    if overwritten and not isinstance(kernel, str):
        others = ", ".join(f"`{w}`" for w in overwritten)
        return (
            f"`{name}` writes {listed} below autograd: {others} keeps its old grad_fn if it has "
            "one, so what comes before gets a wrong gradient, the kernel's other inputs none."
        )
    return f"`{name}` fills {listed} below autograd: no gradient reaches the kernel's inputs."


def _stored(module: ModuleFacts, call: ast.Call, kernel: FunctionNode) -> list[str]:
    """The arguments of a launch that the kernel's ``tl.store`` and atomics write."""
    parameters = [a.arg for a in (*kernel.args.posonlyargs, *kernel.args.args)]
    written: set[str] = set()
    for node in ast.walk(kernel):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if node.func.attr in _WRITES:
                written |= _pointers(kernel, node.args[0], set(parameters))
    found = []
    for parameter, argument in zip(parameters, call.args, strict=False):
        if parameter in written:
            found.append(module.source(argument))
    for keyword in call.keywords:
        if keyword.arg in written:
            found.append(module.source(keyword.value))
    return found


def _pointers(kernel: FunctionNode, node: ast.expr, parameters: set[str]) -> set[str]:
    """The pointer parameters that an address is computed from, through local names."""
    bases = _address(node)
    found: set[str] = set()
    seen: set[str] = set()
    while bases:
        name = bases.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in parameters:
            found.add(name)
        for statement in ast.walk(kernel):
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name) and target.id == name:
                        bases |= _address(statement.value)
    return {name for name in found if _looks_like_pointer(name, found)}


def _address(node: ast.expr) -> set[str]:
    """The names on the left edge of a sum: ``base + row * stride`` starts at ``base``."""
    while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        node = node.left
    if isinstance(node, ast.Call) and node.args:  # tl.make_block_ptr(base=..., ...)
        node = node.args[0]
    return {node.id} if isinstance(node, ast.Name) else set()


def _looks_like_pointer(name: str, found: Sequence[str] | set[str]) -> bool:
    return len(found) == 1 or not name.startswith("stride")


def _allocated(module: ModuleFacts, call: ast.Call) -> list[str]:
    """The arguments of a call that are fresh buffers."""
    statement = module.statement(call)
    flow = module.flow(module.function(call) or module.tree)
    found = []
    for argument in [*call.args, *(k.value for k in call.keywords)]:
        if isinstance(argument, ast.Name):
            definition = flow.only_definition(argument.id, statement)
            if definition is not None and is_allocation(definition.value):
                found.append(argument.id)
    return found
