"""TRN104: Triton kernels launched by hand, outside anything that has a backward."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.asked import runs_behind_tests
from ..facts.dtypes import holds_codes
from ..facts.flow import Definition
from ..facts.guards import gradient_unwanted, is_autograd_function, is_forward, serves_backward
from ..facts.integers import holds_integers
from ..facts.layers import is_module_class
from ..facts.memo import once
from ..facts.names import is_none, last_name, passed, placed
from ..facts.operands import recognize
from ..facts.triton import stored
from ..facts.views import is_allocation, view_of
from ..facts.words import declare, places
from ..findings import Finding
from . import Look, Needle, Rule
from .fused_calls.rewriter import Rewriter, other_path
from .fused_calls.site import Site

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

_LAUNCHES = declare(b"kernel[", b"kernel_[")
_RUNS = declare(b"kernel.run(", b"kernel_.run(")


def _launches(data: bytes) -> bool:
    """Whether what looks like a kernel is called with its grid: ``kernel[(n,)](x)``."""
    return any(places(data, word) for word in _RUNS) or any(
        _is_called(data, at + len(word)) for word in _LAUNCHES for at in places(data, word)
    )


def _is_called(data: bytes, grid: int) -> bool:
    depth = 1
    for bracket in _BRACKET.finditer(data, grid):
        depth += 1 if bracket[0] == b"[" else -1
        if depth == 0:
            return data.startswith(b"(", bracket.end())
    return False


_BRACKET = re.compile(rb"[\[\]]")

PLANS = True

NEEDLES: tuple[Needle, ...] = (b"triton.jit", Look((*_LAUNCHES, *_RUNS), _launches))

_JIT = re.compile(r"(^|\.)triton\.(jit|autotune|heuristics|runtime\.jit\.jit)$")
_BACKWARD = re.compile(r"(^|_)(bwd|backward|grad|dgrad|wgrad)(_|$)")
# Losses compute their gradient in forward; indices, quantized codes and samples have none.
_OWN_GRADIENT = re.compile(
    r"(?<![a-zA-Z0-9])(bwd|backward|grad|loss|entropy|jsd|kl|kldiv|index|indices|sampl(e|ing)|topk|(de)?quant\w*|copy|"
    r"qweight|repack|metadata|page_table|schedule|barrier|counts?|perms?|slots?|plan|hist|"
    r"prefix_sum|to_token|lora_info|kv_buffer|staging|clear|assert|check|meta|ids|argmax|mapping|"
    r"block_tables?|memcpy|swap_blocks|trackers?|bitmask|logprobs|penalties|temperature|min_p|"
    r"block_map|lut|uniform|bad_words|logit_bias|sampled|accepted|rejected|watermark|checkpoints?)(_|$|\b)"
)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    sites: list[Site] = []
    for call in module.calls:
        launched = _launched(module, call)
        if launched is None:
            continue
        held = not isinstance(call.func, ast.Subscript)
        kernel = kernel_of(module, launched)
        if held and isinstance(kernel, str) and not _is_run(call):
            continue  # only its name says that this is a kernel
        if kernel is None or gradient_unwanted(module, call):
            continue
        function = module.function(call)
        name = module.source(launched)
        if _OWN_GRADIENT.search(f"{function.name if function is not None else ''} {name}"):
            continue
        beside, goes_past = None, False
        if any(_BACKWARD.search(f.name) for f in module.functions):
            beside = _function_with_backward(module, kernel)
            if beside is None:
                beside = _function_gone_past(module, function)
                goes_past = beside is not None
            if beside is None:
                continue  # the author of this file writes backwards
        if function is not None and not goes_past:
            if serves_backward(module, function) or runs_behind_tests(module, function):
                continue
        if _gives_no_values(module, call, kernel):
            continue
        message = _message(module, call, launched, kernel)
        if beside is not None:
            message += f" `{beside.name}` launches it with a backward."
        site = launch(module, call, kernel, message) if not held else None
        if site is not None:
            sites.append(site)
        else:
            yield module.finding("TRN104", message, call, other_path(module, call, options))
    if sites:
        yield from Rewriter(module, options, sites).findings()


def _launched(module: ModuleFacts, call: ast.Call) -> ast.expr | None:
    """The kernel of ``kernel[grid](x)``, by a local name too, or of ``kernel.run(x, grid=n)``."""
    if isinstance(call.func, ast.Subscript):
        return call.func.value
    if _is_run(call):
        assert isinstance(call.func, ast.Attribute)
        return call.func.value
    if isinstance(call.func, ast.Name) and call.func.id in _held(module):
        flow = module.flow(module.function(call) or module.tree)
        made = flow.only_definition(call.func.id, module.statement(call))
        if made is not None and isinstance(made.value, ast.Subscript):
            return made.value.value
    return None


def _is_run(call: ast.Call) -> bool:
    """Whether a call is that of the method by which Triton launches a kernel itself."""
    named = isinstance(call.func, ast.Attribute) and call.func.attr == "run"
    return named and any(keyword.arg == "grid" for keyword in call.keywords)


@once
def _held(module: ModuleFacts) -> frozenset[str]:
    """The names that are given something with an index."""
    return frozenset(
        target.id
        for statement in module.statements
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Subscript)
        for target in statement.targets
        if isinstance(target, ast.Name)
    )


def launch(
    module: ModuleFacts, call: ast.Call, kernel: FunctionNode | str, message: str
) -> Site | None:
    """A launch of a kernel that computes what its name says, ready to be rewritten."""
    assert isinstance(call.func, ast.Subscript)
    targets = module.resolve(call.func.value)
    source = None if isinstance(kernel, str) else kernel
    op = recognize(module, call, targets[0].name, source) if len(targets) == 1 else None
    if op is None:
        return None
    bound = op.signature.bind(call.args, call.keywords)
    statement = module.statement(call)
    flow = module.flow(module.function(call) or module.tree)
    for argument in op.signature.arguments:  # the new form does not fill these
        node = bound[argument.name]
        if argument.type == "Any" and isinstance(node, ast.Name) and not argument.written:
            made = flow.only_definition(node.id, statement)
            if made is not None and is_allocation(made.value):
                if flow.read_after(node.id, statement):
                    return None
    return Site(module, call, op, targets[0], bound, "TRN104", message)


def kernel_of(module: ModuleFacts, node: ast.expr) -> FunctionNode | str | None:
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


def _function_with_backward(module: ModuleFacts, kernel: FunctionNode | str) -> ast.ClassDef | None:
    """The ``autograd.Function`` of the file whose forward launches a kernel itself.

    A launch that does not lead through it has none of its backward.
    """
    for call in module.calls:
        function, launched = module.function(call), _launched(module, call)
        if launched is not None and function is not None:
            cls = module.method_class(function)
            if cls is not None and is_autograd_function(module, cls):
                if function.name == "forward" and kernel_of(module, launched) is kernel:
                    return cls
    return None


def _function_gone_past(module: ModuleFacts, function: FunctionNode | None) -> ast.ClassDef | None:
    """The ``autograd.Function`` whose forward calls what launches a kernel, and a layer does too.

    The layer's call has none of its backward.
    """
    if function is None or module.parent(function) is not module.tree:
        return None
    for call in module.calls_named(function.name):
        cls = module.method_class(module.function(call))
        if cls is not None and is_autograd_function(module, cls):
            return cls if _is_called_by_layer(module, function) else None
    return None


def _is_called_by_layer(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether the forward of a module calls a function of the file where gradients are wanted."""
    for other, call in module.project.calls_of(module, function, _has_forward):
        caller = other.function(call)
        cls = other.method_class(caller)
        if caller is not None and cls is not None and is_forward(caller):
            if is_module_class(other, cls) and not gradient_unwanted(other, call):
                return not runs_behind_tests(module, function)
    return False


