"""A scope that comes off, with what only ran because of it: repaired along, or said."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...facts import ModuleFacts
from ...facts.grad_mode import Scope, own_nodes
from ...facts.memo import once
from ...facts.without_graph import Hindrance, hindrances, run_without
from ...findings import STRATEGIES, Edit, Finding, Fix, OverlapError, Safety, apply_edits

if TYPE_CHECKING:
    from ...engine import Options
    from ...facts.module import FunctionNode


def still_runs(
    module: ModuleFacts,
    fix: Fix,
    functions: Sequence[FunctionNode | ast.Module],
    scope: Scope,
    parting: bool = False,
) -> Fix:
    """A fix that takes ``scope`` off some functions, with what else has to change in them.

    What becomes an array is detached where that costs no gradient, and a weight is still written
    without one.  Where that is not enough the fix is unsafe, and names the line.  ``parting``: the
    fix leaves in a ``with`` what has to stay, and has looked at what is written there itself.
    """
    from ...rewrite.without_graph import repaired

    edits: list[Edit] = list(fix.edits)
    doubts: list[str] = []
    block = scope.owner if isinstance(scope.owner, (ast.With, ast.AsyncWith)) else None
    for each in hindrances(module, functions, scope, fix.safety is Safety.SAFE):
        inside = block is not None and block in each.home.ancestors(each.node)
        writes = each.kind in ("weight", "hidden")
        if writes and inside and parting:
            continue
        repair = [] if writes and inside else repaired(module, each)
        if repair and _go_together(module, [*edits, *repair]):
            edits += (edit for edit in repair if edit not in edits)
        elif each.sure or each.matters:
            doubts.append(_doubt(module, each))
    if doubts:
        fix = fix.unsafe("; ".join(dict.fromkeys(doubts)))
    return replace(fix, edits=tuple(edits))


def raises_without(
    module: ModuleFacts, fix: Fix, functions: Sequence[FunctionNode], scope: Scope, options: Options
) -> Fix:
    """The same for what is reported beside: writes that raise, and have no safe fix themselves."""
    if fix.safety is not Safety.SAFE or options.callers_decide or options.training_decides:
        return fix
    every = replace(options, select=(), ignore=(), plan=True)
    for home, function in run_without(module, functions, scope):
        for found in _raising(home, every) if _writes(home, function) else ():
            first, last = home.start(function), home.end(function)
            if first <= found.start < last and not _has_safe_fix(found, options):
                place = f"line {found.line}" if home is module else f"{home.path}:{found.line}"
                text = home.text[found.start : found.end].partition("\n")[0]
                return fix.unsafe(f"see to `{text}` in {place} first: without the scope it raises")
    return fix


_RAISING = ("TRN402", "TRN405", "TRN406")


@once
def _raising(module: ModuleFacts, options: Options) -> list[Finding]:
    """What a file overwrites in place where forward then raises."""
    from .. import inplace, leaves, split_views

    each = (inplace, leaves, split_views)
    return [found for of in each for found in of.find(module, options) if found.rule in _RAISING]


def _writes(module: ModuleFacts, function: FunctionNode) -> bool:
    """Whether a function writes into tensors in place."""
    own = [node for node in own_nodes(function) if isinstance(node, ast.stmt)]
    return any(node in module.writes for node in own) or "out=" in module.source(function)


def _has_safe_fix(finding: Finding, options: Options) -> bool:
    fixes = [finding.fix(strategy) for strategy in STRATEGIES]
    return options.selects(finding.rule) and all(f and f.safety is Safety.SAFE for f in fixes)


def _go_together(module: ModuleFacts, edits: Sequence[Edit]) -> bool:
    try:
        apply_edits(module.text, edits)
    except OverlapError:
        return False
    return True


def _doubt(module: ModuleFacts, hindrance: Hindrance) -> str:
    """What happens to a line without the scope."""
    home, node, tensor = hindrance.home, hindrance.node, hindrance.tensor
    here = home is module
    place = f"line {node.lineno}" if here else f"{home.path}:{node.lineno}"
    text = home.source(node).partition("\n")[0]
    name = home.source(tensor).partition("\n")[0]
    if hindrance.kind == "hidden":
        return f"`{text}` in {place} is not seen by backward, which gives wrong gradients then"
    if hindrance.kind == "weight":
        return f"`{text}` in {place} writes into a weight, which raises without the scope"
    has = "has" if hindrance.sure else "may have"
    lost = ""
    if hindrance.kind in ("array", "copy") and hindrance.matters:
        lost = ", and its result may be a part of the loss"
    return f"`{text}` in {place} raises without the scope: `{name}` {has} a graph then{lost}"
