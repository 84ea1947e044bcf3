"""Findings as JSON, and as annotations for GitHub."""

from __future__ import annotations

import json
from typing import Any

from ..findings import Finding
from ..source import Positions


def as_json(finding: Finding, positions: Positions, strategy: str) -> dict[str, Any]:
    """One finding; every place counts lines and columns from 1, ends are exclusive.

    ``safety`` is that of the fix by ``strategy``, null where there is none.
    """
    chosen = finding.fix(strategy)
    return {
        "path": finding.path,
        "line": finding.line,
        "column": finding.column,
        "end_line": finding.end_line,
        "end_column": finding.end_column,
        "rule": finding.rule,
        "message": finding.message,
        "related": [
            {"path": r.path, "line": r.line, "column": r.column, "message": r.message}
            for r in finding.related
        ],
        "safety": chosen.safety.value if chosen else None,
        "fixes": {
            strategy: {
                "title": fix.title,
                "safety": fix.safety.value,
                "look_at": fix.look_at,
                "edits": [
                    {
                        **_place(positions, edit.start, ""),
                        **_place(positions, edit.end, "end_"),
                        "text": edit.text,
                    }
                    for edit in fix.edits
                ],
            }
            for strategy, fix in finding.fixes.items()
        },
    }


def _place(positions: Positions, offset: int, prefix: str) -> dict[str, int]:
    line, column = positions.at(offset)
    return {f"{prefix}line": line, f"{prefix}column": column}


def dump(objects: list[dict[str, Any]]) -> str:
    """A JSON array."""
    return json.dumps(objects, indent=2)


def as_github(finding: Finding) -> str:
    """A workflow command that shows the finding at its place in a pull request."""
    properties = {
        "title": finding.rule,
        "file": finding.path,
        "line": finding.line,
        "col": finding.column,
        "endLine": finding.end_line,
        "endColumn": finding.end_column,
    }
    listed = ",".join(f"{key}={_escaped(str(value), ':,')}" for key, value in properties.items())
    return f"::error {listed}::{_escaped(finding.message, '')}"


def _escaped(text: str, also: str) -> str:
    for character in "%\r\n" + also:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