def _has_forward(data: bytes) -> bool:
    return b"def forward" in data


def _is_jit(module: ModuleFacts, function: FunctionNode) -> bool:
    for decorator in function.decorator_list:
        node = decorator.func if isinstance(decorator, ast.Call) else decorator
        if any(_JIT.search(target.name) for target in module.resolve(node, function)):
            return True
    return False


def _written(module: ModuleFacts, call: ast.Call, kernel: FunctionNode | str) -> list[str]:
    """The arguments that a launch writes, as far as that shows."""
    if isinstance(kernel, str):
        return list(allocated(module, call))
    return [module.source(node) for node in _stored(call, kernel)]


def _gives_no_values(module: ModuleFacts, call: ast.Call, kernel: FunctionNode | str) -> bool:
    """Whether all that a launch writes are integers or quantized codes: lengths, tables, maps."""
    at = module.statement(call)
    if isinstance(kernel, str):
        made = allocated(module, call).values()
        return bool(made) and all(_is_of_codes(module, d.value) for d in made)
    written = _stored(call, kernel)
    return bool(written) and all(_holds_no_values(module, node, at) for node in written)


def _holds_no_values(module: ModuleFacts, node: ast.expr, at: ast.stmt, depth: int = 0) -> bool:
    """Whether a tensor, a view or a part of one, holds integers or codes by its name or making."""
    if isinstance(node, ast.IfExp):  # buffer if buffer is not None else dummy
        return all(_holds_no_values(module, part, at, depth) for part in (node.body, node.orelse))
    if is_allocation(node):
        return _is_of_codes(module, node)
    if holds_integers(node):
        return True
    view = view_of(node)
    if view is not None and depth < _MAX_NAMES:
        flow = module.flow(module.function(at) or module.tree)
        made = flow.only_definition(view.base, at)
        if made is None or made.statement is None or made.value is None or made.index is not None:
            return False
        return _holds_no_values(module, made.value, made.statement, depth + 1)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        cls = module.names.self_class(node.value)
        bound = module.names.attributes(cls).get(node.attr, ()) if cls is not None else ()
        values = [b.value for b in bound if not is_none(b.value)]
        return bool(values) and all(_is_of_codes(module, value) for value in values)
    return False


