"""The two verbs of the pass tests: "becomes this" and "stays as it is"."""

from __future__ import annotations

import textwrap

from trainify.engine import Options, check_text, fix_text
from trainify.findings import Finding, select_fixes


def fix(before: str, **options: object) -> str:
    return fix_text(textwrap.dedent(before), "m.py", Options(**options)).text  # type: ignore[arg-type]


def becomes(before: str, after: str, **options: object) -> None:
    """``before`` is fixed to exactly ``after``, and ``after`` has nothing left to fix."""
    how = Options(**options)  # type: ignore[arg-type]
    fixed = fix_text(textwrap.dedent(before), "m.py", how)
    assert fixed.text == textwrap.dedent(after)
    # What fixing ``after`` would begin with, and end with.
    assert not select_fixes(fixed.remaining, how.strategy, unsafe=how.unsafe)


def stays(text: str, **options: object) -> None:
    """There is nothing to say about ``text``."""
    found = findings(text, **options)
    assert not found, [f"{f.line}: {f.rule} {f.message}" for f in found]


def findings(text: str, **options: object) -> list[Finding]:
    return check_text(textwrap.dedent(text), "m.py", Options(**options))  # type: ignore[arg-type]


def rules(text: str, **options: object) -> list[str]:
    return [finding.rule for finding in findings(text, **options)]
