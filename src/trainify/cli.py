"""The command line."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from . import __version__

if TYPE_CHECKING:
    from .config import Config
    from .engine import FileReport, Options, Problem
    from .findings import Finding
    from .passes import Rule
    from .source import Change, WriteError
    from .verify import Environment, Verdict

FINDINGS, ERRORS = 1, 2
_STDIN = "-"


class _Group(click.Group):
    """Ends every interrupt and every broken stream in at most one line.

    A command of ``LAZY`` is ``command`` in the module there, imported when it is asked for.
    """

    LAZY: ClassVar = {"audit": ".live.audit.command", "lsp": ".lsp.command", "ops": ".ops"}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self.LAZY])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.LAZY:
            from importlib import import_module

            found: click.Command = import_module(self.LAZY[cmd_name], __package__).command
            return found
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        if "NO_COLOR" in os.environ:
            ctx.color = False
        elif "FORCE_COLOR" in os.environ:
            ctx.color = True
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # what cannot be encoded is shown escaped
                stream.reconfigure(errors="backslashreplace")
        try:
            try:
                return super().invoke(ctx)
            finally:
                if sys.stdout:  # None where it was closed from the start
                    sys.stdout.flush()
        except KeyboardInterrupt:
            click.echo("trainify: interrupted", err=True)
            ctx.exit(130)
        except BrokenPipeError:
            _forget_stdout()
            ctx.exit(141)  # as if killed by SIGPIPE
        except OSError as error:
            _forget_stdout()
            click.echo(f"trainify: {error.strerror or error}", err=True)
            ctx.exit(ERRORS)


def _forget_stdout() -> None:
    """Keep Python from flushing into a broken stream on its way out."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
def cli() -> None:
    """Find what cuts gradients in PyTorch inference code, and rewrite it for training.

    Exit codes: 0 nothing to report, 1 findings, 2 misuse, unreadable files or internal errors.
    """


_Command = TypeVar("_Command", bound=Callable[..., Any])


def _common(command: _Command) -> _Command:
    """The arguments that ``check`` and ``fix`` share."""
    for option in reversed(
        (
            click.argument("paths", nargs=-1, metavar="[PATHS]..."),
            click.option(
                "--strategy",
                type=click.Choice(("flag", "replace", "attach")),
                help="What a fused call becomes: itself where no gradient is wanted, else its "
                "differentiable equivalent (flag, the default); always the equivalent (replace); "
                "or itself, with a backward written out (attach).",
            ),
            click.option(
                "--flag",
                type=click.Choice(("grad", "training")),
                help="What strategy flag tests: whether gradients are wanted (grad, the default) "
                "or self.training.",
            ),
            click.option(
                "--unsafe",
                is_flag=True,
                default=None,
                help="Also take fixes that a person should look at.",
            ),
            click.option(
                "--select", metavar="CODES", help="Only these rules: TRN101, or TRN1 for TRN1xx."
            ),
            click.option("--ignore", metavar="CODES", help="Not these rules."),
            click.option(
                "--stdin-filename", metavar="NAME", help="What to call the text that - reads."
            ),
        )
    ):
        command = option(command)
    return command


@cli.command()
@_common
@click.option(
    "--format",
    "style",
    type=click.Choice(("text", "json", "github")),
    default="text",
    help="How findings are shown.",
)
@click.option("--statistics", is_flag=True, help="Only count the findings of each rule.")
@click.option("--exit-zero", is_flag=True, help="Exit with 0 even if there are findings.")
@click.option("--no-cache", is_flag=True, help="Neither read nor write .trainify_cache.")
@click.pass_context
def check(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    style: str,
    statistics: bool,
    exit_zero: bool,
    no_cache: bool,
    **given: Any,
) -> None:
    """Report gradient cuts in files and folders (default: here); - reads standard input."""
    from dataclasses import replace

    from .engine import check_paths

    if statistics and style != "text":
        raise click.UsageError("--statistics goes with --format text only")
    run = _Run(paths, given)
    run.options = replace(run.options, others=style == "json")  # the rest shows one strategy
    reports = run.reports(check_paths, use_cache=not no_cache)
    findings, files = _SHOW["statistics" if statistics else style](reports, run.options)
    if style == "text":
        from .output.text import found_summary

        click.echo(found_summary(findings, run.options, files))
    _finish(ctx, run, bool(findings) and not exit_zero)


