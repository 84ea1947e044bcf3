"""TRN401: writes into caches that outlive the training step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.cached import Write, as_write, cache_write, dumped
from ...facts.guards import gradient_unwanted
from ...facts.layers import is_module_class
from ...facts.made_for_serving import made_for_serving
from ...facts.names import last_name, parameters
from ...facts.stops import is_named_so, keeps_value
from ...findings import STRATEGIES, Finding, Fix, Proven, Safety
from .. import Rule, is_wanted, not_rewritten
from .detaching import detaching, unless_read, why_strided
from .read_back import (
    concatenate,
    hand_out_fresh,
    hands_out,
    read_behind,
    read_later,
    reads_after,
    runs,
    write_apart,
)
from .words import NEEDLES as NEEDLES

if TYPE_CHECKING:
    from ...engine import Options
    from ...facts.module import FunctionNode

RULES = (
    Rule(
        code="TRN401",
        name="cache-keeps-graph",
        summary="Keys and values are written into a cache, and their graph with them.",
        why=(
            "The cache outlives the step. Its first write makes it part of the graph, so the "
            "second step's backward walks into the first one's, whose buffers are freed: 'Trying "
            "to backward through the graph a second time'. Where the cache is filled by a kernel "
            "or under no_grad instead, attention reads values without a gradient."
        ),
        before="""\
import torch
from torch import nn


class Attention(nn.Module):
    def forward(self, xq, xk, xv, start):
        end = start + xk.shape[1]
        self.cache_k[:, start:end] = xk
        self.cache_v[:, start:end] = xv
        keys = self.cache_k[:, :end]
        values = self.cache_v[:, :end]
        return (xq @ keys.mT).softmax(-1) @ values
""",
        after="""\
import torch
from torch import nn


class Attention(nn.Module):
    def forward(self, xq, xk, xv, start):
        end = start + xk.shape[1]
        if torch.is_grad_enabled() and (xk.requires_grad or xv.requires_grad):
            self.cache_k[:, start:end] = xk.detach()
            self.cache_v[:, start:end] = xv.detach()
            keys = torch.cat((self.cache_k[:, :start], xk), dim=1)
            values = torch.cat((self.cache_v[:, :start], xv), dim=1)
        else:
            self.cache_k[:, start:end] = xk
            self.cache_v[:, start:end] = xv
            keys = self.cache_k[:, :end]
            values = self.cache_v[:, :end]
        return (xq @ keys.mT).softmax(-1) @ values
