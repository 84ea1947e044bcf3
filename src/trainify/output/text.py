"""Findings for people."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import click

from ..engine import Options
from ..findings import Edit, Finding, Fix, Safety, apply_edits
from ..passes import NOT_REWRITTEN
from ..source import Positions, split_lines
from .diff import opcodes

_MOST_LINES = 6
_MOST_COLUMNS = 160
_TAB = "    "
_CONTEXT = 3
"""Lines behind an edit that say which of several equal lines it adds."""


def place(finding: Finding) -> str:
    """``path:line:column``, which terminals and editors turn into a link."""
    return visible(f"{finding.path}:{finding.line}:{finding.column}")


def without_repetition(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Findings of one file, of which each release is named by the first that it matters for.

    That nothing says which release is used is said once, whatever the releases.
    """
    said: set[str] = set()
    for finding in findings:
        message = finding.message
        for sentence in _RELEASE.finditer(message):
            range_, reason = sentence["range"], sentence["reason"]
            kept = "" if range_ in said else f" (As in {range_}{'' if reason in said else reason}.)"
            message = message.replace(sentence[0], kept)
            said |= {range_, reason}
        yield replace(finding, message=message) if message != finding.message else finding


_RELEASE = re.compile(r" \(As in (?P<range>[^():]+?)(?P<reason>(: nothing says|, says )[^()]+)\.\)")
"""The sentence of :func:`trainify.passes.fused_calls.messages.release_of`."""


def finding_block(finding: Finding, text: str, lines: Sequence[str], strategy: str) -> str:
    """The finding, the source it is about, and what its fix would change."""
    fix = finding.fix(strategy)
    changes = list(_changes(text, fix)) if fix else []
    last = min(finding.end_line, finding.line + _MOST_LINES - 1)
    gutter = len(str(max([last, *(number for number, _, _ in changes)])))
    bar = click.style("|", fg="blue")
    empty = f"{'':{gutter}} {bar}"

    rule = click.style(finding.rule, fg="red", bold=True)
    block = [f"{click.style(place(finding), bold=True)}: {rule} {finding.message}", empty]
    for number in range(finding.line, last + 1):
        line = lines[number - 1]
        start = finding.column - 1 if number == finding.line else len(line) - len(line.lstrip())
        end = finding.end_column - 1 if number == finding.end_line else len(line)
        source, carets = _underlined(line, start, end)
        block.append(f"{number:{gutter}} {bar} {source}")
        block.append(f"{empty} {click.style(carets, fg='red', bold=True)}")
    if last < finding.end_line:
        block.append(f"{empty} ... and {_count(finding.end_line - last, 'more line')}")
    if fix:
        sign = click.style("=", fg="blue")
        block += [empty, *(f"{'':{gutter}} {sign} {line}" for line in _about(fix))]
        for number, sign, line in changes:
            changed = f"{sign} {visible(line[:_MOST_COLUMNS])}".rstrip()
            colour = "green" if sign == "+" else "red"
            block.append(f"{number:{gutter}} {click.style(changed, fg=colour)}")
    return "\n".join(block)


