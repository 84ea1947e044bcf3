"""TRN105 to TRN107: hand-written ``torch.autograd.Function`` classes with a faulty backward."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.guards import is_autograd_function
from ..facts.names import is_none
from ..findings import Finding
from . import Rule

if TYPE_CHECKING:
    from ..engine import Options
    from ..facts.module import FunctionNode

_HEAD = """\
import torch


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight
"""

RULES = (
    Rule(
        code="TRN105",
        name="function-without-backward",
        summary="An autograd.Function has no backward, or one that only raises or returns nothing.",
        why=(
            "Being an autograd.Function does not make an op trainable. Its output has a grad_fn "
            "and requires_grad, so everything looks right until backward(), which raises, or, "
            "where every gradient returned is None, leaves all inputs without one in silence."
        ),
        before=_HEAD,
        after="",
    ),
    Rule(
        code="TRN106",
        name="backward-drops-weight",
        summary="A backward returns None for an input that is a weight.",
        why=(
            "The weight gets no gradient although it requires one. That is only right where the "
            "weight is frozen; nothing says so when it is not."
        ),
        before=_HEAD
        + """\

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, None
""",
        after="",
    ),
    Rule(
        code="TRN107",
        name="backward-overwrites-gradient",
        summary="A backward writes into the gradient it was given.",
        why=(
            "The incoming gradient may be shared with another branch (a residual connection), "
            "which then receives the overwritten values: its gradient is wrong, without an error."
        ),
        before=_HEAD
        + """\

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad_weight = (grad * x).sum(0)
        grad.mul_(weight)
        return grad, grad_weight
""",
        after="",
    ),
)

NEEDLES = (b"autograd.Function", b"Function)")

_WEIGHT = re.compile(r"(w|W|weights?|gamma|(?!teacher|ce_|class_)\w+_weight)$")
# The weight of a loss weighs classes; nothing trains it.
_LOSS = re.compile(r"loss|entropy|jsd|kl_?div|distill|preference|ppo|dpo", re.IGNORECASE)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for cls in module.classes:
        if cls.bases and is_autograd_function(module, cls):
            yield from _judge(module, cls)


def _judge(module: ModuleFacts, cls: ast.ClassDef) -> Iterator[Finding]:
    methods = {
        n.name: n for n in cls.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    names = {
        t.id
        for n in cls.body
        if isinstance(n, ast.Assign)
        for t in n.targets
        if isinstance(t, ast.Name)
    }
    forward = methods.get("forward")
    if forward is None or {"symbolic"} & (set(methods) | names):
        return  # a base for others, or an export shim
    backward = methods.get("backward") or methods.get("vjp")
    if backward is None:
        if not {"backward", "vjp"} & names and len(cls.bases) == 1:
            message = (
                f"`{cls.name}` has no backward: its output requires grad, and backward() raises."
            )
            yield module.finding("TRN105", message, _head(cls))
        return
    if _only_raises(backward):
        message = f"the backward of `{cls.name}` only raises: nothing before it can be trained."
        yield module.finding("TRN105", message, _head(backward))
        return
    returned = [r for r in ast.walk(backward) if isinstance(r, ast.Return)]
    values = [_elements(r.value) for r in returned]
    if values and all(all(is_none(v) for v in each) for each in values):
        message = (
            f"the backward of `{cls.name}` returns None for every input: all of them are left "
            "without a gradient, in silence."
        )
        yield module.finding("TRN105", message, returned[0])
        return
    yield from _dropped(module, cls, forward, backward, returned, values)
    yield from _overwritten(module, cls, backward)


def _dropped(
    module: ModuleFacts,
    cls: ast.ClassDef,
    forward: FunctionNode,
    backward: FunctionNode,
    returned: Sequence[ast.Return],
    values: Sequence[list[ast.expr]],
) -> Iterator[Finding]:
    """Weights whose slot is None in every return, and that backward does not ask about."""
    inputs = [a.arg for a in (*forward.args.posonlyargs, *forward.args.args)]
    inputs = inputs[1 + (inputs[:1] == ["cls"]) :]
    if any(isinstance(v, ast.Starred) for each in values for v in each):
        return  # how many it gives shows at run time only
    text = module.source(backward)
    if _LOSS.search(cls.name):
        return
    if "needs_input_grad" in text or "mark_non_differentiable" in module.source(forward):
        return
    for i, name in enumerate(inputs):
        slots = [each[i] for each in values if len(each) > i]
        if len(slots) == len(values) and slots and all(is_none(s) for s in slots):
            if _WEIGHT.fullmatch(name):
                message = (
                    f"the backward of `{cls.name}` returns None for `{name}`: the weight never "
                    "gets a gradient."
                )
                yield module.finding("TRN106", message, returned[0])


def _overwritten(
    module: ModuleFacts, cls: ast.ClassDef, backward: FunctionNode
) -> Iterator[Finding]:
    """In-place writes into the gradients that backward receives."""
    arguments = [a.arg for a in (*backward.args.posonlyargs, *backward.args.args)][1:]
    flow = module.flow(backward)
    for statement in module.statements:
        if module.function(statement) is not backward:
            continue
        name = _written(statement)
        if name not in arguments:
            continue
        if any(not d.is_parameter for d in flow.reaching(name, statement)):
            continue  # a copy of its own
        message = (
            f"the backward of `{cls.name}` writes into `{name}`, which another branch may share: "
            "that branch gets a wrong gradient."
        )
        yield module.finding("TRN107", message, statement)


def _written(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id
    target: ast.expr | None = None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        if isinstance(statement.targets[0], ast.Subscript):
            target = statement.targets[0].value
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and re.fullmatch(r"[a-z]\w*[a-z]_", function.attr):
            target = function.value
    return target.id if isinstance(target, ast.Name) else None


def _only_raises(function: FunctionNode) -> bool:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return bool(body) and isinstance(body[0], ast.Raise)


def _elements(value: ast.expr | None) -> list[ast.expr]:
    """The gradients that a return gives; a bare ``return`` gives None for all."""
    if value is None:
        return []
    if isinstance(value, ast.Tuple):
        return list(value.elts)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return [*_elements(value.left), *_elements(value.right)]
    return [value]


def _head(node: ast.ClassDef | FunctionNode) -> ast.expr:
    """A node that covers ``class Name`` or ``def name``, to point at."""
    word = {ast.ClassDef: "class", ast.AsyncFunctionDef: "async def"}.get(type(node), "def")
    name = ast.Name(id=node.name)
    name.lineno = name.end_lineno = node.lineno
    name.col_offset = node.col_offset
    name.end_col_offset = node.col_offset + len(f"{word} {node.name}".encode())
    return name