""",
    ),
)
_NOT_A_STEP = re.compile(
    r"__init__$|reset(_parameters)?$|clear$|_*mock_|(\w*_)?(load|restore|offload|swap|migrate)(_|$)|"
    r"\w*_(from_flat|cpu_copy)"
)
_OTHER_ARRAYS = re.compile(
    r"^[ \t]*(?:import|from) (?:mlx|jax|flax|tensorflow|keras|paddle|mindspore)\b", re.MULTILINE
)
"""Imports of libraries whose arrays have no ``detach``, where torch is not imported as well."""


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    if _OTHER_ARRAYS.search(module.usual) and "import torch" not in module.usual:
        return
    writes: dict[FunctionNode, list[Write]] = {}
    for statement in module.statements:
        if not isinstance(statement, (ast.Assign, ast.Expr)):
            continue
        write = cache_write(module, statement)
        function = module.function(statement) if write is not None else None
        if write is None or function is None or _NOT_A_STEP.match(function.name):
            continue
        if not is_wanted(module, options, "TRN401", statement):
            continue
        cls = module.method_class(function)
        if cls is not None and not is_module_class(module, cls) and made_for_serving(module, cls):
            continue
        if _is_copy(module, function, write) or gradient_unwanted(module, statement):
            continue
        if not _begins_anew(module, write):
            writes.setdefault(function, []).append(write)
    for function, found in writes.items():
        yield from _judge(module, options, function, found)


def proven(module: ModuleFacts, place: Proven) -> Iterator[Finding]:
    """What is kept on a line for the next step with its graph, by whatever name.

    Whether what others read of it has to learn shows a run of what this makes.
    """
    from ...engine import Options

    if place.kind != "kept":
        return
    for statement in module.statements:
        if not statement.lineno <= place.line <= (statement.end_lineno or 0):
            continue
        write = as_write(statement)
        if write is None or last_name(getattr(write.value, "func", write.value)) == "detach":
            continue
        fix, reason = read_fresh(module, Options(), write)
        message = _keeps(module, write)
        if fix is None and reason:
            yield module.finding("TRN401", message + not_rewritten(reason), statement)
            continue
        fix = replace(fix or detaching(module, write), safety=Safety.SAFE, look_at="")
        yield module.finding("TRN401", message, statement, dict.fromkeys(STRATEGIES, fix))


def _keeps(module: ModuleFacts, write: Write) -> str:
    text, value = module.source(write.target), module.source(write.value)
    return (
        f"`{text}` keeps the graph of `{value}` after the step: the next backward walks into it "
        "and fails."
    )


def _judge(
    module: ModuleFacts, options: Options, function: ast.AST, writes: Sequence[Write]
) -> Iterator[Finding]:
    pairs = [(write, reads_after(module, write)) for write in writes]
    concatenated = [(w, r) for w, r in pairs if r]
    fixes: dict[ast.AST, dict[str, Fix]] = {}
    for run in runs(module, concatenated):
        result = concatenate(module, options, run)
        for write, _ in run:
            fixes[write.statement] = result
    unsolved = [w for w, _ in pairs if not fixes.get(w.statement) and hands_out(module, w)]
    fixes.update(write_apart(module, options, unsolved))
    handed_out = hand_out_fresh(module, options, function, [w for w, _ in pairs])
    reasons: dict[ast.AST, str] = {}
    for write in (w for w, _ in pairs if not fixes.get(w.statement)):
        fix, reasons[write.statement] = read_fresh(module, options, write)
        if fix is not None and (fix.safety is Safety.SAFE or write.statement not in handed_out):
            fixes[write.statement] = dict.fromkeys(STRATEGIES, fix)
        elif write.statement in handed_out:
            fixes[write.statement] = handed_out[write.statement]
    for write, reads in pairs:
        text = module.source(write.target)
        value = module.source(write.value)
        later = read_later(module, function, write) or read_behind(module, function, write)
        if reads or write in unsolved or later:
            message = (
                f"`{text}` is written and read back: the cache keeps the graph of `{value}`, and "
                "the next step's backward walks into it and fails."
            )
            own = fixes.get(write.statement)
            if not own:
                message += not_rewritten(reasons[write.statement] or _UNKNOWN)
            else:
                kept = write.statement, write.base
                own = {s: unless_read(module, *kept, fix, own=False) for s, fix in own.items()}
                if strided := why_strided(module, write.statement):
                    own = {s: fix.unsafe(strided) for s, fix in own.items()}
            yield module.finding("TRN401", message, write.statement, own)
        else:
            message = _keeps(module, write)
            plain = dict.fromkeys(STRATEGIES, detaching(module, write))
            yield module.finding("TRN401", message, write.statement, plain)


_UNKNOWN = (
    "where a gradient is wanted, what is read has to be put together from the old values and the "
    "fresh ones, and how does not show"
)


def read_fresh(module: ModuleFacts, options: Options, write: Write) -> tuple[Fix | None, str]:
    """The fix by which a method reads what it has written into an attribute, or why it has none."""
    from ...rewrite.fresh_reads import CannotRead, fresh_reads

    function = module.function(write.statement)
    if function is None or not _outlives(module, function, write.base):
        return None, ""
    try:
        return fresh_reads(module, options, function, write), ""
    except CannotRead as reason:
        return None, str(reason)


def _outlives(module: ModuleFacts, function: FunctionNode, base: ast.expr) -> bool:
    """Whether a cache is an attribute of an object, a global of the file, or given."""
    if isinstance(base, ast.Attribute):
        return isinstance(base.value, ast.Name)
    if not isinstance(base, ast.Name):
        return False
    given = {argument.arg for argument in parameters(function.args)}
    return base.id in given or not module.flow(function).is_local(base.id)


def ends_on_purpose(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether a gradient that ends at a statement is likely to be stopped on purpose.

    What is kept for the next call is to have no history, but what the same call reads of it is: a
    cache without gradients, of which the call can read fresh values instead.
    """
    if is_named_so(module, statement):
        return True
    return keeps_value(statement) and not is_read_back(module, statement)


def is_read_back(module: ModuleFacts, statement: ast.stmt) -> bool:
    """Whether a call reads what a statement of it caches, and can read fresh values instead."""
    from ...engine import Options

    write = as_write(statement, unseen=True)
    fix = read_fresh(module, Options(), write)[0] if write is not None else None
    return fix is not None and fix.safety is Safety.SAFE


_COPIES = frozenset("clone index_select gather repeat repeat_interleave cat stack".split())


def _is_copy(module: ModuleFacts, function: FunctionNode, write: Write) -> bool:
    """Whether what is written is a copy that the call made: ``rows = cache.index_select(0, i)``.

    Where that is written back, the cache gets its graph.
    """
    if not isinstance(write.base, ast.Name):
        return False
    made = module.flow(function).only_definition(write.base.id, write.statement)
    value = made.value if made is not None and made.index is None else None
    return isinstance(value, ast.Call) and last_name(value.func) in _COPIES


def _begins_anew(module: ModuleFacts, write: Write) -> bool:
    """Whether the cache was detached before: ``cache["k"] = cache["k"].detach()``.

    Then it has the graph of one step alone, which that step goes back through.
    """
    inside: ast.AST = write.statement
    for around in module.ancestors(write.statement):
        if isinstance(inside, ast.stmt):
            block = module.block(inside)
            if any(_detaches(before, write) for before in block[: block.index(inside)]):
                return True
        if isinstance(around, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        inside = around
    return False


def _detaches(statement: ast.stmt, write: Write) -> bool:
    """Whether a statement puts the cache without its graph in its place, whatever is asked."""
    if isinstance(statement, ast.If):
        return all(
            any(_detaches(each, write) for each in arm)
            for arm in (statement.body, statement.orelse)
        )
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    value = statement.value
    while isinstance(value, (ast.Subscript, ast.Call)):
        if isinstance(value, ast.Subscript):
            value = value.value
        elif not isinstance(value.func, ast.Attribute):
            return False
        elif value.func.attr == "detach":
            kept = dumped(value.func.value) == write.entry
            return kept and dumped(statement.targets[0]) == write.entry
        else:
            value = value.func.value
    return False