def _underlined(line: str, start: int, end: int) -> tuple[str, str]:
    """A line and what goes under it; of a very long line, the part where the finding is."""
    first = max(start - _MOST_COLUMNS // 4, 0) if len(line) > _MOST_COLUMNS else 0
    last = first + _MOST_COLUMNS
    before = ("…" if first else "") + visible(line[first:start])
    marked = visible(line[start : min(end, last)])
    after = visible(line[min(end, last) : last]) + ("…" if last < len(line) else "")
    return f"{before}{marked}{after}".rstrip(), " " * _width(before) + "^" * max(_width(marked), 1)


def _changes(text: str, fix: Fix) -> Iterator[tuple[int, str, str]]:
    """Line number, sign and content of each line that ``fix`` takes away or adds.

    Only lines that an edit touches are compared: of all lines of a large file, for each of many
    fixes, that would take minutes.
    """
    positions, moved = _positions(text), 0
    for first, last, edits in _touched(positions, fix.edits):
        begin, end = positions.start(first), positions.end(last)
        within = (replace(e, start=e.start - begin, end=e.end - begin) for e in edits)
        old = split_lines(text[begin:end])
        new = split_lines(apply_edits(text[begin:end], within))
        for tag, a, b, c, d in opcodes(old, new):
            if tag != "equal":
                yield from ((first + number, "-", old[number]) for number in range(a, b))
                yield from ((first + moved + number, "+", new[number]) for number in range(c, d))
        moved += len(new) - len(old)


_positions = lru_cache(maxsize=1)(Positions)


def _touched(
    positions: Positions, edits: Iterable[Edit]
) -> Iterator[tuple[int, int, Sequence[Edit]]]:
    """The first and the last line of each region that edits touch, and these."""
    first = last = 0
    together: list[Edit] = []
    for edit in sorted(dict.fromkeys(edits), key=lambda e: (e.start, e.end)):
        begin, end = positions.at(edit.start)[0], positions.at(edit.end)[0]
        end = min(end + _CONTEXT, positions.lines)
        if together and begin > last:
            yield first, last, together
            together = []
        first, last = (first, max(last, end)) if together else (begin, end)
        together.append(edit)
    if together:
        yield first, last, together


def _about(fix: Fix) -> Iterator[str]:
    kind = {Safety.SAFE: "fix", Safety.UNSAFE: "unsafe fix", Safety.DISPLAY: "suggestion"}
    yield f"{click.style(kind[fix.safety], fg='cyan')}: {fix.title}"
    if fix.look_at:
        yield f"{click.style('look at', fg='cyan')}: {fix.look_at}"


def reason_not_fixed(finding: Finding, options: Options) -> str:
    """Why ``fix`` left this finding alone."""
    fix = finding.fix(options.strategy)
    if fix is None:
        others = ", ".join(f"--strategy {strategy}" for strategy in finding.fixes)
        reason = finding.message.partition(NOT_REWRITTEN)[2] or finding.message
        reason = reason.rstrip(".")
        return f"{reason}; there is one with {others}" if others else reason
    if fix.safety is Safety.DISPLAY:
        return "only a suggestion"
    if fix.safety is Safety.UNSAFE and not options.unsafe:
        return f"needs --unsafe; look at: {fix.look_at}" if fix.look_at else "needs --unsafe"
    return "overlaps another fix"


def found_summary(findings: Sequence[Finding], options: Options, files: int) -> str:
    """The line that ends the output of ``check``."""
    if not findings:
        return f"Found no gradient cuts in {_count(files, 'file')}."
    fixes = [fix for finding in findings if (fix := finding.fix(options.strategy))]
    safe = sum(fix.safety is Safety.SAFE for fix in fixes)
    unsafe = sum(fix.safety is Safety.UNSAFE for fix in fixes)
    if options.unsafe:
        safe, unsafe = safe + unsafe, 0
    command = "`trainify fix --unsafe`" if options.unsafe else "`trainify fix`"
    parts = [f"{safe} fixable with {command}"] if safe else []
    if unsafe:
        parts.append(f"{unsafe} with `--unsafe`" if safe else f"{unsafe} fixable with `--unsafe`")
    head = f"Found {cuts(findings)}"
    return f"{head}; {', '.join(parts)}." if parts else f"{head}."


def cuts(findings: Iterable[Finding]) -> str:
    """``3 gradient cuts in 2 files``."""
    listed = list(findings)
    files = len({finding.path for finding in listed})
    return f"{_count(len(listed), 'gradient cut')} in {_count(files, 'file')}"


def statistics(findings: Iterable[Finding], names: dict[str, str]) -> list[str]:
    """How often each rule was found, the most frequent first."""
    counts = Counter(finding.rule for finding in findings)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    width = len(str(ranked[0][1])) if ranked else 0
    return [f"{count:{width}}  {rule}  {names.get(rule, '')}".rstrip() for rule, count in ranked]


def visible(text: str) -> str:
    """``text`` with tabs as blanks, and without characters that a terminal would act on."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else _TAB if c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def _width(text: str) -> int:
    """Columns that a terminal takes for ``text``."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
