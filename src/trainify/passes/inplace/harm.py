"""A write that autograd does not allow."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...findings import Fix

if TYPE_CHECKING:
    from ...rewrite.branch import Change


@dataclass(frozen=True, eq=False)
class Harm:
    """A statement that writes where autograd does not allow it, and what could stand there."""

    rule: str
    message: str
    statement: ast.stmt
    operation: ast.expr | None = None
    """The operation that autograd has to go back through."""
    change: Change | None = None
    fixes: Mapping[str, Fix] = field(default_factory=dict)
