"""``# trainify: ignore`` comments."""

from __future__ import annotations

import io
import re
from collections import defaultdict
from dataclasses import dataclass, field

from .findings import Finding

_DIRECTIVE = re.compile(
    r"#\s*trainify:\s*(?P<kind>ignore-file|ignore)\s*(?:\[(?P<codes>[^\]]*)\])?\s*(?:$|[\s#:;,.-])"
)
_EVERY_RULE = ("",)  # a prefix of each code


def comments(text: str) -> list[tuple[int, str]]:
    """Line number and text of every comment."""
    import tokenize

    found: list[tuple[int, str]] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
            if token.type == tokenize.COMMENT:
                found.append((token.start[0], token.string.rstrip()))
    except (tokenize.TokenError, SyntaxError):  # what parses but does not tokenize is very rare
        pass
    return found


@dataclass(frozen=True, slots=True)
class Suppressions:
    """Which rule codes are silenced in the whole file and on each line."""

    in_file: tuple[str, ...] = ()
    on_line: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def cover(self, finding: Finding) -> bool:
        """Whether ``finding`` is silenced: for its file, or on any line that it touches."""
        if finding.rule.startswith(self.in_file):
            return True
        return any(
            finding.rule.startswith(self.on_line.get(line, ()))
            for line in range(finding.line, finding.end_line + 1)
        )


def suppressions(text: str) -> Suppressions:
    """Read the directives in ``text``; a bare ``ignore`` silences every rule."""
    if "trainify:" not in text:
        return Suppressions()
    in_file: tuple[str, ...] = ()
    on_line: defaultdict[int, tuple[str, ...]] = defaultdict(tuple)
    for line, comment in comments(text):
        for match in _DIRECTIVE.finditer(comment):
            listed = match["codes"]
            codes = (
                _EVERY_RULE
                if listed is None
                else tuple(code.strip() for code in listed.split(",") if code.strip())
            )
            if match["kind"] == "ignore-file":
                in_file += codes
            else:
                on_line[line] += codes
    return Suppressions(in_file, dict(on_line))
