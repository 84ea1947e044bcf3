"""The command that starts the server."""

from __future__ import annotations

import click


@click.command("lsp")
@click.option("--log-file", metavar="FILE", help="Write the log here instead of to standard error.")
@click.option("-v", "--verbose", is_flag=True, help="Log what is checked and how long it takes.")
@click.option("--stdio", is_flag=True, hidden=True)  # what many clients add
def command(log_file: str | None, verbose: bool, stdio: bool) -> None:
    """Serve an editor over standard input and output.

    Needs pygls: pip install 'trainify[lsp]'.  How to set up an editor is in docs/editors.md.
    """
    from importlib.util import find_spec

    if find_spec("pygls") is None:
        raise click.UsageError("pygls is missing: pip install 'trainify[lsp]'")
    import gc

    from .log import start_logging

    try:
        start_logging(log_file, verbose)
    except OSError as error:
        raise click.UsageError(f"cannot write {log_file}: {error.strerror}") from None
    gc.disable()  # what is loaded stays
    from .quick_types import import_types

    import_types()
    from .server import serve
    from .spawn import spawn

    serve(lambda: spawn(log_file, verbose))
