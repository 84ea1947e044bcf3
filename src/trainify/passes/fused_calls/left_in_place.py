"""Kernels that go on writing in place under a scope, and what that means for who takes it away.

Under a scope a loss has no graph, and backward raises.  Without it backward runs, and takes the
kernel for the identity: every gradient before it is wrong, and nothing says so.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...facts import ModuleFacts, parse_module
from ...facts.reached import reached
from ...findings import STRATEGIES, Finding, Fix, Safety, apply_edits
from .calls import Ambiguous, match
from .words import words_for

if TYPE_CHECKING:
    from ...engine import Options

_RULE = "TRN102"
_NOT_UNDERSTOOD = "TRN103"


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
            look_at = (
                f"see to `{first.op or 'the kernel'}` in {place} first: it writes in place, and "
                "without the scope backward runs, with wrong gradients"
            )
            fixes[strategy] = replace(fix, safety=Safety.UNSAFE, look_at=look_at)
    return fixes


def _is_safe(finding: Finding, strategy: str, options: Options) -> bool:
    fix = finding.fix(strategy)
    return options.selects(_RULE) and fix is not None and fix.safety is Safety.SAFE


def _left(
    module: ModuleFacts, fix: Fix, covered: Sequence[ast.AST], options: Options
) -> Iterator[Finding]:
    """What is found of calls that write in place, in a file as it is after the fix."""
    calls: dict[ModuleFacts, set[str]] = {}
    words = words_for(options.ops)
    for home, call in reached(module, covered):
        if words.may_call(home.text) and _may_write_in_place(home, call, options):
            calls.setdefault(home, set()).add(_plain(home.source(call)))
    for home, texts in calls.items():
        after = home
        if home is module:
            after = parse_module(apply_edits(home.text, fix.edits), home.path, home.project)
        yield from _in_place(after, texts, options)


def _in_place(module: ModuleFacts, texts: Collection[str], options: Options) -> Iterator[Finding]:
    from . import find

    every = replace(options, select=(), ignore=(), plan=False)

    def found(options: Options) -> list[Finding]:
        return [
            finding
            for finding in find(module, options)
            if finding.rule in (_RULE, _NOT_UNDERSTOOD)
            and _plain(module.text[finding.start : finding.end]) in texts
        ]

    if found(every):
        yield from found(replace(every, plan=True))


def _may_write_in_place(module: ModuleFacts, call: ast.Call, options: Options) -> bool:
    """Whether a call is of an op that overwrites what it reads."""
    try:
        matched = match(module, call, options)
    except Ambiguous:
        return True
    if matched is None or matched[0].equivalent is None:
        return False
    read = {n.id for n in ast.walk(_value(matched[0].equivalent)) if isinstance(n, ast.Name)}
    return any(argument.name in read for argument in matched[0].signature.written)


def _value(equivalent: str) -> ast.AST:
    statement = ast.parse(equivalent).body[0]
    return getattr(statement, "value", statement)


def _plain(text: str) -> str:
    """A call without its layout, which may change with a scope."""
    return "".join(text.split())
