"""What is to be verified, and what came of it, as plain data that crosses processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..catalog import FusedOp, lookup
from ..catalog.layers import FusedLayer, lookup_layer
from ..findings import Finding

if TYPE_CHECKING:
    from ..engine import Options


@dataclass(frozen=True)
class Job:
    """One row of the catalog, under the name by which ``calls`` calls of it were found.

    Of a layer, that is the name of its class.
    """

    name: str
    op: FusedOp | FusedLayer
    calls: int = 1


def jobs_of(findings: Iterable[Finding], options: Options) -> list[Job]:
    """The ops and layers whose calls are rewritten, each once."""
    jobs: dict[FusedOp | str, Job] = {}
    for finding in findings:
        if not finding.op or not finding.fixes:
            continue
        op = lookup(finding.op, options.ops, options.releases)
        layer = lookup_layer(finding.op, options.releases)
        if op is not None and op.equivalent is not None:
            known = jobs.get(op) or Job(finding.op, op, 0)
            jobs[op] = replace(known, calls=known.calls + 1)
        elif layer is not None:
            known = jobs.get(finding.op) or Job(finding.op, layer, 0)
            jobs[finding.op] = replace(known, calls=known.calls + 1)
    return list(jobs.values())


@dataclass
class Comparison:
    """Kernel against equivalent in one dtype, over everything the kernel gave in all cases.

    ``scaled`` is the largest difference over the largest value, ``relative`` and ``ulps`` the
    largest among elements of at least a sixteenth of that, ``equal`` the share that agrees in every
    bit, in the worst case.
    """

    dtype: str
    device: str
    cases: int = 0
    absolute: float = 0.0
    scaled: float = 0.0
    relative: float = 0.0
    ulps: int = 0
    equal: float = 1.0
    wrong: str = ""
    note: str = ""


@dataclass
class Verdict:
    """What is known of one job.

    ``not_run`` says why the kernel did not run here, ``gradient`` is ``ok``, or what is wrong with
    it, or why it was not looked at; ``attached`` says the same of the backward that strategy
    ``attach`` writes; ``wrong`` holds what was proved wrong.
    """

    job: Job
    forward: list[Comparison] = field(default_factory=list)
    not_run: str = ""
    gradient: str = ""
    attached: str = ""
    wrong: list[str] = field(default_factory=list)

    @property
    def ran(self) -> bool:
        return bool(self.forward)

    def as_json(self) -> dict[str, Any]:
        op = self.job.op
        return {
            "op": self.job.name,
            "calls": self.job.calls,
            "equivalent": op.equivalent,
            "source": op.source,
            "since": op.since,
            "forward": [asdict(each) for each in self.forward],
            "not_run": self.not_run,
            "gradcheck": self.gradient,
            "attached": self.attached,
            "wrong": self.wrong,
        }