_MAX_NAMES = 3


def _is_of_codes(module: ModuleFacts, value: ast.expr | None) -> bool:
    """Whether an allocation is of integers or codes, by its dtype or that of what it is like."""
    if not isinstance(value, ast.Call) or not is_allocation(value):
        return False
    if any(keyword.arg == "dtype" for keyword in value.keywords):
        return holds_codes(module, value)
    name, owner = last_name(value.func), getattr(value.func, "value", None)
    if name.endswith("_like"):
        return bool(value.args) and holds_integers(value.args[0])
    return name.startswith("new_") and owner is not None and holds_integers(owner)


def _message(
    module: ModuleFacts, call: ast.Call, launched: ast.expr, kernel: FunctionNode | str
) -> str:
    name = module.source(launched)
    written = _written(module, call, kernel)
    if not written:
        return f"`{name}` is launched without a backward: no gradient passes it."
    fresh = allocated(module, call)
    overwritten = [w for w in written if w not in fresh]
    listed = ", ".join(f"`{w}`" for w in written)
    if overwritten and not isinstance(kernel, str):
        others = ", ".join(f"`{w}`" for w in overwritten)
        keeps = "keeps its old grad_fn if it has one"
        if len(overwritten) > 1:
            keeps = "keep their old grad_fn if they have one"
        return (
            f"`{name}` writes {listed} below autograd: {others} {keeps}, so what comes before gets "
            "a wrong gradient, the kernel's other inputs none."
        )
    return f"`{name}` fills {listed} below autograd: no gradient reaches the kernel's inputs."


def _stored(call: ast.Call, kernel: FunctionNode) -> list[ast.expr]:
    """The arguments of a launch that the kernel writes."""
    written = stored(kernel)
    own = placed(kernel)
    found = []
    for name, argument in zip(own, call.args, strict=False):
        if isinstance(argument, ast.Starred):
            break  # which of those that follow is which does not show
        if name in written:
            found.append(argument)
    return found + [keyword.value for keyword in call.keywords if keyword.arg in written]


def allocated(module: ModuleFacts, call: ast.Call) -> dict[str, Definition]:
    """The arguments of a call that are fresh buffers, and what makes them."""
    statement = module.statement(call)
    flow = module.flow(module.function(call) or module.tree)
    found = {}
    for argument in passed(call):
        if isinstance(argument, ast.Name):
            definition = flow.only_definition(argument.id, statement)
            if definition is not None and is_allocation(definition.value):
                found[argument.id] = definition
    return found
