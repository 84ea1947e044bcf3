"""TRN001: comments that silence a rule which does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..facts import ModuleFacts
from ..findings import Finding
from ..suppressions import directives
from . import Needle, Rule, all_rules

if TYPE_CHECKING:
    from ..engine import Options

RULES = (
    Rule(
        code="TRN001",
        name="unknown-code",
        summary="A comment silences a rule that does not exist.",
        why=(
            "It silences nothing: the code is mistyped, or belongs to a rule that is gone. What "
            "it was meant for is reported, or will be one day, and the comment says otherwise."
        ),
        before="""\
scale = weight.data.abs().max()  # trainify: ignore[TRN9999]
""",
        after="",
    ),
)

NEEDLES: tuple[Needle, ...] = (b"trainify: ignore", b"trainify:ignore")


def find(module: ModuleFacts, options: Options) -> Iterator[Finding]:
    for each in directives(module.text):
        for code in each.codes:
            if not any(known.startswith(code) for known in all_rules()):
                start = module.line_starts[each.line - 1]
                start = module.text.index(code, start + each.column)
                line, column = module.position(start)
                yield Finding(
                    path=module.path,
                    rule="TRN001",
                    message=f"no rule has the code `{code}`: this comment does not silence it.",
                    start=start,
                    end=start + len(code),
                    line=line,
                    column=column,
                    end_line=line,
                    end_column=column + len(code),
                )
