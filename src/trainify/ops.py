"""``trainify ops``: list and search the catalog."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import click

from .catalog import FusedOp, by_library, unverified


@dataclass(frozen=True)
class Entry:
    """One line of the list.

    ``confidence`` is *tested* where the equivalent is held against its definition and against
    finite differences, *researched* where the op's source was read, *unverified* where only its
    name and signature were, and *yours* where the configuration adds the op.
    """

    name: str
    names: tuple[str, ...]
    library: str
    family: str
    equivalent: str | None
    note: str
    releases: str
    source: str
    confidence: str
    schema: str

    @property
    def becomes(self) -> str:
        return self.equivalent or f"({self.note})"


@cache
def _families() -> dict[str, str]:
    """The module of each reference function, read without torch.

    ``rope_style`` is of the family of ``rope``: where there is a module by the first word, that.
    """
    found: dict[str, str] = {}
    paths = sorted((Path(__file__).parent / "reference").glob("*.py"))
    modules = {path.stem for path in paths}
    for path in paths:
        first = path.stem.partition("_")[0]
        for name in re.findall(r"^def (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            found[name] = first if first in modules else path.stem
    return found


def family(op: FusedOp) -> str:
    """What kind of op it is: the module of the reference function that stands for it."""
    called = re.findall(r"\b(\w+)\(", op.equivalent or "")
    return op.family or next((f for c in called if (f := _families().get(c))), "misc")


def entries(own: Sequence[FusedOp] = ()) -> Iterator[Entry]:
    """Everything that is known: one's own ops, library by library, kernels not verified last."""
    for op in own:
        yield replace(_entry(op.names[0].partition(".")[0], op), confidence="yours")
    for library, rows in by_library().items():
        for op in rows:
            yield _entry(library, op)
    yield from _listed()


def _entry(library: str, op: FusedOp) -> Entry:
    return Entry(
        name=op.names[0],
        names=op.names,
        library=library,
        family=family(op),
        equivalent=op.equivalent,
        note=op.note,
        releases=op.since,
        source=op.source,
        confidence="tested" if op.equivalent else "researched",
        schema=op.schema,
    )


def _listed() -> Iterator[Entry]:
    from .catalog.differentiable import NAMES

    for name in sorted(NAMES):
        yield _bare(name, "", "it has its own backward", "researched")
    for name, kind in unverified().items():
        yield _bare(name, kind, "no backward is known", "unverified")


def _bare(name: str, kind: str, note: str, confidence: str) -> Entry:
    library = name.split(".")[2 if name.startswith("torch.ops.") else 0]
    return Entry(name, (name,), library, kind, None, note, "", "", confidence, "")


def search(
    pattern: str | None, library: str | None, kind: str | None, own: Sequence[FusedOp] = ()
) -> list[Entry]:
    """The entries of which a name holds the pattern, of this library and family.

    Unverified kernels are many and left out unless something is asked for.
    """
    asked = pattern or library or kind
    return [
        entry
        for entry in entries(own)
        if (asked or entry.confidence != "unverified")
        and (not library or library in (entry.library, entry.name.partition(".")[0]))
        and (not kind or kind == entry.family)
        and (not pattern or any(_matches(name, pattern) for name in entry.names))
    ]


def _matches(name: str, pattern: str) -> bool:
    if any(c in pattern for c in "*?"):
        return fnmatchcase(name, pattern)
    return pattern.lower() in name.lower()


@click.command("ops")
@click.argument("pattern", required=False)
@click.option("--library", metavar="NAME", help="Only ops of this library.")
@click.option("--family", "kind", metavar="NAME", help="Only ops of this family: norm, rope, ...")
@click.option(
    "--format",
    "style",
    type=click.Choice(("text", "json")),
    default="text",
    help="How the list is shown.",
)
@click.pass_context
def command(
    ctx: click.Context, pattern: str | None, library: str | None, kind: str | None, style: str
) -> None:
    """List the fused ops that are known, and what each becomes.

    PATTERN is part of a name, or a glob.  The full name of an op shows it in full.  Ops that the
    configuration of the current folder adds come first.
    """
    from .config import ConfigError, load_config

    try:
        own = load_config(["."]).options.ops
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    found = search(pattern, library, kind, own)
    exact = [entry for entry in found if pattern in entry.names]
    if style == "json":
        from .output.json import dump

        click.echo(dump([asdict(entry) for entry in exact or found]))
    elif exact:
        click.echo("\n\n".join(map(in_full, exact)))
    elif found:
        for line in table(found):
            click.echo(line)
    if not found:
        click.echo("trainify: no op matches", err=True)
        ctx.exit(1)


def table(found: Sequence[Entry]) -> Iterator[str]:
    """A line for each entry, in columns."""
    rows = [("op", "library", "becomes", "releases", "confidence", "source")]
    rows += [
        (e.name, e.library, e.becomes, e.releases or "all", e.confidence, e.source) for e in found
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()


def in_full(entry: Entry) -> str:
    """An op with its schema, its equivalent and the text of the reference functions."""
    lines = [entry.name]
    lines += [f"  also       {name}" for name in entry.names if name != entry.name]
    about = {
        "library": entry.library,
        "family": entry.family,
        "releases": entry.releases or "all",
        "source": entry.source,
        "confidence": entry.confidence,
    }
    lines += [f"  {key:<10} {value}" for key, value in about.items() if value]
    if entry.schema:
        lines += ["", f"  {entry.schema}"]
    if entry.equivalent is None:
        return "\n".join([*lines, "", f"Not rewritten: {entry.note}."])
    lines += ["", "becomes", "", f"  {entry.equivalent}"]
    return "\n".join([*lines, *("\n" + text for text in reference_texts(entry.equivalent))])


def reference_texts(equivalent: str) -> Iterator[str]:
    """The functions that an equivalent calls, and those that these call, in the order of need."""
    from .rewrite.expressions import code
    from .rewrite.specialize import reference

    waiting, seen = re.findall(r"\b(\w+)\(", equivalent), set()
    while waiting:
        name = waiting.pop(0)
        function = reference(name)
        if function is None or name in seen:
            continue
        seen.add(name)
        yield code(function.node).strip("\n")
        waiting += function.calls


__all__ = ["Entry", "command", "entries", "family", "reference_texts", "search"]
