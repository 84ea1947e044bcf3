"""TRN402, TRN403: in-place writes that autograd refuses, or that destroy what backward needs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..facts.guards import gradient_unwanted
from ..findings import Finding, Fix
from . import Needle, Rule

if TYPE_CHECKING:
    from ..engine import Options
    from ..rewrite.branch import Change

RULES = (
    Rule(
        code="TRN402",
        name="out-argument",
        summary="A torch function writes into out=, which has no derivative.",
        why=(
            "Functions with out=... arguments do not support automatic differentiation: the "
            "forward raises as soon as an argument requires grad."
        ),
        before="""\
import torch
from torch import nn


class Head(nn.Module):
    def forward(self, logits):
        torch.tanh(logits, out=logits)
        return logits
""",
        after="""\
import torch
from torch import nn


class Head(nn.Module):
    def forward(self, logits):
        if torch.is_grad_enabled() and logits.requires_grad:
            logits = torch.tanh(logits)
        else:
            torch.tanh(logits, out=logits)
        return logits
""",
    ),
    Rule(
        code="TRN403",
        name="in-place-on-saved-result",
        summary="A result that backward needs is overwritten in place.",
        why=(
            "tanh, sigmoid, exp, softmax and their like save their result for backward. "
            "Overwriting it makes backward raise: one of the variables needed for gradient "
            "computation has been modified by an inplace operation."
        ),
        before="""\
import torch
from torch import nn


class Head(nn.Module):
    def forward(self, logits):
        logits = torch.tanh(logits)
        logits.mul_(30.0)
        return logits
""",
        after="""\
import torch
from torch import nn


class Head(nn.Module):
    def forward(self, logits):
        logits = torch.tanh(logits)
        if torch.is_grad_enabled() and logits.requires_grad:
            logits = logits * 30.0
        else:
            logits.mul_(30.0)
        return logits
""",
    ),
)


_SAVES_RESULT = frozenset(
    "tanh sigmoid exp expm1 softmax log_softmax rsqrt sqrt reciprocal tan relu selu "
    "logsumexp cumprod prod norm".split()
)
_SAVED = re.compile(
    rb"\b(\w+)[ \t]*=[^\n=][^\n]*\b(?:%s)\(" % "|".join(sorted(_SAVES_RESULT)).encode()
)
# One pattern for each beginning: a search for a fixed string is several times as fast.
_CHANGES = tuple(re.compile(p) for p in (rb"\+=", rb"-=", rb"\*=", rb"/=", rb"\.[a-z]\w*_\("))
_NAME = re.compile(rb"[ \t]*(\w+)[ \t]*")
_NEAR = 600
"""Bytes before a change in place in which the result that is changed may have been saved."""


def _may_concern(data: bytes) -> bool:
    if b", out=" in data:
        return True
    return b"def forward" in data and any(
        _saved_before(data, change.start())
        for pattern in _CHANGES
        for change in pattern.finditer(data)
    )


def _saved_before(data: bytes, change: int) -> bool:
    """Whether a change in place is of a name to which a saved result was given shortly before."""
    name = _NAME.fullmatch(data, data.rfind(b"\n", 0, change) + 1, change)
    if name is None:
        return False
    at = max(0, change - _NEAR)
    while (at := data.find(name[1], at, change)) >= 0:
        saved = _SAVED.match(data, at, change)
        if saved is not None and saved[1] == name[1]:
            return True
        at += len(name[1])
    return False


NEEDLES: tuple[Needle, ...] = (_may_concern,)
_FACTORIES = frozenset(
    "eye arange linspace logspace full zeros ones empty rand randn randint randperm normal "
    "bernoulli multinomial argmax argmin argsort topk sort".split()
)
_OPERATORS = {"add_": "+", "sub_": "-", "mul_": "*", "div_": "/"}


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    found: list[tuple[str, str, Change]] = []
    for statement in module.statements:
        if not isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign)):
            continue
        hit = _out(module, statement) or _overwrite(module, statement)
        if hit is None or not _in_network(module, statement):
            continue
        if not gradient_unwanted(module, statement):
            found.append(hit)
    if not found:
        return
    from ..rewrite import branch

    vocabulary = branch.Vocabulary(module)
    for run in branch.group(module, [change for _, _, change in found]):
        fixes: dict[str, Fix] = {}
        if all(change.lines for change in run):
            try:
                fixes = branch.fixes(module, vocabulary, run, options.flag)
                fixes["attach"] = fixes["flag"]  # there is no kernel to keep
            except branch.CannotPlace:
                fixes = {}
        for rule, message, change in found:
            if change in run:
                yield module.finding(rule, message, change.first, fixes)


def _in_network(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether a statement stands in a method of a class with a forward."""
    cls = module.method_class(module.function(statement))
    return cls is not None and any(
        isinstance(node, ast.FunctionDef) and node.name == "forward" for node in cls.body
    )


