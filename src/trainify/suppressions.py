"""``# trainify: ignore`` and ``# trainify: stop-grad`` comments."""

from __future__ import annotations

import io
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .findings import Finding

_DIRECTIVE = re.compile(
    r"#\s*trainify:\s*(?P<kind>ignore-file|ignore|stop-grad)\s*(?:\[(?P<codes>[^\]]*)\])?\s*(?:$|[\s#:;,.-])"
)
_EVERY_RULE = ("",)  # a prefix of each code
_STOPS = ("TRN1", "TRN2", "TRN3")  # what a gradient that is stopped on purpose may look like


def comments(text: str) -> list[tuple[int, str]]:
    """Line number and text of every comment."""
    return [(line, comment) for line, _, comment in _comments(text)]


def _comments(text: str) -> list[tuple[int, int, str]]:
    """Line, column (from 0, in characters) and text of every comment."""
    import tokenize

    found: list[tuple[int, int, str]] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
            if token.type == tokenize.COMMENT:
                found.append((*token.start, token.string.rstrip()))
    except (tokenize.TokenError, SyntaxError):  # what parses but does not tokenize is very rare
        pass
    return found


@dataclass(frozen=True, slots=True)
class Directive:
    """One comment that silences: what kind it is, where it stands, and which codes it names."""

    kind: str
    line: int
    column: int
    codes: tuple[str, ...]


def directives(text: str) -> Iterator[Directive]:
    """The directives in ``text``; one without codes silences every rule, whose prefix is empty."""
    if "trainify:" not in text:
        return
    for line, column, comment in _comments(text):
        for match in _DIRECTIVE.finditer(comment):
            listed = match["codes"]
            codes: tuple[str, ...] = _STOPS if match["kind"] == "stop-grad" else _EVERY_RULE
            if listed is not None:
                codes = tuple(code.strip() for code in listed.split(",") if code.strip())
            yield Directive(match["kind"], line, column + match.start(), codes)


@dataclass(frozen=True, slots=True)
class Suppressions:
    """Which rule codes are silenced in the whole file and on each line."""

    in_file: tuple[str, ...] = ()
    on_line: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def cover(self, finding: Finding) -> bool:
        """Whether ``finding`` is silenced: for its file, or on any line that it touches."""
        return self.silence(finding.rule, finding.line, finding.end_line)

    def silence(self, rule: str, first: int, last: int) -> bool:
        """Whether a rule is silenced for something on these lines, the last one included."""
        if rule.startswith(self.in_file):
            return True
        lines = range(first, last + 1)
        return any(rule.startswith(codes) for line, codes in self.on_line.items() if line in lines)


def suppressions(text: str) -> Suppressions:
    """What the directives in ``text`` silence."""
    in_file: tuple[str, ...] = ()
    on_line: defaultdict[int, tuple[str, ...]] = defaultdict(tuple)
    for each in directives(text):
        if each.kind == "ignore-file":
            in_file += each.codes
        else:
            on_line[each.line] += each.codes
    return Suppressions(in_file, dict(on_line))


def allows(line: str) -> bool:
    """Whether a comment on this line of source silences anything."""
    return "trainify:" in line and _DIRECTIVE.search(line) is not None


# -- writing one ----------------------------------------------------------------------------------


def silenced(text: str, finding: Finding) -> str | None:
    """``text`` with a comment that silences a finding, on the first of its lines that can have one.

    None where no line can: all of them end in a backslash or inside of a string.
    """
    lines = _LINE.findall(text)
    for number in range(finding.line, finding.end_line + 1):
        line = lines[number - 1]
        content = line.rstrip("\r\n")
        changed = _with_code(content, finding.rule) + line[len(content) :]
        new = "".join([*lines[: number - 1], changed, *lines[number:]])
        if suppressions(new).cover(finding) and _same_code(text, new):
            return new
    return None


_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$")


def _with_code(line: str, code: str) -> str:
    """A line with a code added to what it silences."""
    for match in _DIRECTIVE.finditer(line):
        if match["kind"] == "ignore" and match["codes"] is not None:
            codes = [*filter(None, map(str.strip, match["codes"].split(","))), code]
            return f"{line[: match.start('codes')]}{', '.join(codes)}{line[match.end('codes') :]}"
    return f"{line.rstrip()}  # trainify: ignore[{code}]"


def _same_code(old: str, new: str) -> bool:
    """Whether two texts differ in comments and blanks only."""
    import ast

    try:
        return ast.dump(ast.parse(old)) == ast.dump(ast.parse(new))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