def _show_text(reports: Iterable[FileReport], options: Options) -> tuple[list[Finding], int]:
    from .output.text import finding_block, without_repetition
    from .source import split_lines

    findings, files = [], 0
    for report in reports:
        files += 1
        lines = split_lines(report.text)
        for finding in without_repetition(report.findings):
            click.echo(finding_block(finding, report.text, lines, options.strategy) + "\n")
        findings += report.findings
    return findings, files


def _show_statistics(reports: Iterable[FileReport], options: Options) -> tuple[list[Finding], int]:
    from .output.text import statistics
    from .passes import all_rules

    listed = list(reports)
    findings = [finding for report in listed for finding in report.findings]
    for line in statistics(findings, {code: rule.name for code, rule in all_rules().items()}):
        click.echo(line)
    return findings, len(listed)


def _show_json(reports: Iterable[FileReport], options: Options) -> tuple[list[Finding], int]:
    from .output.json import as_json, dump
    from .source import Positions

    findings, objects = [], []
    for report in reports:
        if report.findings:
            positions = Positions(report.text)
            objects += [as_json(each, positions, options.strategy) for each in report.findings]
            findings += report.findings
    click.echo(dump(objects))
    return findings, 0


def _show_github(reports: Iterable[FileReport], options: Options) -> tuple[list[Finding], int]:
    from .output.json import as_github

    findings = [finding for report in reports for finding in report.findings]
    for finding in findings:
        click.echo(as_github(finding))
    return findings, 0


_SHOW = {
    "text": _show_text,
    "statistics": _show_statistics,
    "json": _show_json,
    "github": _show_github,
}


@cli.command()
@_common
@click.option("--write", is_flag=True, help="Change the files instead of printing a patch.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the patch to FILE, under a few words about it; - prints both.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Verify what is written to FILE first, as `trainify verify` does, and say so in it.",
)
@click.pass_context
def fix(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    write: bool,
    output: str | None,
    verify: bool,
    **given: Any,
) -> None:
    """Make gradient cuts differentiable: print a patch for `git apply`, or change the files.

    With --write, - reads standard input and writes the changed text to standard output.
    """
    from .engine import fix_paths

    if write and output:
        raise click.UsageError("--write and --output exclude each other")
    if verify and not output:
        raise click.UsageError("--verify goes with --output")
    run = _Run(paths, given)
    reports = list(run.reports(fix_paths))
    applied = [finding for report in reports for finding in report.applied]
    changes = [report.change for report in reports if report.change]
    proof: list[str] = []
    if verify:
        verdicts, environment = run.verify(applied)
        if any(verdict.wrong for verdict in verdicts):
            _show_verdicts(verdicts, environment)
            click.echo(f"trainify: {output} was not written", err=True)
            ctx.exit(ERRORS if run.failed else FINDINGS)
        from .output.verdicts import comment

        proof = [*comment(verdicts, environment), ""]
    fixed = run.write(changes) if write else run.write_patch(changes, applied, output, proof)
    remaining = 0
    for report in reports:
        for line in _not_fixed(report, run.options, in_fixed_text=write and fixed):
            click.echo(line, err=True)
            remaining += 1
    if fixed:
        uncovered = sum(report.uncovered for report in reports)
        _summarize(applied, remaining, uncovered, write, output)
    _finish(ctx, run, remaining > 0)


def _not_fixed(report: FileReport, options: Options, *, in_fixed_text: bool) -> Iterator[str]:
    """A line for each finding that remains, at its place in the file as it now is."""
    from dataclasses import replace

    from .output.diff import LineMap
    from .output.text import place, reason_not_fixed
    from .source import decode, split_lines

    old_line = None
    if report.findings and report.change and not in_fixed_text:
        before, _ = decode(report.change.before)
        old_line = LineMap(split_lines(before), split_lines(report.text)).old_line
    for finding in report.findings:
        at = replace(finding, line=old_line(finding.line)) if old_line else finding
        yield f"not fixed: {place(at)} {finding.rule} {reason_not_fixed(finding, options)}"


