"""Finding and fixing: over one text, and over many files.

Every front end goes through :func:`check_text` and :func:`fix_text`.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING

from . import passes
from .catalog import FusedOp, roots
from .catalog.own import registered
from .facts.spelling import usual
from .findings import (
    STRATEGIES,
    Edit,
    Finding,
    Fix,
    Proven,
    Safety,
    apply_edits,
    moved,
    select_fixes,
)
from .passes import Look
from .releases import Release
from .source import Change, Positions, SourceError, decode, encode, split_lines
from .suppressions import comments

if TYPE_CHECKING:
    from .cache import Cache
    from .config import Config
    from .facts import ModuleFacts, Project

FLAGS = ("grad", "training")
"""What strategy ``flag`` asks at run time: whether gradients are wanted, or ``self.training``."""

MAX_ROUNDS = 10
"""Fixing that is not done after so many rounds never will be."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to look for and how to fix it; ``select`` and ``ignore`` hold prefixes of codes.

    ``ops`` are looked at before the catalog's: those registered so far, unless given.
    ``releases`` are those of libraries that the code is written for; the newest, unless given.
    With ``callers_decide``, who calls a forward has set the grad mode that is meant: no scope on it
    needs to know whether the model is in training.  With ``training_decides``, they have said that
    the training flag tells: nobody infers in training mode.
    Without ``plan``, fixes that take long to work out are left out, and the reasons why there are
    none with them.
    ``proven`` are places in the text at which a gradient ends for certain, whatever the code shows:
    what ends it is rewritten there, as far as nothing in the code says that it is meant.
    Without ``others``, what another strategy would make of fused calls is left out too, where the
    chosen one has a fix for each of them.
    """

    strategy: str = "flag"
    flag: str = "grad"
    unsafe: bool = False
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    ops: tuple[FusedOp, ...] = field(default_factory=registered)
    releases: tuple[Release, ...] = ()
    callers_decide: bool = False
    training_decides: bool = False
    plan: bool = True
    proven: tuple[Proven, ...] = ()
    others: bool = True

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}")
        if self.flag not in FLAGS:
            raise ValueError(f"flag must be one of {', '.join(FLAGS)}")
        for op in self.ops:
            if isinstance(op.names, str):  # of which each letter would be a name
                raise TypeError(f"names of an op are a tuple, not {op.names!r}")

    def selects(self, code: str) -> bool:
        """Whether findings of this rule are wanted."""
        return code.startswith(self.select or "") and not code.startswith(self.ignore)


class EngineError(Exception):
    """A bug in trainify, met in one file."""


class PassError(EngineError):
    """A pass raised an exception."""


class BrokenFix(EngineError):
    """A fix left the file so that Python cannot compile it."""


class Cancelled(Exception):
    """Nobody waits for the findings any more."""


class NotConverged(EngineError):
    """Fixes keep undoing or repeating each other."""


# -- one text -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FixResult:
    """The fixed text, what was fixed, and what was not.

    Places in ``applied`` count in the text of the round that fixed them, those in ``remaining`` in
    ``text``, and those in ``found``, which is what there was at first, in the text as it was.  What
    other strategies would do they say as without :attr:`Options.others`.
    """

    text: str
    applied: list[Finding]
    remaining: list[Finding]
    found: list[Finding] = field(default_factory=list)


def check_text(
    text: str,
    path: str = "<text>",
    options: Options | None = None,
    project: Project | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> list[Finding]:
    """Return the findings in ``text``, in order of place, without those a comment silences.

    A pass is only asked where one of its needles stands, in a file that concerns it.
    Raises :class:`~trainify.source.SourceError` where ``text`` is not Python, and
    :class:`Cancelled` between two passes where ``cancelled`` says so.
    """
    return Check(text, path, options, project).findings(cancelled)


class Check:
    """What is found in one text: all of it at once, or first without the fixes that take long.

    ``parse`` takes the place of :func:`~trainify.facts.parse_module`.
    Raises :class:`~trainify.source.SourceError` where the text is not Python.
    """

    def __init__(
        self,
        text: str,
        path: str = "<text>",
        options: Options | None = None,
        project: Project | None = None,
        parse: Callable[[str, str, Project | None], ModuleFacts] | None = None,
    ) -> None:
        self.text = text
        self.options = options or Options()
        if project is not None:
            project.begin()
        self._module = _parse(text, path, project, parse)
        self._data = usual(text.encode(errors="replace"))
        asked = passes_for(self._data, self.options)
        self._passes = [
            p for p in asked if not p.RULES or any(self.options.selects(r.code) for r in p.RULES)
        ]
        self._found: dict[passes.Pass, tuple[bool, list[Finding]]] = {}

    def findings(
        self, cancelled: Callable[[], bool] = lambda: False, *, plan: bool = True
    ) -> list[Finding]:
        """See :func:`check_text`; without ``plan`` as :attr:`Options.plan` says."""
        options = replace(self.options, plan=plan)
        found: dict[tuple[int, int, str], Finding] = {}
        for finding in self._proven:
            found[finding.start, finding.end, finding.rule] = finding
        for each in self._passes:
            planned, findings = self._found.get(each, (False, None))
            if findings is None or (plan and not planned and passes.plans(each)):
                if cancelled():
                    raise Cancelled
                findings = self._ask(each, options)
                self._found[each] = plan, findings
            for finding in findings:
                found.setdefault((finding.start, finding.end, finding.rule), finding)
        if plan:
            self._module.project.judged.clear()  # they hold the file, which holds the project
        silenced = self._module.suppressions
        return [
            _keep_comments(self.text, finding)
            for _, finding in sorted(found.items(), key=lambda item: item[0])
            if not silenced.cover(finding)
        ]

    @cached_property
    def _proven(self) -> list[Finding]:
        """What there is to say of places where a run has shown that a gradient ends."""
        if not self.options.proven:
            return []
        return [
            finding
            for each in passes.all_passes()
            for finding in self._guarded(each, passes.proven(each, self._module, self.options))
        ]

    def _ask(self, each: passes.Pass, options: Options) -> list[Finding]:
        def findings() -> Iterator[Finding]:
            if passes.concerns(
                each, self._data, self._module.path, self._module.project, self.options
            ):
                yield from each.find(self._module, options)

        return self._guarded(each, findings())

    def _guarded(self, each: passes.Pass, findings: Iterator[Finding]) -> list[Finding]:
        try:
            return [finding for finding in findings if self.options.selects(finding.rule)]
        except RecursionError:
            raise SourceError("nested too deeply") from None
        except Exception as error:
            name = getattr(each, "__name__", "?").rpartition(".")[2]
            raise PassError(f"in pass {name}: {type(error).__name__}: {error}") from error


def fix_text(
    text: str,
    path: str = "<text>",
    options: Options | None = None,
    project: Project | None = None,
    accept: Callable[[str, Fix], bool] | None = None,
) -> FixResult:
    """Apply fixes, round after round, until a check finds none that can be applied.

    So fixing the result again changes nothing.  A fix of the text of a round that ``accept`` says
    no to is not applied.  Raises :class:`EngineError` where that cannot be
    had, or where the result would not compile although ``text`` did.
    """
    options = replace(options or Options(), others=False)
    applied: list[Finding] = []
    found: list[Finding] | None = None
    original = text
    compiles: bool | None = None
    for _ in range(MAX_ROUNDS):
        findings = check_text(text, path, options, project)
        found = findings if found is None else found
        wanted = findings if accept is None else _accepted(text, findings, options, accept)
        chosen = select_fixes(wanted, options.strategy, unsafe=options.unsafe)
        if not chosen:
            if applied and accept is None:
                cleared = _without_idle_imports(original, text, path, project, options)
                if cleared != text:
                    text, findings = cleared, check_text(cleared, path, options, project)
            return FixResult(text, applied, findings, found)
        rules = ", ".join(sorted({finding.rule for finding, _ in chosen}))
        edits = [edit for _, fix in chosen for edit in fix.edits]
        new = apply_edits(text, edits)
        if options.proven:
            options = replace(options, proven=tuple(_moved(options.proven, text, new, edits)))
        if compiles is None:
            compiles = _compiles(original, path)
        text = new
        try:
            _parse(text, path, None)
        except SourceError as error:
            raise BrokenFix(
                f"fixes of {rules} do not parse, line {error.line}: {error.message}"
            ) from error
        if compiles and not _compiles(text, path):
            raise BrokenFix(f"fixes of {rules} do not compile")
        applied += (finding for finding, _ in chosen)
    raise NotConverged(f"fixes of {rules} do not come to an end")


def _moved(
    places: Sequence[Proven], text: str, new: str, edits: Sequence[Edit]
) -> Iterator[Proven]:
    """Where places of a text stand after edits, as far as they are still there."""
    lines, before, after = split_lines(text), Positions(text), Positions(new)

    def moved_line(line: int) -> int:
        indented = len(lines[line - 1]) - len(lines[line - 1].lstrip(" \t\f"))
        offset = moved(before.start(line) + indented, edits)
        return 0 if offset is None else after.at(offset)[0]

    for place in places:
        line = moved_line(place.line)
        if line:
            within = {moved_line(each) for each in place.lines} - {0}
            yield replace(place, line=line, lines=tuple(sorted(within)))


def _without_idle_imports(
    original: str, text: str, path: str, project: Project | None, options: Options
) -> str:
    """A fixed text without the imports of kernels that only what was fixed had a use for."""
    from .rewrite.imports import idle_imports

    before, after = _parse(original, path, project), _parse(text, path, project)
    return apply_edits(text, idle_imports(before, after, roots(options.ops)))


def _accepted(
    text: str, findings: list[Finding], options: Options, accept: Callable[[str, Fix], bool]
) -> list[Finding]:
    fixes = ((finding, finding.fix(options.strategy)) for finding in findings)
    return [finding for finding, fix in fixes if fix is not None and accept(text, fix)]


def _parse(
    text: str,
    path: str,
    project: Project | None,
    parse: Callable[[str, str, Project | None], ModuleFacts] | None = None,
) -> ModuleFacts:
    from .facts import parse_module

    try:
        if parse is None and project is not None:
            return project.parse(text, path)
        return (parse or parse_module)(text, path, project)
    except SyntaxError as error:
        raise SourceError(error.msg, error.lineno or 0, error.offset or 0) from None
    except (RecursionError, MemoryError):
        raise SourceError("nested too deeply") from None
    except ValueError as error:
        raise SourceError(str(error)) from None


def _compiles(text: str, path: str) -> bool:
    """Whether the file compiles, which takes more than parsing: ``return`` outside a function."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape, say, is its author's business
            compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _keep_comments(text: str, finding: Finding) -> Finding:
    """A fix that deletes a comment is never safe, whatever its pass says."""
    fixes = {strategy: _keep_comments_of(text, fix) for strategy, fix in finding.fixes.items()}
    return finding if fixes == finding.fixes else replace(finding, fixes=fixes)


