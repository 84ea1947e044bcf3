"""Write what the documents quote: ``python docs/build.py``.

In the documents that quote, a fenced block whose first line starts with ``$ `` is a dialogue: each
such line is run and what it prints put below it.  A block below a comment ``<!-- $ command -->``
holds what that command prints.  rules.md comes from the rules.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from trainify.passes import Rule, all_rules

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
QUOTING = (ROOT / "README.md", DOCS / "command_line.md", DOCS / "python.md")

_BLOCK = re.compile(
    r"^(?:(?P<comment><!-- \$ (?P<command>[^\n]*) -->)\n)?```(?P<kind>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def documents() -> dict[Path, str]:
    """Every document that quotes something, as it should be."""
    quoting = {path: with_outputs(path.read_text(encoding="utf-8")) for path in QUOTING}
    return {**quoting, DOCS / "rules.md": rules_page()}


def with_outputs(text: str) -> str:
    return _BLOCK.sub(_renewed, text)


def _renewed(block: re.Match[str]) -> str:
    body = block["body"]
    if block["command"]:
        body = output(block["command"])
    elif body.startswith("$ "):
        commands = [line for line in body.splitlines() if line.startswith("$ ")]
        body = "".join(f"{line}\n{output(line[2:])}" for line in commands)
    head = f"{block['comment']}\n" if block["comment"] else ""
    return f"{head}```{block['kind']}\n{body}```"


def output(command: str) -> str:
    """What a command prints when it is run in the repository, by this Python."""
    program, _, filters = command.partition(" | ")
    printed = run(program)
    if filters:
        printed = subprocess.run(
            ["sh", "-c", filters], input=printed, stdout=subprocess.PIPE, encoding="utf-8"
        ).stdout
    return printed if printed.endswith("\n") or not printed else f"{printed}\n"


@functools.cache
def run(program: str) -> str:
    """What a program prints; it runs once, however many blocks quote parts of that."""
    python = f'"{sys.executable}"'
    functions = f'python() {{ {python} "$@"; }}; trainify() {{ {python} -m trainify "$@"; }}; '
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("FORCE_COLOR", "TRAINIFY_DEBUG")
    }
    path = [str(ROOT / "src"), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    environment["PYTHONIOENCODING"] = "utf-8"
    done = subprocess.run(
        ["sh", "-c", functions + program],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    if "Traceback (most recent call last)" in done.stdout:
        raise RuntimeError(f"{program}\n{done.stdout}")
    return done.stdout


# -- pages ----------------------------------------------------------------------------------------

_WRITTEN = "<!-- Written by docs/build.py. -->"


def rules_page() -> str:
    rules = all_rules().values()
    index = [f"* [{rule.code}](#{_anchor(rule)}) {rule.name}" for rule in rules]
    parts = [_WRITTEN, "# Rules", "\n".join(index)]
    for rule in rules:
        parts += _rule(rule)
    return "\n\n".join(parts) + "\n"


def _anchor(rule: Rule) -> str:
    return f"{rule.code}-{rule.name}".lower()


def _rule(rule: Rule) -> Iterator[str]:
    yield f"## {rule.code} {rule.name}"
    yield rule.summary
    yield rule.why.strip()
    if rule.before:
        yield f"```python\n{rule.before.rstrip()}\n```"
    if rule.after:
        yield "becomes"
        yield f"```python\n{rule.after.rstrip()}\n```"


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