def _summarize(
    applied: list[Finding], remaining: int, uncovered: int, write: bool, output: str | None
) -> None:
    from .output.text import cuts

    if applied:
        said = f"{'Fixed' if write else 'Would fix'} {cuts(applied)}"
        said += f", see {output}" if output and output != "-" else ""
    else:
        said = "Nothing to fix"
    said += f"; {remaining} {'remains' if remaining == 1 else 'remain'}." if remaining else "."
    if uncovered:
        said += f" {uncovered} of these showed only once others were fixed."
    click.echo(said, err=True)


@cli.command()
@click.argument("paths", nargs=-1, metavar="[PATHS]...")
@click.option(
    "--format",
    "style",
    type=click.Choice(("text", "json")),
    default="text",
    help="How verdicts are shown.",
)
@click.pass_context
def verify(ctx: click.Context, /, paths: tuple[str, ...], style: str) -> None:
    """Hold the fused kernels called in PATHS against what would take their place.

    Each kernel that can run here gets random inputs, its results are compared with those of its
    equivalent, and the equivalent's gradient with finite differences. Needs torch.

    The files in PATHS are only read. What is imported, in a process of its own, are the libraries
    that own the ops, from where they are installed (PYTHONPATH counts, the current folder does not,
    nor what lies under PATHS).

    Exit codes: 0 nothing is wrong, 1 something was proved wrong, 2 misuse or internal errors.
    """
    from .engine import check_paths

    run = _Run(paths, {"stdin_filename": None, "select": None, "ignore": None})
    reports = list(run.reports(check_paths))
    verdicts, environment = run.verify(finding for each in reports for finding in each.findings)
    if style == "json":
        from .output.verdicts import as_json

        click.echo(as_json(verdicts, environment))
    elif verdicts:
        _show_verdicts(verdicts, environment)
    else:
        click.echo("No fused call that trainify rewrites: nothing to verify.")
    _finish(ctx, run, any(verdict.wrong for verdict in verdicts))


def _show_verdicts(verdicts: list[Verdict], environment: Environment) -> None:
    from .output.verdicts import summary, table

    for line in table(verdicts):
        click.echo(line)
    for verdict in verdicts:
        for wrong in verdict.wrong:
            click.echo(f"wrong: {verdict.job.name}: {wrong}", err=True)
    click.echo("\n" + summary(verdicts, environment))


@cli.command()
def rules() -> None:
    """List all rules."""
    from .passes import all_rules

    for rule in all_rules().values():
        click.echo(f"{rule.code}  {rule.name}: {rule.summary}")


@cli.command()
@click.argument("rule")
def explain(rule: str) -> None:
    """Explain a rule, by its code or name: what it finds, why that matters, what to write instead.

    The beginning of a code, such as TRN3, explains all that begin so.
    """
    from .passes import all_rules

    code = rule.upper()
    found = [r for r in all_rules().values() if r.code.startswith(code) or r.name == rule]
    if not rule or not found:
        raise click.UsageError(f"no rule has the code or name {rule!r}; see `trainify rules`")
    click.echo("\n\n".join(map(_explained, found)))


def _explained(rule: Rule) -> str:
    from textwrap import indent

    def code(text: str) -> str:
        return indent(text.strip("\n"), "    ")

    parts = [f"# {rule.name} ({rule.code})", rule.summary, "## Why it matters", rule.why.strip()]
    if rule.before:
        parts += ["## Example", code(rule.before)]
    if rule.after:
        parts += ["## Use instead", code(rule.after)]
    parts += ["## How to silence it", f"    # trainify: ignore[{rule.code}]"]
    return "\n\n".join(parts)


# -- what check and fix share ---------------------------------------------------------------------


class _Misuse(click.ClickException):
    exit_code = ERRORS

    def show(self, file: Any = None) -> None:
        click.echo(f"trainify: {self.message}", err=True)