def _keep_comments_of(text: str, fix: Fix) -> Fix:
    if fix.safety is not Safety.SAFE:
        return fix
    old = Counter(tail for edit in fix.edits for tail in _tails(text[edit.start : edit.end]))
    new = Counter(tail for edit in fix.edits for tail in _tails(edit.text))
    if old <= new:
        return fix  # telling comments from strings, below, takes reading the whole file
    before = Counter(comment for _, comment in comments(text))
    after = Counter(comment for _, comment in comments(apply_edits(text, fix.edits)))
    lost = before - after
    if not lost:
        return fix
    return fix.unsafe(f"deletes the comment `{next(iter(lost))}`")


def _tails(text: str) -> Iterator[str]:
    """What follows the first ``#`` of each line: the comment, if it is one."""
    return (line[line.index("#") :].rstrip() for line in text.splitlines() if "#" in line)


# -- many files -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a file was not dealt with, for one line on standard error."""

    path: str
    message: str
    line: int = 0
    column: int = 0
    internal: bool = False
    details: str = ""
    """The traceback of an internal error."""

    def __str__(self) -> str:
        place = [str(number) for number in (self.line, self.column) if number]
        return ":".join([self.path, *place, f" {self.message}"])


@dataclass(frozen=True, slots=True)
class FileReport:
    """What there is to say about one file.

    ``findings`` are those in ``text``; after fixing, those that remain in the fixed text, and
    ``found`` those in the text as it was.
    """

    path: str
    text: str = ""
    findings: list[Finding] = field(default_factory=list)
    applied: list[Finding] = field(default_factory=list)
    change: Change | None = None
    problem: Problem | None = None
    found: list[Finding] = field(default_factory=list)

    @property
    def uncovered(self) -> int:
        """How many findings showed only once others were fixed."""
        now = Counter(finding.rule for finding in (*self.applied, *self.findings))
        return (now - Counter(finding.rule for finding in self.found)).total()


