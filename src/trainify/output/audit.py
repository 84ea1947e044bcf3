"""The report of an audit, as a table."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ..live.audit.report import Cause, Cut, Report, patterns
from .text import visible

_SHOWN = 3


def table(report: Report, root: str | None = None) -> str:
    """What an audit found: one block for each cut, then the parameters, then what is not proven.

    Paths are shown relative to ``root``, by default the current folder.
    """
    root = os.getcwd() if root is None else root
    lines = [headline(report)]
    for cut in report.cuts:
        lines += ["", *_block(cut, root)]
    counts = (
        ("missing", report.missing), ("wrong", report.wrong), ("zeros", report.zeros),
        ("unused", report.unused),
    )  # fmt: skip
    rows = [f"{name:<8} {len(names):>5}  {_named(names)}" for name, names in counts if names]
    if rows:
        lines += ["", *rows]
    if report.error and report.cuts:
        lines += ["", report.error]
    if report.proof:
        lines += ["", report.proof]
    if report.notes:
        lines += ["", *(f"note: {note}" for note in report.notes)]
    return "\n".join(lines)


def headline(report: Report) -> str:
    """The verdict, in one line."""
    of = f"{report.trainable} parameters" if report.trainable != 1 else "1 parameter"
    if report.ok:
        got = report.trainable - len(report.unused) - len(report.lost) - len(report.zeros)
        rest = _zeros(report)
        rest += [f"{len(report.unused)} are unused"] if report.unused and report.lost else []
        rest += ["the rest is unused"] if report.unused and not report.lost else []
        return ", ".join([f"ok: {got} of {of} {'gets' if got == 1 else 'get'} a gradient", *rest])
    if report.error and not report.cuts:
        return report.error
    said = [f"{len(report.missing)} get no gradient"] if report.missing else []
    said += [f"{len(report.wrong)} get a wrong one"] if report.wrong else []
    if report.error and any(cut.cause is Cause.KEPT for cut in report.cuts):
        this = report.error.startswith("backward raises")
        said += ["none gets one" if this else "none gets one in the second step"]
    if not said and any(cut.derived for cut in report.cuts):
        said = ["those that something was made of before the step do not arrive there"]
    said = [*(said or ["none is known to be hit"]), *_zeros(report)]
    cuts = f"{len(report.cuts)} gradient cut" + "s" * (len(report.cuts) != 1)
    return f"{cuts}; of {of}, {' and '.join(said)}"


def _zeros(report: Report) -> list[str]:
    many = len(report.zeros)
    return [f"{many} {'gets' if many == 1 else 'get'} zeros alone"] if many else []


def _block(cut: Cut, root: str) -> Iterator[str]:
    yield visible(f"{shown(cut.path, root)}:{cut.line} in {cut.function}: {cut.cause.value}")
    yield visible(f"    {cut.message}")
    if cut.op:
        yield visible(f"    op          {cut.op}")
    if cut.modules:
        yield visible(f"    module      {_short(patterns(cut.modules))}")
    if cut.scope_place is not None:
        path, line = cut.scope_place
        yield visible(f"    scope       {shown(path, root)}:{line}")
    if cut.parameters:
        yield visible(f"    parameters  {len(cut.parameters)}: {_named(cut.parameters)}")


def shown(path: str, root: str) -> str:
    """A path as people want to read it: relative to ``root`` where it lies there."""
    inside = os.path.abspath(path).startswith(os.path.join(os.path.abspath(root), ""))
    return os.path.relpath(path, root) if inside else path


def _named(names: Sequence[str]) -> str:
    return _short(patterns(names))


def _short(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
