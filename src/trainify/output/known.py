"""What a patch says of the code in it: how it is known to be right."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ..catalog import FusedOp, lookup
from ..catalog.layers import FusedLayer, lookup_layer
from ..engine import Options
from ..findings import Finding, Fix
from ..passes import all_rules
from ..passes.fused_calls.messages import release_of

_WIDTH = 98
_MOST_TITLES = 3


def comment(applied: Sequence[Finding], options: Options, verified: bool) -> list[str]:
    """What stands for each op and how that is known, then the fixes of other kinds.

    Where the ops were ``verified``, only the others.
    """
    ops: Counter[tuple[str, FusedOp | FusedLayer]] = Counter()
    others: list[tuple[Finding, Fix]] = []
    for finding in applied:
        fix = finding.fix(options.strategy)
        assert fix is not None
        row = _row(finding, fix, options)
        if row is None:
            others.append((finding, fix))
        else:
            ops[finding.op, row] += 1
    said = (
        [] if verified else ["This changes source text only: nothing was run on this machine.", ""]
    )
    if ops and not verified:
        said += ["What takes the place of each op, and how that is known:", ""]
        for (name, row), calls in ops.items():
            said += _op(name, row, calls, options)
        said += ["", *_WHAT_WORDS_MEAN, ""]
    if others:
        said += ["What else is changed, and why that is right:" if ops else "What is changed:", ""]
        said += [*_others(others), ""]
    return said


_WHAT_WORDS_MEAN = (
    '"gradcheck" and "kernel" are what a run of trainify\'s own proof has recorded, elsewhere: the',
    "equivalent's gradient against finite differences in float64, its values against a kernel that",
    "ran. `trainify fix --verify -o FILE` does both here, wherever a kernel can run.",
)


def _row(finding: Finding, fix: Fix, options: Options) -> FusedOp | FusedLayer | None:
    """What stands in the catalog for the op that a fix replaces."""
    op = lookup(finding.op, options.ops, options.releases) if finding.op else None
    if op is not None and op.equivalent is not None:
        return op if op.name in fix.title else None
    layer = lookup_layer(finding.op, options.releases) if finding.op else None
    return layer if layer is not None and layer.twin in fix.title else None


def _op(name: str, row: FusedOp | FusedLayer, calls: int, options: Options) -> Iterator[str]:
    times = f" ({calls} calls)" if calls > 1 else ""
    if isinstance(row, FusedLayer):
        yield from _wrapped(f"{name}{times}: its own {row.twin}", 2)
        known = [f"the layer's source, {row.source}, says so", "no gradcheck", "no kernel ran"]
    else:
        yield from _wrapped(f"{name}{times}: {row.equivalent}", 2)
        known = list(_known(row, options))
    release = release_of(row, options).strip(" ()").rstrip(".")
    release = release[:1].lower() + release[1:]
    yield from _wrapped("; ".join([*known, *([release] if release else [])]), 6)


def _known(op: FusedOp, options: Options) -> Iterator[str]:
    from ..verify.record import recorded

    if op in options.ops:
        yield "your own row says so; nobody checked it"
        return
    yield f"read in {op.source}"
    kernel = recorded(op)
    yield "no gradcheck" if kernel is None else "gradcheck ok"
    yield f"kernel ok: {kernel}" if kernel else "no kernel ran"


def _others(fixes: Iterable[tuple[Finding, Fix]]) -> Iterator[str]:
    """A paragraph for each rule and what is to be looked at."""
    names = {code: rule.name for code, rule in all_rules().items()}
    groups: dict[tuple[str, str], Counter[str]] = {}
    for finding, fix in sorted(fixes, key=lambda each: each[0].rule):
        groups.setdefault((finding.rule, fix.look_at), Counter())[fix.title] += 1
    for (rule, look_at), titles in groups.items():
        listed = [title for title, _ in titles.most_common(_MOST_TITLES)]
        listed += [f"{len(titles) - len(listed)} more"] * (len(titles) > len(listed))
        times = f" ({n} times)" if (n := titles.total()) > 1 else ""
        yield from _wrapped(f"{rule} {names.get(rule, '')}{times}: {'; '.join(listed)}", 2)
        yield from _wrapped(f"look at: {look_at}" if look_at else "same meaning by construction", 6)


def _wrapped(text: str, indent: int) -> list[str]:
    first, rest = " " * indent, " " * (indent + 2)
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
