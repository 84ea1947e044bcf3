"""A text that is being edited has the tree that it would have if it were parsed as a whole."""

from __future__ import annotations

import ast
import random
import re
import warnings
from pathlib import Path

import pytest

from trainify.engine import Check
from trainify.lsp.reparse import Parser
from trainify.source import SourceError

CASES = Path(__file__).parents[1] / "cases"
TEXT = '''\
#!/usr/bin/env python
"""About this file."""
import torch; import os

x = 1; y = [
    2,
]
@torch.compile
@decorated("""
""")
def f(x):
    if x:
        return f"{x}"

class A:
    b = 1
z = \\
    3
# the end
'''
PIECES = (
    *"()[]{}:;,\\\n\t #'\"@=x1.\f\r",
    *('"""', "\\\n", "else:", "if x:", "    ", "x = 1\n", "x; y", "def f(): pass\n", "@d\n"),
    *("f'{x}'", "é", "async ", "case 1:", "\n\n", "try:", "class A:\n  pass\n", "return"),
)


def outcome(parse, text: str) -> str:
    try:
        return ast.dump(parse(text, "a.py"), include_attributes=True)
    except (SyntaxError, ValueError) as error:
        return f"{type(error)} in line {getattr(error, 'lineno', 0)}"


def test_the_same_tree() -> None:
    chance = random.Random(0)
    texts = [TEXT, *(path.read_text() for path in sorted(CASES.glob("*/before.py"))[:20])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for text in texts:
            parser, good = Parser(), text
            for _ in range(200 if text is TEXT else 10):
                found = outcome(parser.parse, text)
                assert found == outcome(ast.parse, text), text
                good = good if found.startswith("<") else text
                start = chance.randrange(len(good) + 1)
                end = min(start + chance.choice((0, 0, 1, 5, 30)), len(good))
                new = chance.choice(PIECES)
                if chance.random() < 0.6:  # most edits leave the number of lines
                    new += "\n" * (good[start:end].count("\n") - new.count("\n"))
                text = good[:start] + new + good[end:]


@pytest.mark.parametrize(
    ("old", "new", "parsed"),
    [
        ("return f", "return  f", 1),
        ("@decorated", "@described", 1),
        ("# the end", "# so it ends", 1),  # goes with the last statement
        ("import os", "import sys", 2),  # two on a line
        ("y = [", "y = {1:", None),  # does not parse by itself, nor as a whole
        ("#!/usr", "#! /usr", 0),
        ("b = 1\n", "b = 1\n\n", 8),  # what is behind it has moved
        ("z = \\\n    3", "z = 3\n#", 1),
    ],
)
def test_no_more_is_parsed_than_what_has_changed(old: str, new: str, parsed: int | None) -> None:
    parser = Parser()
    before = {id(statement) for statement in parser.parse(TEXT, "a.py").body}
    text = TEXT.replace(old, new)
    if parsed is None:
        with pytest.raises(SyntaxError):
            parser.parse(text, "a.py")
        return
    after = [id(statement) for statement in parser.parse(text, "a.py").body]
    assert len([each for each in after if each not in before]) == parsed


WORD = re.compile(r"[A-Za-z_]\w*")


def test_the_same_findings() -> None:
    """What is known of statements that stay is known of them in the next text as well."""
    chance = random.Random(0)
    differing = 0
    for path in sorted(CASES.glob("*/before.py"))[::3]:
        parser, good, last = Parser(), path.read_text(), None
        text = good
        for _ in range(8):
            try:
                found = Check(text, "a.py", parse=parser.module).findings(plan=False)
            except SourceError:
                pass
            else:
                assert found == Check(text, "a.py").findings(plan=False), text
                differing += found != last
                good, last = text, found
            words = list(WORD.finditer(good))
            old, new = chance.choice(words), chance.choice(words)[0]
            text = good[: old.start()] + new + good[old.end() :]
    assert differing > 30
