"""What is known of each fused op, counted: ``python -m benchmarks.proof``.

Every row with an equivalent goes through what ``trainify verify`` does: finite differences in
float64 for its gradient, and its kernel where one runs on this machine.  Kernels compiled or
interpreted by ``python -m benchmarks.gpu`` count as that wrote them into docs/verification.md,
where the numbers go too.  What was proven of each row goes to src/trainify/verify/record.tsv, for
what patches say of themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from trainify.catalog import FusedOp, all_ops, lookup, unverified
from trainify.catalog.differentiable import NAMES
from trainify.passes.fused_calls.calls import HARMLESS
from trainify.releases import Release
from trainify.verify import Environment, Job, Verdict, verify
from trainify.verify.record import FILE, lines

PAGE = Path(__file__).resolve().parents[1] / "docs" / "verification.md"
BEGIN, END = "<!-- Written by make proof. -->\n", "<!-- Up to here. -->\n"


def compared(page: str) -> dict[FusedOp, str]:
    """The rows whose kernels stand in a table of comparisons with the libraries' sources.

    Each with the releases compared and where that was run.
    """
    seen: dict[tuple[str, str], dict[str, list[str]]] = {}
    where = ""
    for heading, library, version, op, reference in re.findall(
        r"^## (.+)|^\| ([\w.-]+) ([\d.]\S*) \| `(\w+)[^|]*\| (\w+) \|", page, re.M
    ):
        if heading:
            where = {"Emulated": "emulated on a CPU"}.get(heading, heading.lower())
            continue
        own = {"vllm": ("vllm._", "vllm.model_executor.", "torch.ops._C.")}.get(
            library, library.replace("-", "_") + "."
        )
        for row in all_ops():
            named = any(n.startswith(own) and n.endswith(f".{op}") for n in row.names)
            held = lookup(row.names[0], (), (Release(library, f"=={version}", ""),))
            if named and held is not None and re.search(rf"\b{reference}\(", held.equivalent or ""):
                told = seen.setdefault(_kind(held), {}).setdefault(where, [])
                release = version if told else f"{library} {version}"
                told += [release] * (release not in told and f"{library} {version}" not in told)
    return {
        row: "; ".join(f"{', '.join(releases)} {where}" for where, releases in told.items())
        for row in all_ops()
        if (told := seen.get(_kind(row)))
    }


def _kind(row: FusedOp) -> tuple[str, str]:
    """Rows for several releases that compute the same are one."""
    return row.names[0], row.equivalent or ""


def proven(verdicts: Sequence[Verdict], environment: Environment, page: str) -> dict[FusedOp, str]:
    """The rows that are right, each with the kernel that it was held against, if any."""
    ran = {
        v.job.op: f"PyTorch {environment.torch}'s own on {environment.device}"
        for v in verdicts
        if v.ran
    }
    kernels = {**ran, **compared(page)}
    return {
        v.job.op: kernels.get(v.job.op, "")
        for v in verdicts
        if isinstance(v.job.op, FusedOp) and _right(v) and not v.wrong
    }


def _right(verdict: Verdict) -> bool:
    return verdict.gradient == "ok" and verdict.attached in ("computed anew", "closed form, ok")


def section(verdicts: list[Verdict], page: str) -> str:
    ops = [v.job.op for v in verdicts if isinstance(v.job.op, FusedOp)]
    named = {name for op in all_ops() for name in op.names}
    cutting = {name for op in all_ops() if op.cuts for name in op.names}
    replaced = {name for op in ops for name in op.names}
    right = [v for v in verdicts if _right(v)]
    ran = {op for op, v in zip(ops, verdicts, strict=True) if v.ran and not v.wrong}
    held = ran | compared(page).keys()
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
    verdicts, environment = verify([Job(op.names[0], op) for op in all_ops() if op.equivalent])
    text = PAGE.read_text("utf-8")
    rows = lines(proven(verdicts, environment, text))
    FILE.write_text("".join(f"{row}\n" for row in rows), "utf-8")
    new = section(verdicts, text)
    print(new)
    if BEGIN in text:
        text = text[: text.index(BEGIN)] + text[text.index(END) + len(END) + 1 :]
    at = text.index("## On a GPU")
    PAGE.write_text(f"{text[:at]}{new}\n{text[at:]}", "utf-8")


if __name__ == "__main__":
    main()