@dataclass
class Session:
    """One run over files that may know of each other; lives in each worker process.

    ``rewritten`` has the bytes of the files that are not what lies on the disk.
    """

    options: Options
    config: Config
    roots: tuple[str, ...] = ()
    fixing: bool = False
    rewritten: Mapping[str, bytes] = field(default_factory=dict)

    @cached_property
    def project(self) -> Project:
        from .facts import Project

        return Project(self.roots, self.rewritten)

    @cached_property
    def _named(self) -> frozenset[str]:
        return frozenset(map(os.path.normpath, self.roots))

    @property
    def loaded(self) -> frozenset[str]:
        """Files that the project read besides those it was asked about."""
        known = "project" in self.__dict__  # made by the first file that parses
        return frozenset(map(str, self.project.loaded)) if known else frozenset()

    def file(self, path: str) -> FileReport | None:
        """Check or fix a file; None where no pass needs to read it."""
        if path in self.rewritten:
            return self.data(self.rewritten[path], path)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            reason = error.strerror or str(error)
            return FileReport(path, problem=Problem(path, f"cannot read: {reason}"))
        return self.data(data, path)

    def known(self, path: str, findings: list[Finding]) -> FileReport | None:
        """What ``file`` gave for a file that has not changed since."""
        if not findings:
            return FileReport(path)
        try:
            with open(path, "rb") as file:
                return FileReport(path, decode(file.read())[0], findings)
        except (OSError, SourceError):
            return self.file(path)

    def data(self, data: bytes, path: str) -> FileReport | None:
        """Check or fix the bytes of a file, without touching the file itself."""
        asked = passes_for(data, self.options)
        try:
            if is_concerned(data, path, self.options, self.project):
                return self._report(data, path)
            self._look_over(data, path)
            return FileReport(path) if asked else None
        except SourceError as error:
            problem = Problem(path, f"cannot parse: {error.message}", error.line, error.column)
        except Exception as error:
            message = str(error)
            if not isinstance(error, EngineError):
                message = f"{type(error).__name__}: {error}"
            problem = Problem(
                path, f"internal error {message}", internal=True, details=_traceback(error)
            )
        return FileReport(path, problem=problem)

    def _look_over(self, data: bytes, path: str) -> None:
        """Raise :class:`~trainify.source.SourceError` for a file without interest, if it is broken.

        Whoever names a file wants to know whether it parses; of those in a folder, that it is text
        is all that is asked, since parsing takes longer than all the rest.
        """
        if os.path.normpath(path) in self._named or b"\0" in data:
            _parse(decode(data)[0], path, None)
        elif not data.isascii():
            decode(data)

    def _report(self, data: bytes, path: str) -> FileReport:
        text, encoding = decode(data)
        options = self.config.options_for(path, self.options)
        if not self.fixing:
            findings = check_text(text, path, options, self.project)
            return FileReport(path, text if findings else "", findings)
        result = fix_text(text, path, options, self.project)
        change = None
        if result.text != text:
            if encode(text, encoding) != data:
                raise SourceError(f"{encoding} text that does not survive being written again")
            change = Change(path, data, encode(result.text, encoding))
        remaining, applied, found = result.remaining, result.applied, result.found
        return FileReport(path, result.text, remaining, applied, change, found=found)


