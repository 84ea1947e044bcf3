"""The same code spelled otherwise: what a file is looked through for before it is parsed."""

from __future__ import annotations

import ast
import io
import itertools
import tokenize
from collections.abc import Callable, Iterator

import pytest

from tests.each import case
from trainify import check_text
from trainify.facts.spelling import usual
from trainify.passes import all_rules

Edit = tuple[tuple[int, int], int, str]
"""Where the old text begins, where it ends in that line, and the new one."""


def respelled(text: str, edits: Callable[[list[tokenize.TokenInfo]], Iterator[Edit]]) -> str:
    lines = text.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    for (line, begin), end, new in sorted(edits(tokens), reverse=True):
        lines[line - 1] = lines[line - 1][:begin] + new + lines[line - 1][end:]
    return "".join(lines)


def tight(tokens: list[tokenize.TokenInfo]) -> Iterator[Edit]:
    """``x=y``, but for arguments by name, which most people spell so."""
    depth = 0
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        depth += (token.string in "([{") - (token.string in ")]}") if token.string else 0
        if token.string in ("=", "+=", "-=", "*=", "/=") and depth == 0:
            yield (token.start[0], before.end[1]), after.start[1], token.string


def inner(tokens: list[tokenize.TokenInfo]) -> Iterator[Edit]:
    """``f( x )``."""
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if token.string == "(" and after.string != ")" and after.type != tokenize.NL:
            yield token.start, token.end[1], "( "
        if token.string == ")" and before.string != "(" and before.end == token.start:
            yield token.start, token.end[1], " )"


def apart(tokens: list[tokenize.TokenInfo]) -> Iterator[Edit]:
    """``f (x)``."""
    for before, token in itertools.pairwise(tokens):
        if token.string == "(" and before.type == tokenize.NAME and before.end == token.start:
            yield token.start, token.end[1], " ("


SPELLINGS: dict[str, Callable[[str], str]] = {
    "x=y": lambda text: respelled(text, tight),
    "f( x )": lambda text: respelled(text, inner),
    "f (x)": lambda text: respelled(text, apart),
    "\\r\\n": lambda text: text.replace("\n", "\r\n"),
    "\\r": lambda text: text.replace("\n", "\r"),
}


def rules_in(text: str) -> list[str]:
    return sorted(finding.rule for finding in check_text(text))


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)
def test_every_rule_finds_it(spell: Callable[[str], str]) -> None:
    for rule in all_rules().values():
        text = spell(rule.before)
        assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(rule.before))
        if "def " in text:  # which is what shows that parentheses stand apart
            with case(rule.code):
                assert rules_in(text) == rules_in(rule.before)


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)
def test_the_usual_spelling_is_found_again(spell: Callable[[str], str]) -> None:
    text = """\
class A(nn.Module):
    def forward(self, x, a=1, *, b=(2, 3)):
        self.x[0], y = x, x
        self.y: Tensor = f(x, a=b)
        if (x == y) or (a <= 3) or not (x):
            return (x - y).detach().mean()
        self.x[1:] -= y  # "x=y" and f( x )
        x @= y
"""
    assert usual(text.encode()) is usual(text.encode())
    code = "\n".join(usual(spell(text).encode()).decode().splitlines())
    assert ast.dump(ast.parse(code)) == ast.dump(ast.parse(text))
    for part in ("self.x[0], y = x", "= f(x, a=b)", ".detach().mean()", "self.x[1:] -= y"):
        assert part in code


def test_what_most_files_have_stays() -> None:
    text = b"def f(x, a=1, *b):\n    g(\n        x=x,\n        y=y\n    )\n    # (see there) a=b\n"
    assert usual(text) == text
