"""Kernels that go on writing in place under a scope, and what that means for who takes it away.

Under a scope a loss has no graph, and backward raises.  Without it backward runs, and takes the
kernel for the identity: every gradient before it is wrong, and nothing says so.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...facts import ModuleFacts, parse_module
from ...facts.memo import once
from ...facts.reached import reached
from ...findings import STRATEGIES, Finding, Fix, Safety, apply_edits
from .calls import Ambiguous, match
from .words import words_for

if TYPE_CHECKING:
    from ...engine import Options

_RULES = ("TRN102", "TRN103")


def held_back(
    module: ModuleFacts, fix: Fix, covered: Sequence[ast.AST], options: Options
) -> dict[str, Fix]:
    """A fix that takes a scope off what it ``covered``, by strategy.

    It is unsafe while something there writes in place and has no safe fix itself.  A model in
    memory is not judged by this: there kernels get a backward by other ways, and an audit decides.
    """
    fixes = dict.fromkeys(STRATEGIES, fix)
    if fix.safety is not Safety.SAFE or options.callers_decide or options.training_decides:
        return fixes
    left = list(_left(module, fix, covered, options))
    for strategy in STRATEGIES:
        first = next((each for each in left if not _is_safe(each, strategy, options)), None)
        if first is not None:
            place = f"line {first.line}" if first.path == module.path else first.path
            if first.path != module.path:
                place += f":{first.line}"
            fixes[strategy] = fix.unsafe(
                f"see to `{first.op or 'the kernel'}` in {place} first: it writes in place, and "
                "without the scope backward runs, with wrong gradients"
            )
    return fixes


def _is_safe(finding: Finding, strategy: str, options: Options) -> bool:
    fix = finding.fix(strategy)
    return options.selects(finding.rule) and fix is not None and fix.safety is Safety.SAFE


def _left(
    module: ModuleFacts, fix: Fix, covered: Sequence[ast.AST], options: Options
) -> Iterator[Finding]:
    """What is found of calls that write in place, in a file as it is after the fix."""
    every = replace(options, select=(), ignore=(), plan=True, others=True)
    words = words_for(options.ops)
    hidden: set[str] = set()
    for home, call in reached(module, covered):
        if not words.may_call(home.text) or not _may_write(home, call, options):
            continue
        found = _found(home, every).get(home.start(call))
        if found is not None:
            yield found
        elif home is module:  # under the scope itself, where nothing is found yet
            hidden.add(_plain(home.source(call)))
    if hidden:
        after = parse_module(apply_edits(module.text, fix.edits), module.path, module.project)
        for found in _found(after, every).values():
            if _plain(after.text[found.start : found.end]) in hidden:
                yield found


@once
def _found(module: ModuleFacts, options: Options) -> dict[int, Finding]:
    """What is found of the kernels of a file that may write in place, by where it stands."""
    from . import find

    return {found.start: found for found in find(module, options) if found.rule in _RULES}


def _may_write(module: ModuleFacts, call: ast.Call, options: Options) -> bool:
    """Whether a call may be of an op that overwrites what it reads."""
    try:
        matched = match(module, call, options)
    except Ambiguous:
        return True
    if matched is None or matched[0].equivalent is None:
        return False
    return not matched[0].reads.isdisjoint(a.name for a in matched[0].signature.written)


def _plain(text: str) -> str:
    """A call without its layout, which may change with a scope."""
    return "".join(text.split())