def _traceback(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(error))


@contextmanager
def without_collections() -> Iterator[None]:
    """Look for no garbage meanwhile.

    A syntax tree is a lot of objects and no garbage, and goes with the last reference to its file's
    facts; looking for garbage would take a third of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def passes_for(data: bytes, options: Options) -> tuple[passes.Pass, ...]:
    """The passes that could have something to say about a file of these bytes."""
    return _passes_for(usual(data), passes.all_passes(), options.ops)


def is_concerned(data: bytes, path: str, options: Options, project: Project) -> bool:
    """Whether a file of these bytes is worth parsing, given the files around it."""
    asked, data = passes_for(data, options), usual(data)
    return any(passes.concerns(each, data, path, project, options) for each in asked)


@lru_cache(maxsize=1)  # asked once to see whether a file is worth parsing, and again when it was
def _passes_for(
    data: bytes, of: tuple[passes.Pass, ...], ops: tuple[FusedOp, ...]
) -> tuple[passes.Pass, ...]:
    from .facts import objects, words

    questions = _questions(of, ops)
    asked: set[int] = set()
    for each in (data, *objects.called_self(data)):
        raised = {question for word in words.found(each) for question in questions.get(word, ())}
        asked |= {question.number for question in raised if question.matters(each)}
    return tuple(of[number] for number in sorted(asked))


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    """Whether a file matters to the pass of some number, raised by words that stand in it."""

    number: int
    matters: Callable[[bytes], object]


@cache
def _questions(
    of: tuple[passes.Pass, ...], ops: tuple[FusedOp, ...]
) -> dict[bytes, list[_Question]]:
    from .facts import words

    raised: dict[bytes, list[_Question]] = {}
    for number, each in enumerate(of):
        for needle in passes.needles(each, Options(ops=ops)):
            look = Look((needle,), bool) if isinstance(needle, bytes) else needle
            question = _Question(number, look.matters)
            for word in look.words:
                raised.setdefault(word, []).append(question)
    words.declare(*raised)
    return raised


def check_paths(
    paths: Sequence[str],
    options: Options | None = None,
    *,
    config: Config | None = None,
    stdin: bytes | None = None,
    use_cache: bool = False,
    jobs: int = 1,
) -> Iterator[FileReport]:
    """Check every file under ``paths``; one report for each, in the order of discovery.

    With ``stdin``, these bytes are checked as if they were the file ``paths[0]``.
    """
    session = _session(paths, options, config)
    if stdin is not None:
        return iter((session.data(stdin, paths[0]) or FileReport(paths[0]),))
    cache = None
    if use_cache:
        from .cache import Cache

        cache = Cache.for_run(paths, (session.options, session.config))
    return _run(session, cache, jobs)


def fix_paths(
    paths: Sequence[str],
    options: Options | None = None,
    *,
    config: Config | None = None,
    stdin: bytes | None = None,
    jobs: int = 1,
) -> Iterator[FileReport]:
    """Fix every file under ``paths``, writing nothing; otherwise like :func:`check_paths`.

    What remains of a file is what a check finds once all of the others are fixed.
    """
    session = _session(paths, options, config)
    session.fixing = True
    if stdin is not None:
        return iter((session.data(stdin, paths[0]) or FileReport(paths[0]),))
    return _settled(session, _run(session, None, jobs), jobs)


def _settled(session: Session, reports: Iterator[FileReport], jobs: int) -> Iterator[FileReport]:
    """The reports, in which files know each other as fixed; of files with a problem at once."""
    done: dict[str, FileReport] = {}
    for report in reports:
        if report.problem:
            yield report
        else:
            done[report.path] = report
    for _ in range(MAX_ROUNDS):
        fixed = {path: each.change.after for path, each in done.items() if each.change}
        changed = {path for path, data in fixed.items() if session.rewritten.get(path) != data}
        pending = [path for path, each in done.items() if each.findings and changed - {path}]
        if not pending:
            break
        session = replace(session, rewritten=fixed)
        for path, then in zip(pending, _again(session, pending, jobs), strict=True):
            if then is None:
                done[path] = replace(done[path], findings=[])
            elif not then.problem:
                done[path] = _continued(done[path], then)
    yield from done.values()


def _again(session: Session, paths: list[str], jobs: int) -> Iterator[FileReport | None]:
    if jobs > 1 and len(paths) > _CHUNK:
        return _in_workers(session, paths, jobs, _CHUNK, set())
    return map(session.file, paths)


def _continued(first: FileReport, then: FileReport) -> FileReport:
    """One report of a file that was fixed, and fixed again."""
    change = then.change or first.change
    if first.change and then.change:
        change = replace(then.change, before=first.change.before)
    return replace(
        first,
        text=then.text,
        findings=then.findings,
        applied=first.applied + then.applied,
        change=change,
    )


def _session(paths: Sequence[str], options: Options | None, config: Config | None) -> Session:
    from .config import Config

    config = config or Config()
    return Session(options or config.options, config, tuple(paths))


def _run(session: Session, cache: Cache | None, jobs: int) -> Iterator[FileReport]:
    from .discovery import FoundFile, find_files

    found = list(find_files(session.roots, session.config.excludes))
    files = [item for item in found if isinstance(item, FoundFile)]
    known = cache.known(files) if cache else {}
    pending = [file for file in files if file.path not in known]
    loaded: set[str] = set()
    if jobs > 1 and len(pending) > 1 and sum(file.size for file in pending) > _WORTH_WORKERS:
        reports = _in_workers(session, [file.path for file in pending], jobs, _CHUNK, loaded)
    else:
        reports = _look(session, [file.path for file in pending], loaded)
    for item in found:
        if not isinstance(item, FoundFile):
            yield FileReport(item.path, problem=Problem(item.path, f"cannot read: {item.reason}"))
        elif item.path in known:
            yield session.known(item.path, known[item.path]) or FileReport(item.path)
        else:
            report = next(reports)
            if cache:
                cache.saw(item, report)
            yield report or FileReport(item.path)
    if cache and len(known) < len(files):
        next(reports, None)  # let it add what it knows to ``loaded``
        cache.store(loaded)


_CHUNK = 16
"""Files that a worker process takes at a time."""

_WORTH_WORKERS = 1_000_000
"""Bytes from which starting worker processes pays; they start in about 50 ms."""


def _look(session: Session, paths: list[str], loaded: set[str]) -> Iterator[FileReport | None]:
    for path in paths:
        yield session.file(path)
    loaded.update(session.loaded)


def _in_workers(
    session: Session, paths: list[str], jobs: int, chunk: int, loaded: set[str]
) -> Iterator[FileReport | None]:
    """The same in worker processes, in the same order.

    A worker that dies (killed for its memory, or by a crash of the parser) takes all others with
    it; then the rest is done one file at a time, so that the cause costs only its own file.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # Forked workers have every pass imported already; elsewhere forking is not to be trusted.
    passes.all_passes()
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    chunks = [paths[start : start + chunk] for start in range(0, len(paths), chunk)]
    done = 0
    pool = ProcessPoolExecutor(jobs, context, _start_worker, (session,))
    try:
        for reports, seen in pool.map(_work, chunks):
            loaded |= seen
            for report in reports:
                done += 1
                yield report
        return
    except BrokenProcessPool:
        pass
    finally:
        pool.shutdown(cancel_futures=True)
    rest = paths[done:]
    if jobs == chunk == 1:
        problem = Problem(rest[0], "internal error: the worker process died", internal=True)
        yield FileReport(rest[0], problem=problem)
        del rest[0]
    yield from _in_workers(session, rest, 1, 1, loaded)


_worker: Session
_told: set[str]
"""The files that the main process knows to have been read in this one."""


def _start_worker(session: Session) -> None:
    global _worker, _told
    import signal
    import threading

    _worker, _told = session, set()
    threading.Thread(target=_end_with_main, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the main process's to handle
    gc.disable()  # see without_collections


def _end_with_main() -> None:
    """End this worker when the main process has been killed: it waits for it on pipes, forever."""
    from multiprocessing import parent_process

    main = parent_process()
    if main is not None:
        main.join()
        os._exit(1)


def _work(paths: list[str]) -> tuple[list[FileReport | None], frozenset[str]]:
    reports = [_worker.file(path) for path in paths]
    news = _worker.loaded - _told
    _told.update(news)
    return reports, news