class _Run:
    """The paths and settings of a run, and what went wrong in it."""

    def __init__(self, paths: tuple[str, ...], given: dict[str, Any]) -> None:
        from dataclasses import replace

        from .config import ConfigError, load_config

        name: str | None = given.pop("stdin_filename")
        self.paths = paths or (".",)
        self.stdin = _STDIN in paths
        if self.stdin and len(paths) > 1:
            raise click.UsageError("- goes with no other path")
        if name is not None and not self.stdin:
            raise click.UsageError("--stdin-filename goes with the path -")
        self.stdin_name = name or "<stdin>"
        try:
            self.config: Config = load_config([self.stdin_name] if self.stdin else self.paths)
        except ConfigError as error:
            raise _Misuse(str(error)) from None
        for option in ("select", "ignore"):
            if given[option] is not None:
                given[option] = _codes(option, given[option])
        chosen = {option: value for option, value in given.items() if value is not None}
        self.options: Options = replace(self.config.options, **chosen)
        self.failed = False
        self.internal = False
        self.stdin_data = b""

    def reports(
        self, work: Callable[..., Iterator[FileReport]], **how: Any
    ) -> Iterator[FileReport]:
        """Do the work; a problem with a file is said at once and does not end the run."""
        from .engine import without_collections

        if self.stdin:
            self.stdin_data = sys.stdin.buffer.read() if sys.stdin else b""
            how["stdin"] = self.stdin_data
        paths = (self.stdin_name,) if self.stdin else self.paths
        with without_collections():
            for report in work(paths, self.options, config=self.config, jobs=_cores(), **how):
                if report.problem:
                    self.complain(report.problem)
                else:
                    yield report

    def complain(self, problem: Problem) -> None:
        self.failed = True
        click.echo(f"trainify: {problem}", err=True)
        if problem.internal:
            self.internal = True
            if os.environ.get("TRAINIFY_DEBUG"):
                click.echo(problem.details, err=True)

    def write(self, changes: list[Change]) -> bool:
        """Change the files, all of them or none."""
        from .source import WriteError, write_changes

        if self.stdin:
            if not self.failed:
                after = changes[0].after if changes else self.stdin_data
                click.echo(after, nl=False)
            return not self.failed
        try:
            write_changes(changes)
        except WriteError as error:
            self._not_written(error)
            return False
        return True

    def verify(self, findings: Iterable[Finding]) -> tuple[list[Verdict], Environment]:
        """Verify the ops of these findings; every problem ends the run."""
        from .verify import Environment, VerifyError, jobs_of, verify

        jobs = jobs_of(findings, self.options)
        if not jobs:
            return [], Environment()
        try:
            return verify(jobs, self.paths)
        except VerifyError as error:
            raise _Misuse(str(error)) from None

    def write_patch(
        self,
        changes: list[Change],
        applied: list[Finding],
        output: str | None,
        proof: list[str],
    ) -> bool:
        """Print the patch, or write it to a file (``-``: print it) with a few words about it."""
        from .output.diff import patch_names, unified_diff
        from .source import WriteError, write_file

        names = patch_names(change.path for change in changes)
        patch = b"".join(unified_diff(change, names[change.path]) for change in changes)
        if output is None or (output == "-" and not patch):
            click.echo(patch, nl=False)
            return True
        if not patch:
            click.echo(f"trainify: nothing to fix, so {output} was not written", err=True)
            return False
        patch = self._preface(applied, proof).encode() + patch
        if output == "-":
            click.echo(patch, nl=False)
            return True
        try:
            write_file(output, patch)
        except WriteError as error:
            self._not_written(error)
            return False
        return True

    def _preface(self, applied: list[Finding], proof: list[str]) -> str:
        """The comment that a patch file begins with; git skips it."""
        from .output.known import comment
        from .output.text import cuts, statistics
        from .passes import all_rules

        names = {code: rule.name for code, rule in all_rules().items()}
        lines = [
            f"trainify {__version__}: fixes {cuts(applied)}",
            "",
            *(f"  {line}" for line in statistics(applied, names)),
            "",
            *proof,
            *comment(applied, self.options, verified=bool(proof)),
            "Apply it with `git apply`.",
        ]
        return "".join(f"# {line}".rstrip() + "\n" for line in lines) + "\n"

    def _not_written(self, error: WriteError) -> None:
        self.failed = True
        click.echo(f"trainify: {error.path}: cannot write: {error.reason}", err=True)


def _codes(option: str, value: str) -> tuple[str, ...]:
    from .config import is_code

    codes = tuple(code.strip() for code in value.split(",") if code.strip())
    for code in codes:
        if not is_code(code):
            raise click.UsageError(f"--{option}: no rule has the code {code!r}")
    return codes


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _finish(ctx: click.Context, run: _Run, findings: bool) -> None:
    if run.internal:
        click.echo(
            "trainify: an internal error is a bug in trainify: please report it, with the file if "
            "you can; TRAINIFY_DEBUG=1 prints the traceback",
            err=True,
        )
    ctx.exit(ERRORS if run.failed else FINDINGS if findings else 0)
