"""Run over what others have written: download pinned packages, check and fix every file of theirs.

``python -m benchmarks.corpus`` writes docs/corpus.md and exits with 1 where a file crashes
trainify, a fixed file is not left alone by a second run, or a patch does not apply.  Nothing is
installed, and no code of a package is run.  ``ruff`` and, if it is on the path, ``torchfix`` are
timed on the same files.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from trainify.engine import Options, fix_paths, fix_text
from trainify.facts import Project
from trainify.output.diff import unified_diff
from trainify.source import decode

from .pypi import download

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "corpus"
PAGE = ROOT / "docs" / "corpus.md"


@dataclass(frozen=True)
class Package:
    """A release, as a source archive or as a wheel, and the folder of it that is looked at."""

    release: str
    folder: str
    wheel: bool = False
    trains: bool = False

    @property
    def name(self) -> str:
        return self.release.replace("==", " ")


PACKAGES = (
    Package("vllm==0.2.7", "vllm"),
    Package("vllm==0.8.5.post1", "vllm"),
    Package("vllm==0.33.0", "vllm"),
    Package("sglang==0.5.23", "sglang/srt", wheel=True),
    Package("lmdeploy==0.18.0", "lmdeploy", wheel=True),
    Package("flashinfer-python==0.7.4", "flashinfer", wheel=True),
    Package("xformers==0.0.35", "xformers"),
    Package("mamba-ssm==2.3.2.post1", "mamba_ssm"),
    Package("autoawq==0.2.9", "awq"),
    Package("transformers==5.24.0", "transformers", wheel=True, trains=True),
    Package("liger-kernel==0.8.5", "liger_kernel", wheel=True, trains=True),
    Package("peft==0.21.2", "peft", wheel=True, trains=True),
    Package("trl==1.16.0", "trl", wheel=True, trains=True),
    Package("torchtune==0.6.1", "torchtune", wheel=True, trains=True),
    Package("litgpt==0.5.13", "litgpt", wheel=True, trains=True),
    Package("accelerate==1.15.0", "accelerate", wheel=True, trains=True),
)


# -- getting them ---------------------------------------------------------------------------------


def fetch(package: Package) -> Path:
    """The Python files of a package, below build/corpus; what is there already is left alone."""
    target = WORK / package.release.replace("==", "-")
    if target.is_dir():
        return target
    archive = download(package.release, WORK / "downloads", wheel=package.wheel)
    with tempfile.TemporaryDirectory(dir=WORK) as temporary:
        unpacked = Path(temporary, "unpacked")
        for name, data in _sources(archive, f"{package.folder}/"):
            path = unpacked / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        unpacked.rename(target)
    return target


def _sources(archive: Path, prefix: str) -> Iterator[tuple[str, bytes]]:
    """The Python files below a folder of an archive: names, and contents.

    What makes packages of the folders above comes along, since it tells what imports stand for.
    """

    def wanted(name: str) -> bool:
        above, _, file = name.rpartition("/")
        opens = file == "__init__.py" and prefix.startswith(f"{above}/")
        return name.endswith(".py") and (opens or name.startswith(prefix))

    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if wanted(name):
                    yield name, wheel.read(name)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            name = str(PurePosixPath(*PurePosixPath(member.name).parts[1:]))
            if wanted(name) and member.isfile() and (file := tar.extractfile(member)):
                yield name, file.read()


# -- running over them ----------------------------------------------------------------------------


@dataclass
class Seen:
    """What a package gave."""

    package: Package
    files: int = 0
    lines: int = 0
    cold: float = 0.0
    cached: float = 0.0
    ruff: float = 0.0
    torchfix: float | None = None
    found: Counter[str] = field(default_factory=Counter)
    fixed: int = 0
    changed: int = 0
    wrong: list[str] = field(default_factory=list)


def look(package: Package, folder: Path) -> Seen:
    seen = Seen(package)
    project = folder / "setup.py"  # where a project begins, and so where its cache goes
    project.touch()
    for path in folder.rglob("*.py"):
        os.utime(path, (0, 0))  # what has just changed is not cached: it may change again
        if path != project:
            seen.files += 1
            seen.lines += path.read_bytes().count(b"\n")
    shutil.rmtree(folder / ".trainify_cache", ignore_errors=True)
    check = (sys.executable, "-m", "trainify", "check", ".")
    seen.cold, seen.cached = _timed(folder, *check), _timed(folder, *check)
    seen.ruff = _timed(folder, *_RUFF)
    if shutil.which("torchfix") and package.release.startswith(_SAMPLE):
        seen.torchfix = _timed(folder, "torchfix", ".")
    patch, expected = [], {}
    here = os.getcwd()
    os.chdir(folder)
    around = Project(["."])  # a second run sees the files around one, as the first has
    try:
        for report in fix_paths(["."], Options(unsafe=True), jobs=os.cpu_count() or 1):
            if report.problem and report.problem.internal:
                seen.wrong.append(str(report.problem))
            seen.found.update(f.rule for f in (*report.applied, *report.findings))
            seen.fixed += len(report.applied)
            if report.change is None:
                continue
            seen.changed += 1
            expected[report.path] = report.change.after
            patch.append(unified_diff(report.change, report.path))
            text, _ = decode(report.change.after)
            if fix_text(text, report.path, Options(unsafe=True), around).text != text:
                seen.wrong.append(f"{report.path}: a second run changes it again")
    finally:
        os.chdir(here)
    seen.wrong += _applied(folder, b"".join(patch), expected)
    return seen


_RUFF = (sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F401", "--no-cache", ".")
_SAMPLE = "autoawq"
"""TorchFix takes some half a second for a file; one package is enough."""


def _timed(folder: Path, *command: str) -> float:
    """Seconds of processor time that a command takes in a folder, on all cores together."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1) or "internal error" in done.stderr:
        print(*command, done.stderr, file=sys.stderr)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _applied(folder: Path, patch: bytes, expected: dict[str, bytes]) -> list[str]:
    """Whether `git apply` makes of the files what was said."""
    if not patch:
        return []
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary, "copy")
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".trainify_cache"))
        subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
        done = subprocess.run(["git", "apply", "-"], cwd=copy, input=patch, capture_output=True)
        if done.returncode:
            return [f"git apply: {done.stderr.decode().splitlines()[0]}"]
        return [
            f"{path}: the patch makes something else of it"
            for path, data in expected.items()
            if (copy / path).read_bytes() != data
        ]


