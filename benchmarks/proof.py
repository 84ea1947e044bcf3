"""What is known of each fused op, counted: ``python -m benchmarks.proof``.

Every row with an equivalent goes through what ``trainify verify`` does: finite differences in
float64 for its gradient, and its kernel where one runs on this machine.  Kernels compiled or
interpreted by ``python -m benchmarks.gpu`` count as that wrote them into docs/verification.md,
where the numbers go too.
"""

from __future__ import annotations

import re
from pathlib import Path

from trainify.catalog import FusedOp, all_ops, lookup, unverified
from trainify.catalog.differentiable import NAMES
from trainify.passes.fused_calls.calls import HARMLESS
from trainify.releases import Release
from trainify.verify import Job, Verdict, verify

PAGE = Path(__file__).resolve().parents[1] / "docs" / "verification.md"
BEGIN, END = "<!-- Written by make proof. -->\n", "<!-- Up to here. -->\n"


def compared(page: str) -> set[FusedOp]:
    """The rows whose kernels stand in the table of comparisons with the libraries' sources."""
    rows: set[FusedOp] = set()
    for library, version, op in re.findall(r"^\| ([\w.-]+) ([\d.]\S*) \| `(\w+)", page, re.M):
        own = library.replace("-", "_")
        found = [
            row
            for row in all_ops()
            if row.equivalent
            and any(n.endswith(f".{op}") and n.split(".")[0] == own for n in row.names)
        ]
        for row in found:
            held = lookup(row.names[0], (), (Release(library, f"=={version}", ""),))
            if held is not None and held.equivalent:
                rows.add(held)
    return rows


def section(verdicts: list[Verdict], page: str) -> str:
    ops = [v.job.op for v in verdicts if isinstance(v.job.op, FusedOp)]
    named = {name for op in all_ops() for name in op.names}
    cutting = {name for op in all_ops() if op.cuts for name in op.names}
    replaced = {name for op in ops for name in op.names}
    attached = ("computed anew", "closed form, ok")
    right = [v for v in verdicts if v.gradient == "ok" and v.attached in attached]
    ran = {op for op, v in zip(ops, verdicts, strict=True) if v.ran and not v.wrong}
    held = ran | compared(page)
    wrong = [v.job.name for v in verdicts if v.wrong]
    told = sum(family not in HARMLESS for family in unverified().values())
    return "\n".join(
        [
            BEGIN.strip(),
            "## In numbers",
            "",
            f"- {len(named | NAMES | set(unverified())):,} names are recognized: {len(named):,} of "
            f"fused ops and what goes with them, {len(NAMES):,} that bring their own backward, "
            f"{len(unverified()):,} that were only listed, of which {told:,} are reported as "
            "kernels without a known backward.",
            f"- {len(cutting):,} of them lose a gradient for certain; {len(replaced):,} of these, "
            f"in {len(ops)} rows of the catalog, have an equivalent.",
            f"- {len(right)} of these {len(ops)} rows pass `gradcheck` in float64 with random "
            "inputs by themselves, and so does the backward that `attach` writes for each; in "
            "float32, with the rounding that float64 leaves out, the gradients are the same.",
            f"- {len(held)} rows are held against a running kernel: "
            f"{len(held - ran)} against the libraries' sources, compiled for the host or in "
            f"Triton's interpreter (below), {len(ran)} against PyTorch's own, here.",
            f"- Wrong: {', '.join(wrong) or 'none'}.",
            END.strip(),
            "",
        ]
    )


def main() -> None:
    verdicts, _ = verify([Job(op.names[0], op) for op in all_ops() if op.equivalent])
    text = PAGE.read_text("utf-8")
    new = section(verdicts, text)
    print(new)
    if BEGIN in text:
        text = text[: text.index(BEGIN)] + text[text.index(END) + len(END) + 1 :]
    at = text.index("## On a GPU")
    PAGE.write_text(f"{text[:at]}{new}\n{text[at:]}", "utf-8")


if __name__ == "__main__":
    main()
