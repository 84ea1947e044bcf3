"""What was verified, as a table, as JSON and in one sentence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import floor

from ..verify import Comparison, Environment, Verdict

_HEAD = ("op", "forward against the kernel", "gradcheck", "semantics from")


def table(verdicts: Sequence[Verdict]) -> list[str]:
    """One row for each op; the dtypes stand below each other."""
    rows = [[[head] for head in _HEAD]]
    for verdict in verdicts:
        op = verdict.job.op
        rows.append(
            [
                [verdict.job.name],
                [_measured(each) for each in verdict.forward] or [f"not run: {verdict.not_run}"],
                [verdict.gradient] + [f"attached: {verdict.attached}"] * bool(verdict.attached),
                [source(verdict)] + [f"for {op.since}"] * bool(op.since),
            ]
        )
    widths = [max(len(line) for row in rows for line in row[i]) for i in range(len(_HEAD))]
    lines: list[str] = []
    for row in rows:
        for i in range(max(map(len, row))):
            cells = [cell[i] if i < len(cell) else "" for cell in row]
            line = "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True))
            lines.append(line.rstrip())
    return lines


def source(verdict: Verdict) -> str:
    """Where the semantics of an op were read."""
    return verdict.job.op.source or "the row of the op"


def _measured(each: Comparison) -> str:
    if each.wrong:
        return f"{each.dtype:<9}WRONG: {each.wrong}"
    if each.dtype == "float32":
        told = f"{each.scaled:.0e}" if each.scaled else "equal"
    elif each.equal == 1:
        told = "equal"
    else:
        rest = f"{each.ulps} ulp" if each.ulps else "all but small values"
        told = f"{floor(1000 * each.equal) / 10} % equal, {rest}"
    return f"{each.dtype:<9}{told}" + (f" ({each.note})" if each.note else "")


def summary(verdicts: Sequence[Verdict], environment: Environment) -> str:
    """One sentence that says what was proved and what was not."""
    ran = [verdict for verdict in verdicts if verdict.ran]
    rest = [verdict for verdict in verdicts if not verdict.ran]
    wrong = [verdict for verdict in verdicts if verdict.wrong]
    checked = [verdict for verdict in verdicts if verdict.gradient == "ok"]
    said = f"{len(ran)} of {len(verdicts)} {_kernels(len(verdicts))} ran here on "
    said += f"{environment.device} with torch {environment.torch}"
    if wrong:
        names = ", ".join(verdict.job.name for verdict in wrong)
        said += f"; WRONG: {names}"
    elif ran:
        said += " and agree with their equivalents" if len(ran) > 1 else " and agrees"
        noted = [verdict for verdict in ran if any(each.note for each in verdict.forward)]
        said += f", but see the notes on {len(noted)}" if noted else ""
    if rest:
        reasons = ", ".join(dict.fromkeys(verdict.not_run for verdict in rest))
        sources = ", ".join(dict.fromkeys(map(source, rest)))
        said += (
            f"; {len(rest)} did not ({reasons}): there the semantics are those read in {sources}"
        )
    said += f". Gradients: {len(checked)} of {len(verdicts)} checked against finite differences."
    return said


def _kernels(count: int) -> str:
    return "kernel" if count == 1 else "kernels"


def as_json(verdicts: Sequence[Verdict], environment: Environment) -> str:
    """All numbers."""
    return json.dumps(
        {
            "device": environment.device,
            "torch": environment.torch,
            "summary": summary(verdicts, environment),
            "ops": [verdict.as_json() for verdict in verdicts],
        },
        indent=2,
        ensure_ascii=False,
    )


def comment(verdicts: Sequence[Verdict], environment: Environment) -> list[str]:
    """What a patch says of itself."""
    if not verdicts:
        return ["No fused call is among the changes: there was nothing to verify."]
    return ["Verified before it was written:", "", *table(verdicts), "",
            summary(verdicts, environment)]  # fmt: skip
