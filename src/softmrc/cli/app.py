"""The command itself, apart from its verbs, so that each verb can hang itself on it."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="softmrc",
    help="MRC (Multipath Reliable Connection) in software.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
