"""``python -m trainify``, and the ``trainify`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; an interrupt, even during start-up, ends in one line."""
    try:
        if sys.argv[1:2] == ["lsp"]:  # an editor waits, and the command line takes a while to load
            from .lsp.spawn import spawn_ahead

            spawn_ahead()
        from .cli import cli
    except KeyboardInterrupt:
        print("trainify: interrupted", file=sys.stderr)
        sys.exit(130)
    cli(prog_name="trainify")


if __name__ == "__main__":
    main()
