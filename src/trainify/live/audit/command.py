"""``trainify audit``: a model that a function of the user's makes."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from .report import Report

_PATIENCE = 5.0
"""Seconds between two lines that say what takes so long, where nobody sees a terminal."""


@click.command("audit")
@click.argument("target", metavar="FILE.py:FACTORY|PACKAGE.MODULE:FACTORY")
@click.option(
    "--format",
    "style",
    type=click.Choice(("table", "json", "html")),
    default="table",
    help="How the report is shown; html is a page with a picture of the gradient's way.",
)
@click.option("-o", "--output", metavar="FILE", help="Write the report to FILE (-: print it).")
@click.option(
    "--allow",
    metavar="PLACE",
    multiple=True,
    help="Gradients may be stopped here: a file, file:line, function or module path. Repeatable.",
)
@click.option("--no-proof", is_flag=True, help="Do not compare with directional derivatives.")
@click.option(
    "--diff",
    metavar="FILE",
    help="Write to FILE, for git apply, the change of source after which all is well.",
)
@click.option(
    "--through",
    metavar="PLACE",
    multiple=True,
    help="For --diff: gradients are stopped here by mistake; as for --allow. Repeatable.",
)
@click.pass_context
def command(
    ctx: click.Context,
    target: str,
    style: str,
    output: str | None,
    allow: tuple[str, ...],
    no_proof: bool,
    diff: str | None,
    through: tuple[str, ...],
) -> None:
    """Run a step of a model, and say which gradients are missing or wrong, and where.

    FACTORY is a function without arguments. It returns a model, or a tuple: the model, what to call
    it with (a tuple of arguments, a dict of keyword arguments, or one argument) and, if wanted, a
    function that makes the loss of its output. Needs torch.

    Exit codes: 0 all is well, 1 a gradient is missing or wrong, 2 misuse, or the code raised.
    """
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise click.UsageError("torch is missing: pip install 'trainify[torch]'")
    progress = _Progress()
    with contextlib.redirect_stdout(sys.stderr), _errors_in_one_line(ctx, target):
        model, inputs, keywords, loss = _made(target)
        from .run import audit

        report = audit(
            model,
            *inputs,
            loss=loss,
            allow=allow,
            proof=not no_proof,
            progress=progress.tell,
            **keywords,
        )
        change = ""
        if diff is not None and (report.copies or not report.ok):
            from ..trainable import NotTrainable

            progress.tell("the change of source")
            try:
                change = _change(model, inputs, keywords, loss, allow, through)
            except NotTrainable as error:
                click.echo(
                    f"trainify: no change was found after which all is well: {error}", err=True
                )
    progress.done()
    _show(report, style, output, target)
    if diff is not None and change:
        _write(diff, change)
    ctx.exit(0 if report.ok else 1)


def _change(
    model: Any,
    inputs: tuple[Any, ...],
    keywords: dict[str, Any],
    loss: Callable[..., Any] | None,
    allow: tuple[str, ...],
    through: tuple[str, ...],
) -> str:
    """What source makes a model trainable, as a diff; what only its audit says is told."""
    import warnings

    from ..apply import restore, source_diff
    from ..confirm import StopRemoved
    from ..trainable import trainify

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", StopRemoved)
        trainify(
            model, *inputs, strategy="flag", loss=loss, allow=allow, through=through, **keywords
        )
    for each in told:
        click.echo(f"trainify: {each.message}", err=True)
    change = source_diff(model)
    restore(model)
    return change


class _Wrong(Exception):
    """What the factory is or returns is not what is asked for."""


@contextlib.contextmanager
def _errors_in_one_line(ctx: click.Context, target: str) -> Iterator[None]:
    try:
        yield
    except _Wrong as error:
        raise click.UsageError(str(error)) from None
    except (Exception, SystemExit) as error:  # an exit code of theirs would be taken for a verdict
        if os.environ.get("TRAINIFY_DEBUG"):
            traceback.print_exc()
        from .places import said

        where = f" ({place})" if (place := _place_of(error)) else ""
        click.echo(f"trainify: {target}: {said(error)}{where}", err=True)
        ctx.exit(2)


def _place_of(error: BaseException) -> str:
    """The line that a person would look at first, of those that an exception went through."""
    from .places import Places

    places = Places(())
    own = os.path.dirname(os.path.abspath(__file__))
    theirs = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((own, "<"))
    ]
    inner = [frame for frame in theirs if not places.is_outside(frame.filename)]  # not of torch
    users = [frame for frame in inner if places.is_users(frame.filename)]  # nor of a library
    for frame in (users or inner or theirs)[-1:]:
        return f"{frame.filename}:{frame.lineno}"
    return ""


def _made(target: str) -> tuple[Any, tuple[Any, ...], dict[str, Any], Callable[..., Any] | None]:
    """Model, arguments, keyword arguments and loss."""
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise _Wrong(f"{target!r} is not FILE.py:FACTORY nor PACKAGE.MODULE:FACTORY")
    factory: Any = _module(where)
    for part in name.split("."):
        if not hasattr(factory, part):
            raise _Wrong(f"{where} has no {name!r}")
        factory = getattr(factory, part)
    from torch import nn

    if isinstance(factory, nn.Module) or not callable(factory):
        raise _Wrong(f"{target} is {type(factory).__name__}, not a function that makes a model")
    made = factory()
    parts = made if isinstance(made, tuple) else (made,)
    if not 1 <= len(parts) <= 3:
        raise _Wrong(f"{target} returns {len(parts)} things, not a model, its inputs and a loss")
    model = parts[0]
    inputs = parts[1] if len(parts) > 1 else ()
    loss = parts[2] if len(parts) > 2 else None
    if not isinstance(model, nn.Module):
        raise _Wrong(f"{target} makes {type(model).__name__}, not a torch.nn.Module")
    if loss is not None and not callable(loss):
        raise _Wrong(f"the loss that {target} returns cannot be called")
    if isinstance(inputs, Mapping):
        return model, (), dict(inputs), loss
    return model, tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {}, loss


def _module(where: str) -> ModuleType:
    import importlib.util

    if not where.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{where}.".startswith(f"{error.name}."):
                raise
            raise _Wrong(f"there is no module {where!r}") from None
    if not os.path.isfile(where):
        raise _Wrong(f"there is no file {where}")
    sys.path.insert(0, os.path.dirname(os.path.abspath(where)))
    name = os.path.splitext(os.path.basename(where))[0]
    spec = importlib.util.spec_from_file_location(name, where)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _show(report: Report, style: str, output: str | None, target: str) -> None:
    if style == "json":
        text = report.to_json()
    elif style == "html":
        from ...output.audit_page import page

        text = page(report, target)
    else:
        text = str(report)
    if output is None or output == "-":
        click.echo(text)
    else:
        _write(output, f"{text}\n")


def _write(file: str, text: str) -> None:
    from ...source import WriteError, write_file

    data = text.encode(errors="surrogateescape")
    if file == "-":
        click.echo(data, nl=False)
        return
    try:
        write_file(file, data)
    except WriteError as error:
        raise click.UsageError(f"cannot write {error.path}: {error.reason}") from None


class _Progress:
    """What is being done, on standard error: in one line that changes, or when it takes long."""

    def __init__(self) -> None:
        self._start = self._told = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def tell(self, what: str) -> None:
        now = time.monotonic()
        seconds = now - self._start
        if self._terminal:
            click.echo(f"\r\x1b[K{what} ({seconds:.0f} s)", err=True, nl=False)
        elif now - self._told > _PATIENCE:
            self._told = now
            click.echo(f"trainify: {what} ({seconds:.0f} s)", err=True)

    def done(self) -> None:
        if self._terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
