"""TRN402, TRN403: in-place writes that autograd refuses, or that destroy what backward needs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.guards import gradient_unwanted, serves_backward
from ...facts.overwriting import without_asking
from ...facts.rows import overwriting_rows
from ...facts.training import trains
from ...facts.writes import in_network
from ...findings import STRATEGIES, Edit, Finding, Fix, Related
from .. import Rule, is_wanted, not_rewritten
from .harm import Harm
from .out_arguments import out_argument
from .results import chained, overwrite, quantizes, unless_zero
from .words import NEEDLES as NEEDLES

if TYPE_CHECKING:
    from ...engine import Options
    from ...rewrite.branch import Change

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
            "tanh, sigmoid, relu, exp, softmax and their like save their result for backward. "
            "Overwriting it, with a method, an operator, `inplace=True` or a module that was made "
            "so, makes backward raise: one of the variables needed for gradient computation has "
            "been modified by an inplace operation. What a convolution, a linear layer or a norm "
            "returns is saved by nobody: relu may overwrite that."
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


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    yield from _rows(module)
    found: list[Harm] = []
    for statement in module.statements:
        if not isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign, ast.Return)):
            continue
        hit = (
            out_argument(module, statement)
            or overwrite(module, options, statement)
            or chained(module, statement)
        )
        function = module.function(statement)
        if hit is None or gradient_unwanted(module, statement):
            continue
        if not in_network(module, function) and not _is_trained(module, hit):
            continue
        if function is not None and hit.rule == "TRN403" and quantizes(module, function):
            continue
        if function is None or not serves_backward(module, function):
            if not _comes_second(module, found, hit):
                found.append(_behind_clone(module, found, hit))
    if not found:
        return
    from ...rewrite import branch

    vocabulary = branch.Vocabulary(module)
    changes: dict[ast.stmt, Change] = {}
    for harm in found:
        if not is_wanted(module, options, harm.rule, harm.statement):
            continue
        if harm.change is not None and harm.change.lines:
            changes.setdefault(harm.change.first, harm.change)
    fixes: dict[ast.stmt, Mapping[str, Fix]] = {}
    reasons: dict[ast.stmt, str] = {}
    for run in branch.group(module, list(changes.values())):
        try:
            both = branch.fixes(module, vocabulary, run, options.flag)
        except branch.CannotPlace as error:
            reasons.update((change.first, not_rewritten(error)) for change in run)
            continue
        both["attach"] = both["flag"]  # there is no kernel to keep
        fixes.update((change.first, both) for change in run)
    for harm in found:
        known = fixes.get(harm.change.first, {}) if harm.change is not None else harm.fixes
        message = harm.message
        if harm.change is not None and not known:
            message += reasons.get(harm.change.first, "")
        yield module.finding(harm.rule, message, harm.statement, known, _saved(module, harm))


def _saved(module: ModuleFacts, harm: Harm) -> list[Related]:
    """Where the result was made that is overwritten, if that is elsewhere."""
    made = harm.operation if harm.rule == "TRN403" else None
    if made is None or module.statement(made) is harm.statement:
        return []
    return [module.related("This result is saved for backward.", made)]


def _comes_second(module: ModuleFacts, found: list[Harm], hit: Harm) -> bool:
    """Whether a call overwrites a name that has a new value from an earlier harm's fix on."""
    write = module.writes.get(hit.statement)
    if write is None or write.call is None or write.name is None:
        return False
    return any(
        earlier.operation is hit.operation is not None
        and (first := module.writes.get(earlier.statement)) is not None
        and first.name is not None
        and first.name.id == write.name.id
        and earlier.change is not None
        and earlier.change.first is earlier.statement
        for earlier in found
    )


def _behind_clone(module: ModuleFacts, found: list[Harm], hit: Harm) -> Harm:
    """The harm, with an earlier one's fix where that leaves a clone to this write as well."""
    write = module.writes.get(hit.statement)
    if not hit.fixes or write is None or write.name is None:
        return hit
    block = module.block(hit.statement)
    for earlier in found:
        if earlier.fixes and earlier.operation is hit.operation and earlier.statement in block:
            first = module.writes[earlier.statement]
            if first.name is not None and first.name.id == write.name.id:
                return replace(hit, fixes=earlier.fixes)
    return hit


def _rows(module: ModuleFacts) -> Iterator[Finding]:
    """``nn.Sequential(nn.Sigmoid(), nn.Dropout(0.1, inplace=True))``."""
    for saver, writer in overwriting_rows(module):
        message = (
            f"`{module.source(writer)}` overwrites what `{module.source(saver)}` saved for "
            f"backward, which raises{unless_zero(module, writer)}."
        )
        text = without_asking(module, writer)
        fixes = {}
        if text is not None:
            edit = Edit(module.start(writer), module.end(writer), text)
            fixes = dict.fromkeys(STRATEGIES, Fix("Do not overwrite the result", (edit,)))
        related = module.related("This result is saved for backward.", saver)
        yield module.finding("TRN403", message, writer, fixes, [related])


def _is_trained(module: ModuleFacts, harm: Harm) -> bool:
    return harm.operation is not None and trains(module, harm.operation)
