"""Code actions: a fix, all fixes of a rule, all fixes, and silence.

An action is offered with its title only; what it changes is computed when the client asks for it,
or at once for clients that never would.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lsprotocol import types

from ..engine import Options
from ..findings import STRATEGIES, Finding, Fix, Safety, apply_edits, select_fixes
from .documents import Source
from .judging import Judgement

FIX_ALL = f"{types.CodeActionKind.SourceFixAll.value}.trainify"
QUICK_FIX = types.CodeActionKind.QuickFix.value
KINDS = (types.CodeActionKind.QuickFix, FIX_ALL)


@dataclass(frozen=True)
class Request:
    """What is asked for: actions on a stretch of a source, of some kinds."""

    start: int
    end: int
    only: Sequence[str] | None
    diagnostics: Sequence[types.Diagnostic]

    def wants(self, kind: str) -> bool:
        """Whether a kind is asked for: ``source`` asks for ``source.fixAll.trainify`` too."""
        return not self.only or any(kind == o or kind.startswith(f"{o}.") for o in self.only)


def offered(
    source: Source,
    judgement: Judgement,
    request: Request,
    options: Options,
    disabled: bool,
) -> Iterator[types.CodeAction]:
    """The actions on what was found, without their edits; ``disabled`` also shows suggestions."""
    findings = judgement.findings
    here = [f for f in findings if f.start <= request.end and request.start <= f.end]
    if request.wants(QUICK_FIX):
        for finding in here:
            yield from _fixes(source, finding, request, options, disabled)
        for code in dict.fromkeys(finding.rule for finding in here):
            alike = [f for f in findings if f.rule == code]
            if len(alike) > 1 and select_fixes(alike, options.strategy):
                data = {"do": "rule", "rule": code}
                yield _action(source, f"Fix all {code} in this file", QUICK_FIX, data)
        for finding in here:
            data = {"do": "silence", **_identity(finding)}
            title = f"Silence {finding.rule} on this line"
            yield _action(source, title, QUICK_FIX, data, finding, request)
    if request.wants(FIX_ALL) and select_fixes(findings, options.strategy):
        yield _action(source, "Fix all gradient cuts in this file", FIX_ALL, {"do": "all"})


def _fixes(
    source: Source, finding: Finding, request: Request, options: Options, disabled: bool
) -> Iterator[types.CodeAction]:
    """An action for each different fix of a finding, that of the strategy first."""
    strategies = sorted(STRATEGIES, key=lambda strategy: strategy != options.strategy)
    seen: list[Fix] = []
    for strategy in strategies:
        fix = finding.fix(strategy)
        if fix is None or fix in seen:
            continue
        seen.append(fix)
        data = {"do": "fix", "strategy": strategy, **_identity(finding)}
        action = _action(source, _title(fix), QUICK_FIX, data, finding, request)
        if fix.safety is Safety.DISPLAY:
            if not disabled:
                continue
            action.disabled = types.CodeActionDisabled("only a suggestion: change it by hand")
        action.is_preferred = strategy == options.strategy and fix.safety is Safety.SAFE
        yield action


def _title(fix: Fix) -> str:
    if fix.safety is not Safety.UNSAFE:
        return fix.title
    return (
        f"{fix.title} (unsafe: look at {fix.look_at})" if fix.look_at else f"{fix.title} (unsafe)"
    )


def _action(
    source: Source,
    title: str,
    kind: str,
    data: dict[str, Any],
    finding: Finding | None = None,
    request: Request | None = None,
) -> types.CodeAction:
    data = {"uri": source.uri, "revision": source.revision, **data}
    shown = []
    if finding is not None and request is not None:
        shown = [
            d for d in request.diagnostics if d.code == finding.rule and _at(source, finding, d)
        ]
    return types.CodeAction(title, kind, diagnostics=shown or None, data=data)


def _at(source: Source, finding: Finding, diagnostic: types.Diagnostic) -> bool:
    place = source.place(finding.start, finding.start)
    return place is not None and place[0].lines.position(place[1]) == diagnostic.range.start


def _identity(finding: Finding) -> dict[str, Any]:
    return {"rule": finding.rule, "start": finding.start, "end": finding.end}


# -- resolving ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """The text that an action makes, and what a person should look at first."""

    text: str
    look_at: str = ""


Ask = Callable[..., Awaitable[Any]]
"""Has the judging process do something."""


async def change(
    data: dict[str, Any],
    source: Source,
    findings: Sequence[Finding],
    options: Options,
    roots: tuple[str, ...],
    ask: Ask,
) -> Change | None:
    """What an action makes of a source with these findings; None where it no longer applies."""
    text = source.text
    if data["do"] in ("all", "rule"):
        if data["do"] == "rule":
            options = replace(options, select=(data["rule"],))
        fixed = await ask("fixed", source.path, text, options, roots)
        return None if fixed is None else Change(fixed)
    finding = next((f for f in findings if _is(f, data)), None)
    if finding is None:
        return None
    if data["do"] == "silence":
        quiet = await ask("silenced", text, finding)
        return None if quiet is None else Change(quiet)
    fix = finding.fix(data["strategy"])
    if fix is None or fix.safety is Safety.DISPLAY:
        return None
    look_at = (fix.look_at or fix.title) if fix.safety is Safety.UNSAFE else ""
    return Change(apply_edits(text, fix.edits), look_at)


def _is(finding: Finding, data: dict[str, Any]) -> bool:
    return _identity(finding) == {key: data[key] for key in ("rule", "start", "end")}
