"""The `softmrc` command. Each verb lives in a module of its own, which registers it when imported here."""

from __future__ import annotations

import sys

from softmrc.cli import bench, demo  # noqa: F401
from softmrc.cli.app import app
from softmrc.errors import MrcError


def main() -> None:
    """Run the command; an error of ours is one line on stderr, not a traceback."""
    try:
        app()
    except MrcError as error:
        print(f"softmrc: {error}", file=sys.stderr)
        sys.exit(1)
