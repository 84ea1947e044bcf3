"""The text of an expression as a syntax tree."""

from __future__ import annotations

import ast


def parsed(text: str) -> ast.expr:
    """The expression that stands in brackets in a file, so that it may go over several lines."""
    return ast.parse(f"({text}\n)", mode="eval").body