def _out(module: ModuleFacts, statement: ast.stmt) -> tuple[str, str, Change] | None:
    """``torch.f(..., out=t)`` as a statement, or assigned."""
    call = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    if not isinstance(call, ast.Call):
        return None
    keyword = next((k for k in call.keywords if k.arg == "out"), None)
    if keyword is None or isinstance(keyword.value, (ast.Tuple, ast.Constant)):
        return None
    names = [t.name for t in module.resolve(call.func)]
    if not any(n.startswith("torch.") and not n.startswith("torch.ops.") for n in names):
        return None
    if any(n.rpartition(".")[2] in _FACTORIES for n in names):
        return None
    from ..rewrite.branch import Change
    from ..rewrite.functionalize import CannotFunctionalize, functionalize

    text = module.source(call.func)
    message = (
        f"`{text}(..., out=...)` does not support automatic differentiation: forward raises when "
        "an argument requires grad."
    )
    kept = [module.source(a) for a in call.args]
    kept += [
        f"{k.arg}={module.source(k.value)}" for k in call.keywords if k.arg not in ("out", None)
    ]
    value = f"{text}({', '.join(' '.join(part.split()) for part in kept)})"
    change = Change([statement], [], wants=_tensors(module, call), title=text)
    try:
        write = functionalize(module, statement, keyword.value)
    except CannotFunctionalize:
        return "TRN402", message, change
    if write.allocation is not None:
        change.dropped.append(write.allocation)
    if write.look_at:
        change.look_at.append(write.look_at)
    if isinstance(statement, ast.Assign):
        targets = " = ".join(module.source(t) for t in statement.targets)
        change.lines = [f"{targets} = {value}"]
        flow = module.flow(module.function(statement) or module.tree)
        buffer = write.place.text
        if buffer.isidentifier() and buffer != targets and flow.read_after(buffer, statement):
            change.lines.append(f"{buffer} = {targets}")
    elif write.place.kind == "copy":
        change.lines = [f"{write.place.text}.copy_({value})"]
    else:
        change.lines = [f"{write.place.text} = {value}"]
    change.lines += write.followers
    return "TRN402", message, change


def _tensors(module: ModuleFacts, call: ast.Call) -> list[str] | None:
    names = []
    for argument in call.args:
        if isinstance(argument, ast.Name):
            names.append(argument.id)
        elif not isinstance(argument, ast.Constant):
            return None
    return names or None


def _overwrite(module: ModuleFacts, statement: ast.stmt) -> tuple[str, str, Change] | None:
    """``t.mul_(...)`` or ``t *= ...`` right after an operation that saved ``t``."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        name: ast.Name = statement.target
        operator = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}.get(type(statement.op))
        if operator is None:
            return None
        value = f"{name.id} {operator} {_operand(module, statement.value)}"
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
            return None
        method = call.func.attr
        if not method.endswith("_") or method.startswith("_") or method in ("requires_grad_",):
            return None
        name = call.func.value
        if method in _OPERATORS and len(call.args) == 1 and not call.keywords:
            value = f"{name.id} {_OPERATORS[method]} {_operand(module, call.args[0])}"
        else:
            arguments = module.source(call)[len(module.source(call.func)) :]
            value = f"{name.id}.{method[:-1]}{arguments}"
    else:
        return None
    saver = _saver(module, statement, name.id)
    if saver is None:
        return None
    from ..rewrite.branch import Change
    from ..rewrite.functionalize import CannotFunctionalize, functionalize

    message = (
        f"`{name.id}` is overwritten in place, but `{saver}` saved it for backward, which raises."
    )
    change = Change([statement], [], wants=[name.id], title="out-of-place form")
    reference = ast.copy_location(ast.Name(id=name.id, ctx=ast.Load()), name)
    try:
        write = functionalize(module, statement, reference)
    except CannotFunctionalize:
        return "TRN403", message, change
    if write.place.kind == "assign":
        change.lines = [f"{write.place.text} = {value}", *write.followers]
    return "TRN403", message, change


def _operand(module: ModuleFacts, node: ast.expr) -> str:
    text = " ".join(module.source(node).split())
    if isinstance(node, (ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda)):
        return f"({text})"
    return text


def _saver(module: ModuleFacts, statement: ast.stmt, name: str) -> str | None:
    """The operation whose saved result ``name`` still is when ``statement`` starts."""
    block = module.block(statement)
    for previous in reversed(block[: block.index(statement)]):
        if isinstance(previous, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in previous.targets
        ):
            return _saving(module, previous.value)
        if isinstance(previous, ast.Expr) and isinstance(previous.value, ast.Call):
            call = previous.value
            out = next((k.value for k in call.keywords if k.arg == "out"), None)
            if isinstance(out, ast.Name) and out.id == name:
                return _saving(module, call)
            function = call.func
            if (
                isinstance(function, ast.Attribute)
                and isinstance(function.value, ast.Name)
                and function.value.id == name
                and function.attr.endswith("_")
            ):
                saved = function.attr[:-1] in _SAVES_RESULT
                return module.source(function) if saved else None
        elif any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(previous)):
            if not isinstance(previous, ast.Expr):
                return None
    return None


def _saving(module: ModuleFacts, value: ast.expr) -> str | None:
    if isinstance(value, ast.Call):
        text = module.source(value.func)
        if text.rpartition(".")[2] in _SAVES_RESULT:
            return text
    return None
