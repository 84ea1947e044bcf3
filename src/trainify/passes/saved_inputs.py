"""TRN404: in-place writes into what an operation before them needs for backward."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts, places
from ..facts.destroyed import destroyed, destroyed_by_next_call
from ..facts.guards import gradient_unwanted
from ..facts.kept_inputs import destroyed_attribute
from ..facts.saved import Saver
from ..facts.training import reaches_result, trains
from ..facts.walk import walk
from ..facts.writes import UNNOTICED, Write, in_callers, in_network
from ..findings import Finding
from . import Look, Needle, Rule, is_wanted, not_rewritten

if TYPE_CHECKING:
    from ..engine import Options

RULES = (
    Rule(
        code="TRN404",
        name="in-place-on-saved-input",
        summary="A tensor that an operation saved for backward is overwritten in place.",
        why=(
            "Powers, norms, maxima, products with something that has a gradient, and layers with "
            "weights save their input for backward. Overwriting it, in the next statement or in "
            "the next turn of a loop, makes backward raise: one of the variables needed for "
            "gradient computation has been modified by an inplace operation. x.float() of a "
            "float32 tensor is that tensor."
        ),
        before="""\
import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        x = x.float()
        variance = x.pow(2).mean(dim=-1, keepdim=True)
        x.mul_(torch.rsqrt(variance + self.eps))
        return x * self.weight
""",
        after="""\
import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        x = x.float()
        variance = x.pow(2).mean(dim=-1, keepdim=True)
        if torch.is_grad_enabled() and x.requires_grad:
            x = x * torch.rsqrt(variance + self.eps)
        else:
            x.mul_(torch.rsqrt(variance + self.eps))
        return x * self.weight
""",
    ),
)
NEEDLES: tuple[Needle, ...] = (Look(places.SIGNS, places.overwrites_saved_input),)


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    harms: list[tuple[Write, Saver]] = []
    messages: list[str] = []
    for statement, write in module.writes.items():
        if not is_wanted(module, options, "TRN404", statement):
            continue
        own = write.name is None
        found = _own(module, write) if own else _harm(module, write)
        if found is None or (not own and gradient_unwanted(module, statement)):
            continue
        saver, message = found
        if not reaches_result(module, saver.node):
            continue
        if in_network(module, module.function(statement)) or trains(module, saver.node):
            harms.append((write, saver))
            messages.append(message)
    if not harms:
        return
    from ..rewrite.out_of_place import fixes_for

    fixes = fixes_for(module, options, harms)
    for (write, saver), message, each in zip(harms, messages, fixes, strict=True):
        related = module.related(f"`{saver.op}` saves it here.", saver.node)
        if each.reason:
            message += not_rewritten(each.reason)
        yield module.finding("TRN404", message, write.statement, each.fixes, (related,))


def _own(module: ModuleFacts, write: Write) -> tuple[Saver, str] | None:
    """The same of an attribute of the object's own, ``self.scale``."""
    saver = destroyed_attribute(module, write)
    if saver is None:
        return None
    return saver, (
        f"`{module.source(write.target)}` is overwritten in place, but `{saver.op}` saved it for "
        f"backward, which {UNNOTICED if write.is_unnoticed else 'raises'}."
    )


def _harm(module: ModuleFacts, write: Write) -> tuple[Saver, str] | None:
    """The operation that saved what is overwritten, and how to say so."""
    text = module.source(write.target)
    raises = UNNOTICED if write.is_unnoticed else "raises"
    saver = destroyed(module, write)
    if saver is not None:
        later = saver.node.lineno > write.statement.lineno
        when = "in the turn before " if later else ""
        operand = module.source(saver.operand)
        where = f" where `{operand}` is no copy" if _converts(saver.operand) else ""
        return saver, (
            f"`{text}` is overwritten in place, but `{saver.op}` {when}saved it for backward, "
            f"which {UNNOTICED if write.is_unnoticed else f'raises{where}'}."
        )
    saver = destroyed_by_next_call(module, write)
    if saver is not None:
        return saver, (
            f"`{text}` is overwritten by each call, but `{saver.op}` of the call before saved it "
            f"for backward, which {raises}."
        )
    for passed in in_callers(module, write):
        saver = destroyed(module, passed)
        if saver is not None and not gradient_unwanted(module, passed.statement):
            line = passed.statement.lineno
            return saver, (
                f"`{text}` is overwritten in place, but line {line} passes what `{saver.op}` saved "
                f"for backward, which {raises}."
            )
    return None


def _converts(node: ast.expr) -> bool:
    """Whether a value is a tensor itself in one dtype, and a copy in another."""
    return any(
        isinstance(n, ast.Attribute) and n.attr in ("float", "to", "half", "bfloat16", "double")
        for n in walk(node)
    )
