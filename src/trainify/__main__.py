"""``python -m trainify``, and the ``trainify`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; an interrupt, even during start-up, ends in one line."""
    try:
        from .cli import cli
    except KeyboardInterrupt:
        print("trainify: interrupted", file=sys.stderr)
        sys.exit(130)
    cli(prog_name="trainify")


if __name__ == "__main__":
    main()