# -- the page -------------------------------------------------------------------------------------


def page(results: list[Seen]) -> str:
    lines = [
        "# Corpus",
        "",
        "Written by `make corpus`: every Python file of these releases, checked and fixed (with",
        "`--unsafe`, strategy `flag`). No file makes trainify fail, each patch applies with",
        "`git apply` to exactly the bytes it says, and a second run over a fixed file changes",
        "nothing; where that does not hold the run fails. Seconds are of processor time, on all",
        "cores together: of `trainify check` the first time and again, of `ruff check` with one",
        "rule, F401, without a cache, and of TorchFix on one of the packages.",
        "",
        "| release | files | lines | check | again | ruff | TorchFix | found | fixed | in files |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for seen in results:
        torchfix = "" if seen.torchfix is None else f"{seen.torchfix:.1f} s"
        lines.append(
            f"| {seen.package.name} | {seen.files:,} | {seen.lines:,} | {seen.cold:.1f} s | "
            f"{seen.cached:.1f} s | {seen.ruff:.1f} s | {torchfix} | "
            f"{sum(seen.found.values()):,} | {seen.fixed:,} | {seen.changed:,} |"
        )
    rules = sorted({rule for seen in results for rule in seen.found})
    lines += ["", "By rule:", "", f"| release | {' | '.join(rules)} |"]
    lines.append(f"| --- | {' | '.join('--:' for _ in rules)} |")
    for seen in results:
        counts = (str(seen.found[rule] or "") for rule in rules)
        lines.append(f"| {seen.package.name} | {' | '.join(counts)} |")
    return "\n".join(lines) + "\n"


_READ = "## Read one by one"


def _verdicts() -> str:
    """The part of the page that a person wrote, which is kept."""
    text = PAGE.read_text("utf-8") if PAGE.exists() else ""
    return text[text.index(_READ) :] if _READ in text else ""


def main() -> None:
    results = []
    for package in PACKAGES:
        results.append(look(package, fetch(package)))
        seen = results[-1]
        print(package.name, seen.files, dict(sorted(seen.found.items())), *seen.wrong, flush=True)
    PAGE.write_text(f"{page(results)}\n{_verdicts()}", encoding="utf-8")
    sys.exit(any(seen.wrong for seen in results))


if __name__ == "__main__":
    main()
