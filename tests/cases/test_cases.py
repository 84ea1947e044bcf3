"""Real failures, made small: what trainify says of each, and whether the fixed file learns.

A folder per case: ``before.py`` is the fault as people meet it, ``after.py`` a right version,
``case.json`` the verdict:

* fixable: fixed, the file has the gradients of ``after.py``, under every strategy,
* report-only: found, never rewritten,
* must-not-touch: looks like a fault, and is none; there is no fix.

``lines`` are the places meant, ``keep_lines`` places in the same file that are right.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.torch_process import TorchProcess
from trainify.engine import FileReport, Options, check_paths, fix_paths
from trainify.findings import STRATEGIES

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    name: str
    verdict: str
    lines: tuple[int, ...]
    keep_lines: tuple[int, ...]

    @property
    def before(self) -> Path:
        return HERE / self.name / "before.py"

    @property
    def after(self) -> Path:
        return HERE / self.name / "after.py"


def _case(folder: Path) -> Case:
    data = json.loads((folder / "case.json").read_text())
    return Case(
        folder.name, data["verdict"], tuple(data["lines"]), tuple(data.get("keep_lines", ()))
    )


CASES = [_case(path.parent) for path in sorted(HERE.glob("*/case.json"))]


def _params(*verdicts: str) -> list[Any]:
    return [
        pytest.param(
            case,
            id=case.name,
        )
        for case in CASES
        if case.verdict in verdicts
    ]


def _report(python: TorchProcess, file: Path) -> dict[str, Any]:
    """What ``run()`` of a case file returns."""
    done = python.run(HERE / "case_runner.py", file, cwd=HERE)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert isinstance(report, dict)
    return report


def _fixed(case: Case, strategy: str) -> FileReport:
    """The report on ``before.py`` after a fix that holds nothing back."""
    (report,) = fix_paths([str(case.before)], Options(strategy=strategy, unsafe=True))
    assert report.problem is None, report.problem
    return report


def _flagged(case: Case) -> list[tuple[int, int, str]]:
    (report,) = check_paths([str(case.before)])
    assert report.problem is None, report.problem
    return [(f.line, f.end_line, f.rule) for f in report.findings]


def _same_step(ours: dict[str, Any], right: dict[str, Any]) -> bool:
    """Whether two files compute the same loss and the same gradients."""
    if right["error"] or ours["error"] or ours["grads"].keys() != right["grads"].keys():
        return False
    if not math.isclose(ours["loss"], right["loss"], rel_tol=1e-5, abs_tol=1e-7):
        return False
    return all(
        math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6)
        for name, probe in right["grads"].items()
        for a, b in zip(ours["grads"][name], probe, strict=True)
    )


@pytest.mark.parametrize("case", _params("fixable"))
def test_fixed_learns_as_it_should(case: Case, torch_process: TorchProcess, tmp_path: Path) -> None:
    right = _report(torch_process, case.after)
    assert not _same_step(_report(torch_process, case.before), right), "the fault does not show"
    seen: dict[bytes, dict[str, Any]] = {}
    for strategy in STRATEGIES:
        report = _fixed(case, strategy)
        assert report.change is not None, "nothing was fixed"
        if report.change.after not in seen:
            fixed = tmp_path / f"{strategy}.py"
            fixed.write_bytes(report.change.after)
            seen[report.change.after] = _report(torch_process, fixed)
        ours = seen[report.change.after]
        assert _same_step(ours, right), (strategy, ours, right, report.text)


@pytest.mark.parametrize("case", _params("report-only"))
def test_reported_and_left_alone(case: Case) -> None:
    near = [line for line in case.lines for found in _flagged(case) if _covers(found, line)]
    assert near, _flagged(case)
    for strategy in STRATEGIES:
        assert _fixed(case, strategy).change is None


@pytest.mark.parametrize("case", _params("must-not-touch"))
def test_right_as_it_is(case: Case) -> None:
    assert not _flagged(case)
    for strategy in STRATEGIES:
        assert _fixed(case, strategy).change is None


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name) for case in CASES if case.keep_lines]
)
def test_right_lines_stay_unflagged(case: Case) -> None:
    for line in case.keep_lines:
        assert not [found for found in _flagged(case) if found[0] == line]


def _covers(found: tuple[int, int, str], line: int) -> bool:
    """Whether a finding stands within two lines of a place."""
    first, last, _ = found
    return first - 2 <= line <= last + 2


def test_each_kind_of_verdict_is_there() -> None:
    assert {case.verdict for case in CASES} == {"fixable", "report-only", "must-not-touch"}
