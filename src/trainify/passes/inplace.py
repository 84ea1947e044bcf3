"""TRN402, TRN403: in-place writes that autograd refuses, or that destroy what backward needs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..facts import ModuleFacts, places
from ..facts.flow import is_allocation
from ..facts.guards import gradient_unwanted, serves_backward
from ..facts.saved import RESULT_SAVED, saved_result
from ..facts.walk import walk
from ..facts.writes import Write, in_callers, in_network, roots
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


_MAKER = re.compile(rf"(?:{'|'.join(sorted(RESULT_SAVED))})\(".encode())
_METHODS = tuple(f"{name}_(".encode() for name in sorted(RESULT_SAVED))


def _may_concern(data: bytes) -> bool:
    return b", out=" in data or places.overwrites(data, _MAKER.search, _METHODS)


NEEDLES: tuple[Needle, ...] = (_may_concern,)
_FACTORIES = frozenset(
    "eye arange linspace logspace full zeros ones empty rand randn randint randperm normal "
    "bernoulli multinomial argmax argmin argsort topk sort".split()
)


@dataclass(frozen=True, eq=False)
class Harm:
    """A statement that writes where autograd does not allow it, and what could stand there."""

    rule: str
    message: str
    statement: ast.stmt
    change: Change | None = None
    fixes: Mapping[str, Fix] = field(default_factory=dict)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    found: list[Harm] = []
    for statement in module.statements:
        if not isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign, ast.Return)):
            continue
        hit = _out(module, statement) or _overwrite(module, options, statement)
        function = module.function(statement)
        if hit is None or not in_network(module, function):
            continue
        if gradient_unwanted(module, statement):
            continue
        if function is None or not serves_backward(module, function):
            found.append(hit)
    if not found:
        return
    from ..rewrite import branch

    vocabulary = branch.Vocabulary(module)
    fixes: dict[ast.stmt, Mapping[str, Fix]] = {h.statement: h.fixes for h in found}
    changes = [harm.change for harm in found if harm.change is not None and harm.change.lines]
    for run in branch.group(module, changes):
        try:
            both = branch.fixes(module, vocabulary, run, options.flag)
        except branch.CannotPlace:
            continue
        both["attach"] = both["flag"]  # there is no kernel to keep
        fixes.update((change.first, both) for change in run)
    for harm in found:
        yield module.finding(harm.rule, harm.message, harm.statement, fixes[harm.statement])


def _out(module: ModuleFacts, statement: ast.stmt) -> Harm | None:
    """``torch.f(..., out=t)`` as a statement, assigned, or in an expression."""
    call, keyword = next(_with_out(statement), (None, None))
    if call is None or keyword is None or isinstance(keyword.value, (ast.Tuple, ast.Constant)):
        return None
    names = [t.name for t in module.resolve(call.func)]
    if not any(n.startswith("torch.") and not n.startswith("torch.ops.") for n in names):
        return None
    if any(n.rpartition(".")[2] in _FACTORIES for n in names):
        return None
    from ..rewrite.branch import Change
    from ..rewrite.functionalize import CannotFunctionalize, functionalize
    from ..rewrite.out_of_place import keep_dtype

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
    if is_allocation(keyword.value) and not isinstance(statement, ast.Expr):
        change.lines = _exchanged(module, statement, call, value)  # nobody else has the buffer
        return Harm("TRN402", message, statement, change)
    try:
        write = functionalize(module, statement, keyword.value)
    except CannotFunctionalize:
        return Harm("TRN402", message, statement, change)
    if not isinstance(statement, (ast.Expr, ast.Assign)) or statement.value is not call:
        flow = module.flow(module.function(statement) or module.tree)
        buffer = write.place.text
        local = write.place.kind == "assign" and buffer.isidentifier() and not write.followers
        if local and not flow.read_after(buffer, statement):
            change.look_at += [write.look_at] if write.look_at else []
            change.lines = _exchanged(module, statement, call, value)
        return Harm("TRN402", message, statement, change)
    if write.allocation is None and isinstance(keyword.value, ast.Name):
        value = keep_dtype(module, value, keyword.value, text.rpartition(".")[2], call.args)
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
    return Harm("TRN402", message, statement, change)


def _with_out(statement: ast.stmt) -> Iterator[tuple[ast.Call, ast.keyword]]:
    """The calls with ``out=`` that a statement makes to compute its value."""
    value = getattr(statement, "value", None)
    for node in walk(value) if isinstance(value, ast.expr) else ():
        if isinstance(node, ast.Call):
            yield from ((node, k) for k in node.keywords if k.arg == "out")


def _exchanged(module: ModuleFacts, statement: ast.stmt, call: ast.Call, value: str) -> list[str]:
    """A statement with ``value`` in the place of a call; none where it cannot be on one line."""
    text, start = module.source(statement), module.start(statement)
    line = text[: module.start(call) - start] + value + text[module.end(call) - start :]
    if "\n" in line and any(mark in line for mark in "#'\""):
        return []
    return [" ".join(line.split()) if "\n" in line else line]


def _tensors(module: ModuleFacts, call: ast.Call) -> list[str] | None:
    names = []
    for argument in call.args:
        if isinstance(argument, ast.Name):
            names.append(argument.id)
        elif not isinstance(argument, ast.Constant):
            return None
    return names or None


def _overwrite(module: ModuleFacts, options: Options, statement: ast.stmt) -> Harm | None:
    """``t.mul_(...)`` or ``t[:n] *= ...`` after an operation that saved ``t``, its result."""
    write = module.writes.get(statement)
    if write is None or write.name is None:
        return None
    message = _harm(module, write)
    if message is None:
        return None
    from ..rewrite.out_of_place import clone_first, new_value

    change = new_value(module, write, [write.name.id])
    if change is not None:
        return Harm("TRN403", message, statement, change)
    fixes = clone_first(module, write, options, [write.name.id])
    return Harm("TRN403", message, statement, fixes=fixes)


def _harm(module: ModuleFacts, write: Write) -> str | None:
    assert write.name is not None
    text = module.source(write.target)
    saver = _saver(module, write.statement, write.name.id) or _made_by(module, write)
    if saver is not None:
        return (
            f"`{text}` is overwritten in place, but `{saver}` saved it for backward, which raises."
        )
    for passed in in_callers(module, write):
        saver = _made_by(module, passed)
        if saver is not None and not gradient_unwanted(module, passed.statement):
            return (
                f"`{text}` is overwritten in place, but line {passed.statement.lineno} passes what "
                f"`{saver}` saved for backward, which raises."
            )
    return None


def _made_by(module: ModuleFacts, write: Write) -> str | None:
    """The operation that made what is overwritten, and saved it."""
    function = module.function(write.statement)
    if function is None or write.name is None:
        return None
    found = roots(module, module.flow(function), write.name.id, write.statement)
    return next(filter(None, (saved_result(module, root.definition) for root in found)), None)


def _saver(module: ModuleFacts, statement: ast.stmt, name: str) -> str | None:
    """The operation that wrote its result into ``name``, and saved it: ``torch.tanh(x, out=x)``."""
    block = module.block(statement)
    for previous in reversed(block[: block.index(statement)]):
        call = previous.value if isinstance(previous, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            text = module.source(call.func)
            out = next((k.value for k in call.keywords if k.arg == "out"), None)
            if isinstance(out, ast.Name) and out.id == name:
                return text if call.func.attr in RESULT_SAVED else None
            if isinstance(call.func.value, ast.Name) and call.func.value.id == name:
                if call.func.attr.endswith("_"):
                    return text if call.func.attr[:-1] in RESULT_SAVED else None
        elif any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(previous)):
            return None
    return None
